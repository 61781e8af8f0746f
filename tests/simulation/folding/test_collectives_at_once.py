"""Collectives that a run takes at once: everything else happens as it does with their messages."""

from fractions import Fraction
from random import Random

import pytest
from support.foldings import tied_values
from support.scenarios import merged

from hybrid_des.analysis.counterfactual.what_if import Part, Variant
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.simulation import gpu
from hybrid_des.simulation import jobs as starting
from hybrid_des.simulation import run as running
from hybrid_des.simulation.folding import collectives_at_once
from hybrid_des.simulation.planning.planner import parts_of
from hybrid_des.simulation.run import run

TAKEN = (1, 3, 14, 15, 18, 21, 59)
DISTURBED = (0, 31, 33)  # members begin at different times, or end by either of two messages; others send meanwhile


TWO_STAGES = {
    "cluster": {
        "nodes": 4,
        "gpus_per_node": 4,
        "nvlink": {"bandwidth": "4 GB/s", "latency": "300 ns"},
        "infiniband": {"bandwidth": "1 GB/s", "latency": "1 us", "nics_per_node": 4},
    },
    "parallel": {"pipeline": 2, "data": 8, "order": ["tensor", "data", "pipeline"]},
    "schedule": {"kind": "1f1b", "microbatches": 2},
    "workload": {"forward": "1 us", "backward": "50 us", "activation": 1000, "parameters": 8000},
    "gradients": {"overlap": True, "channels": 1},
    "record": "compute",
}


@pytest.fixture
def ends(monkeypatch):
    """Simulates a variant: its end, totals, and what ends descend from; the collectives taken, and simulated alone."""
    taken, alone, log, made, transport = [], [], [], [], starting._transport
    begin, simulated = collectives_at_once.CollectivesAtOnce._begin, collectives_at_once.CollectivesAtOnce._alone
    takes, waited = starting.takes_at_once, gpu.Gpu._waited

    def noted(self, at, cause, since):
        log.append((self.rank, self._env.now, self._env.lineage, self._env.born))
        waited(self, at, cause, since)

    def simulate(variant, *, at_once=True):
        taken.clear(), alone.clear(), log.clear()
        for module in (starting, running):
            monkeypatch.setattr(module, "takes_at_once", takes if at_once else lambda *_, **__: False)
        done = run(variant.scenario, parts=variant.parts, retime=variant.retime, fold_from=2, detailed=False)
        free = sorted(link.free for link in made[-1].links.values() if link.free)
        totals = done.messages, done.bytes_gradients, done.peak_memory, free
        return (done.duration, totals, [*log]), len(taken), len(alone)

    def begun(self, *given):
        begin(self, *given)
        taken.append(given)

    monkeypatch.setattr(starting, "_transport", lambda *a, **given: made.append(transport(*a, **given)) or made[-1])
    monkeypatch.setattr(gpu.Gpu, "_waited", noted)
    monkeypatch.setattr(running, "ties_expected", lambda *_: True)
    monkeypatch.setattr(collectives_at_once, "FEWEST", 2)
    monkeypatch.setattr(collectives_at_once.CollectivesAtOnce, "_begin", begun)
    monkeypatch.setattr(
        collectives_at_once.CollectivesAtOnce, "_alone", lambda *given: alone.append(given) or simulated(*given)
    )
    return simulate


def variants(seed):
    """A random scenario, and some changes of it."""
    scenario = scenario_from(tied_values(Random(seed))).model_copy(update={"record": "compute"})
    base = Variant.planned(scenario, parts_of(scenario))
    yield base
    yield Part("kind", "F", ("F",)).scaled(base, Fraction(1, 2))
    yield base.with_all_links(Fraction(2))


@pytest.mark.parametrize("seed", TAKEN)
def test_members_go_on_as_they_do_with_messages(ends, seed):
    for variant in variants(seed):
        first, count, _ = ends(variant)
        assert count
        assert ends(variant) == (first, count, 0)
        assert ends(variant, at_once=False) == (first, 0, 0)


@pytest.mark.parametrize("seed", DISTURBED)
def test_what_disturbs_them_is_noticed_once(ends, seed):
    for variant in variants(seed):
        (duration, *_), _, _ = ends(variant)
        messages = ends(variant, at_once=False)
        assert duration == messages[0][0]
        assert ends(variant) == messages


def test_members_that_begin_apart_send_messages(ends):
    one_adapter = {"cluster": {"infiniband": {"nics_per_node": 1}}, "workload": {"activation": 20_000}}
    scenario = scenario_from(merged(TWO_STAGES, one_adapter))
    variant = Variant.planned(scenario, parts_of(scenario))
    (duration, totals, _), *counts = ends(variant)
    assert counts == [0, 0]
    assert (duration, totals) == ends(variant, at_once=False)[0][:2]


@pytest.mark.parametrize("activation", [1000, 20_000])
def test_messages_before_them_occupy_their_links(ends, activation):
    scenario = scenario_from(merged(TWO_STAGES, {"workload": {"activation": activation}}))
    variant = Variant.planned(scenario, parts_of(scenario))
    first, *counts = ends(variant)
    assert counts == [2, 2]  # of the last stage, which has sent activations back, and of the first, which has not
    assert ends(variant, at_once=False) == (first, 0, 0)


def test_groups_wired_alike_are_simulated_alone_once(ends):
    scenario = scenario_from(merged(TWO_STAGES, {"workload": {"activation": 0}}))
    base = Variant.planned(scenario, parts_of(scenario))
    assert ends(base)[1:] == (2, 1)
    of_one_stage = [f"node{node}/nic{nic}/{way}" for node in (2, 3) for nic in range(4) for way in ("in", "out")]
    faster = base.with_links(dict.fromkeys(of_one_stage, Fraction(2)))
    first, *counts = ends(faster)
    assert counts == [2, 2]
    assert ends(faster, at_once=False) == (first, 0, 0)
