"""The ladder of idealisations: no rung is above the one before it, and the last is a bound."""

from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from support.campaigns import TIMES, thinned
from support.counterfactuals import ladder
from support.folded_causes import KINDS
from support.scenarios import values
from system.fuzzing.valid import scenario

from hybrid_des.analysis.counterfactual.first_order import first_order
from hybrid_des.analysis.counterfactual.ladder import never_queues
from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.analysis.critical_path.traced import Traced, traced_run
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.units import PICOSECONDS_PER_SECOND

SLOWNESS = (
    {},
    {"jitter": {"distribution": "lognormal", "sigma": 0.2, "level": "rank-step"}},
    {"slow": [{"gpu": 1, "factor": 0.5}]},
)
TENSOR = {  # two tensor ranks on two nodes, so that the collectives inside ops take longer than the ops
    "cluster": {"gpu": "h100", "nodes": 4, "gpus_per_node": 1, "infiniband": {"bandwidth": "1 GB/s"}},
    "model": {"layers": 4, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1024, "sequence": 256},
    "parallel": {"tensor": 2, "pipeline": 2},
    "schedule": {"kind": "1f1b", "microbatches": 2},
}
UNEVEN = values("zb-auto", p=3, m=1)  # the slow rank's weight gradients are off the critical path
UNEVEN["workload"] = {"forward": "0 s", "backward": ["1 s", "1 s", "2 s"]}


def rungs(given):
    return {rung.name: rung.duration for rung in ladder(traced_run(load(given)))}


@pytest.mark.parametrize("seed", thinned(range(6 * TIMES), slow=range(1, 6 * TIMES)))
def test_messages_never_queue_on_a_network_without_latency(seed):
    reached = 0
    for draw in KINDS.values():
        try:
            traced = Traced(traced_run(scenario_from(draw(Random(seed))), fold_from=2))
        except HybridDesError:
            continue
        if never_queues(traced.run):
            free = Variant.of(traced.run).with_all_links(None).with_latency(Fraction(0))
            end = free.simulated()
            assert end.duration == free.without_queueing().duration
            assert first_order(traced.fitting(end.fold), free) == first_order(traced, free)
            reached += 1
    assert reached


@pytest.mark.parametrize("slowness", SLOWNESS)
def test_the_end_of_a_changed_run_needs_no_rows(slowness):
    base = run(load({**TENSOR, **slowness}))
    whole, bare = (Variant.of(base).simulated(detailed=detailed) for detailed in (True, False))
    assert Variant.of(base).duration == whole.duration == bare.duration == base.duration
    assert (bare.events, bare.peak_memory, bare.peak_chunks) == (whole.events, whole.peak_memory, whole.peak_chunks)
    assert len(whole.timeline.ops["start"]) > len(bare.timeline.ops["start"]) == 0


def test_changed_runs_fold_however_small():
    times = {"forward": "1 ms", "backward": "2 ms", "parameters": 960_000}
    base = run(load({"cluster": {"nodes": 2}, "parallel": {"data": 16}, "workload": times}))
    again = Variant.of(base).simulated()
    assert base.fold is None
    assert again.fold is not None
    assert again.duration == base.duration


@pytest.mark.parametrize("slowness", SLOWNESS, ids=["steady", "jitter", "slow"])
@pytest.mark.parametrize("traffic", ["auto", "messages"])
def test_the_ladder_does_not_rise_with_tensor_ranks(traffic, slowness):
    found = rungs({**TENSOR, "tensor_traffic": traffic, **slowness})
    assert [*found.values()] == sorted(found.values(), reverse=True)


def test_the_ladder_does_not_rise_where_even_ranks_take_longer():
    found = rungs(UNEVEN)
    assert [*found.values()] == sorted(found.values(), reverse=True)


def test_random_ladders_do_not_rise():
    rises, tried = [], 0
    for seed in range(24):
        try:
            one = load(scenario(Random(seed)) | SLOWNESS[seed % 3])
            if one.parallel.ranks > 4:
                continue
            found = ladder(traced_run(one))
        except HybridDesError:
            continue
        tried += 1
        rises += [(seed, lower.name) for upper, lower in pairwise(found) if lower.duration > upper.duration]
    assert tried > 10
    assert not rises


def test_the_last_rung_is_the_work_without_collectives():
    slow = {**TENSOR, "tensor_traffic": "replay"}
    alone = {**slow, "cluster": {**TENSOR["cluster"], "infiniband": {"bandwidth": "inf", "latency": 0}}}
    assert rungs(slow)["work / ranks"] == rungs(alone)["work / ranks"]


def test_the_last_rung_of_an_even_pipeline_is_its_work():
    even = values("1f1b", p=2, m=4)
    even["workload"] = {"forward": "1 s", "backward": "2 s"}
    assert rungs(even)["work / ranks"] == 4 * 3 * PICOSECONDS_PER_SECOND
