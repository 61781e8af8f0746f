"""Steps that repeat an earlier one: a run that does not simulate them has the rows, peaks and end of one that does."""

from collections.abc import Sequence
from itertools import permutations
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support.campaigns import TIMES, thinned
from support.folded_causes import KINDS
from support.paths import SCENARIOS
from support.runs import totals
from support.scenarios import scenario

from hybrid_des.analysis.counterfactual.what_if import Variant, builder_of, variant_of
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Route
from hybrid_des.cluster.purposes import ACTIVATION
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.simulation.jobs import started
from hybrid_des.simulation.planning.planner import parts_of
from hybrid_des.simulation.planning.program import Mark, Record, Wait, call_of, program_of
from hybrid_des.simulation.repeated_steps import Beginning, RepeatedSteps, _waits
from hybrid_des.simulation.run import Run, run
from hybrid_des.simulation.step_actions import ToldSteps, Way, _Notes, _Renaming

TABLES = "ops", "steps", "reductions", "memory", "gathers", "waits", "exchanges"
# cases in which the order of ranks decides ties, and in which ranks do what others did
QUICK = [("folding", 4), ("folding", 3), ("small", 13), ("folding", 7)]
CASES = [*QUICK, *((kind, seed) for kind in KINDS for seed in range(14, 14 + 4 * TIMES))]
ON = {"gpus_per_node": 4, "nvlink": {"bandwidth": "1 GB/s"}}
TRAINED = {"forward": "1 us", "backward": "2 us", "parameters": 4000, "optimizer": "1 us"}


def several(steps: int = 5, **sections):
    """Four replicas on a node, for several steps, without rows of messages."""
    usual = {"cluster": ON, "workload": TRAINED, "steps": steps, "fold": "off", "record": "compute"}
    return scenario("1f1b", 1, 2, 4, **{**usual, **sections})


def pair(one) -> tuple[Run, Run, Run]:
    """A run, and the same without simulating all steps, with rows and without."""
    parts = parts_of(one)
    return run(one, parts=parts, whole=True), run(one, parts=parts), run(one, parts=parts, detailed=False)


def check(whole: Run, others: Sequence[Run]) -> None:
    for other in others:
        assert whole.duration == other.duration == other.timeline.duration
        assert (whole.peak_memory, whole.peak_chunks) == (other.peak_memory, other.peak_chunks)
        assert {**totals(whole), "carried": {}} == {**totals(other), "carried": {}}  # not read without rows
    assert whole.carried == others[0].carried
    for name in TABLES:
        mine, its = (getattr(one.timeline, name) for one in (whole, others[0]))
        assert all(np.array_equal(mine[column], its[column]) for column in mine), name


@pytest.mark.parametrize(("kind", "seed"), thinned(CASES, slow=CASES[len(QUICK) :]))
def test_random_runs_have_the_same_rows_peaks_and_end(kind, seed):
    rng = Random(seed)
    drawn = {**KINDS[kind](rng), "steps": rng.randint(3, 7), "barrier": True, "fold": "off", "record": "compute"}
    if rng.random() < 0.8:
        drawn["cluster"]["sharing"] = "fifo"
    try:
        whole, *others = pair(scenario_from(drawn))
    except HybridDesError:
        pytest.skip("no possible scenario")
    check(whole, others)


def test_two_of_many_steps_are_simulated():
    whole, *others = pair(several(40))
    check(whole, others)
    assert all(other.events < whole.events / 10 for other in others)


def test_hot_experts_that_change_take_four_of_six_steps():
    changes = ["cluster.nodes=1", "parallel.data=8", "parallel.expert=8", "batch=8", "model.layers=1", "fold=off"]
    whole, *others = pair(load(SCENARIOS / "experts/drift.yaml", [*changes, "record=compute"]))
    check(whole, others)
    assert all(other.events < 0.7 * whole.events for other in others)


def test_what_ifs_do_not_simulate_steps_again():
    base = run(several(20), whole=True)
    found = variant_of("kind.F.time=0.5x", Variant.of(base), builder_of(base.scenario))
    assert found.simulated().events < base.events / 3
    assert found.duration == run(base.scenario, parts=base.parts, retime=found.retime, whole=True).duration


VARYING = {
    "messages": {"record": "all"},
    "slow": {"slow": [{"gpu": 1, "factor": 0.5, "from": "1 us", "until": "5 us"}]},
    "jitter": {"jitter": {"distribution": "lognormal", "sigma": 0.1}},
    "no barrier": {"barrier": False},
    "two steps": {"steps": 2},
    "fair": {"cluster": {**ON, "sharing": "fair"}},
    "servers": {
        "cluster": {**ON, "gpus_per_node": 5},
        "gradients": {"algorithm": "parameter-server", "servers_on": "hosts"},
    },
}


@pytest.mark.parametrize("varying", VARYING.values(), ids=VARYING)
def test_what_may_vary_is_simulated(varying):
    steady, one = several(), several(**varying)
    assert RepeatedSteps.of(started(steady, parts_of(steady))) is not None
    assert RepeatedSteps.of(started(one, parts_of(one))) is None


def test_steps_are_not_known_while_anything_else_is_under_way():
    one = several()
    job = started(one, parts_of(one))
    steps = RepeatedSteps.of(job)
    job.transport.env.timeout(10**12)  # after the end of the run
    assert steps is not None
    assert not steps.carry_out(lambda: None)
    assert steps._began == [None] * one.steps


def test_ranks_repeat_what_others_did_in_their_place(monkeypatch):
    """Those hold the same, so that peaks are known."""
    one = several(parallel={"pipeline": 2, "data": 2})
    steps = RepeatedSteps.of(started(one, parts_of(one)))
    begin = Beginning(0, range(4), {}, (), {})
    steps._began = [None, begin, begin]
    monkeypatch.setattr(steps, "_alike", lambda *of: True)
    places, orders = one.parallel.layout.along("pipeline").tolist(), [*permutations(range(4))]
    found = [order for order in orders if steps._as(1, 2, order, begin)]
    assert found == [order for order in orders if [places[rank] for rank in order] == places]


def test_other_streams_wait_for_what_a_step_records():
    usual = program_of([], {"gradient": [call_of(Wait("filled"))]}, fills=[Record("filled")])
    early = program_of([], {"gradient": [call_of(Mark(), Wait("filled"))]}, fills=[Record("filled")])
    more = program_of([], {"gradient": [call_of(Wait("filled"))]}, fills=[Record("filled"), Record("filled")])
    assert [_waits(SimpleNamespace(program=program)) for program in (usual, early, more)] == [True, False, False]


def on_links(bandwidths: Sequence[str]) -> tuple[ToldSteps, dict]:
    """Four GPUs at a switch, each by a link, with what they do by rank."""
    links = [{"between": [f"gpu{gpu}", "hub"], "bandwidth": bandwidth} for gpu, bandwidth in enumerate(bandwidths)]
    one = several(cluster={"gpus_per_node": 4, "topology": "links", "links": links})
    parts = parts_of(one)
    job = started(one, parts)
    return ToldSteps(parts, job.gpus), {gpu.rank: gpu.program for gpu in job.gpus}


def test_ranks_do_the_same_only_on_links_that_are_alike():
    told, programs = on_links(["1 GB/s"] * 4)
    turned, swapped = {0: 1, 1: 2, 2: 3, 3: 0}, {0: 1, 1: 0, 2: 2, 3: 3}
    assert told.same(programs, programs, turned)
    assert not told.same(programs, programs, swapped)  # another way around the ring
    told, programs = on_links(["1 GB/s", "1 GB/s", "2 GB/s", "1 GB/s"])
    assert not told.same(programs, programs, turned)
    told, programs = on_links(["1 GB/s", "2 GB/s"] * 2)
    assert told.same(programs, programs, {0: 2, 1: 3, 2: 0, 3: 1})


def test_links_of_several_flows_stay_those_of_several():
    routes = {(0, 2): "a", (1, 3): "a", (2, 0): "b", (3, 1): "c", (0, 3): "slow"}
    latencies = {"slow": 9}
    fabric = SimpleNamespace(
        route=lambda *ends: Route((routes[ends],), (latencies.get(routes[ends], 5),)),
        links={name: SimpleNamespace(bandwidth=1) for name in routes.values()},
    )
    ways = {ends: Way(*ends, ()) for ends in routes}
    renamed = {0: 2, 1: 3, 2: 0, 3: 1}
    shared = _Renaming(fabric, renamed)
    assert shared.same(ways[0, 2], ways[2, 0])
    assert not shared.same(ways[1, 3], ways[3, 1])  # their first link is another one than that of the others
    apart = _Renaming(fabric, renamed)
    assert apart.same(ways[2, 0], ways[0, 2])
    assert not apart.same(ways[3, 1], ways[1, 3])
    assert not _Renaming(fabric, {0: 0, 2: 3}).same(ways[0, 2], ways[0, 3])  # of another latency


def test_what_is_passed_on_is_told():
    first, second = map(passing_on, (0, 1))
    notes = _Notes(SimpleNamespace(node_of=[0, 0]))
    told = [notes.told(routine(notes)) for routine in (first, second, first)]
    assert told[0] == told[2] != told[1]


def passing_on(number: int):
    """A routine that receives two messages and passes one of them on."""

    def routine(notes):
        flow, _ = notes.flow(Channel(0, 1, ACTIVATION, "some"))
        received = (yield flow.receive()), (yield flow.receive())
        flow.send(received[number])

    return routine


def test_messages_of_other_sizes_are_not_the_same():
    uneven = several(workload={**TRAINED, "parameters": 4001})
    parts = parts_of(uneven)
    job = started(uneven, parts)
    programs = {gpu.rank: gpu.program for gpu in job.gpus}
    assert not ToldSteps(parts, job.gpus).same(programs, programs, {0: 1, 1: 2, 2: 3, 3: 0})
