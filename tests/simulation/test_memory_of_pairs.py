"""Memory of a forward and a backward that run as one op: layer by layer, one keeps what the other has freed.

Megatron-LM's `TransformerModelChunkSchedulePlan.run` (megatron/core/models/common/model_chunk_schedule_plan.py) runs
the i-th layer of the forward with the i-th last of the backward, whose activations autograd frees with its node, before
the next layer's. So a pair holds one layer, not a whole chunk, more than either of its ops.
"""

import pytest
from support.scenarios import values as small

from hybrid_des import load
from hybrid_des.planning.lowering import planned_peaks
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run

SIZES = {
    "kind": "transformer", "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 512, "sequence": 512,
    "experts": {"count": 16, "active": 2, "ffn": 512},
}  # fmt: skip


def scenario(schedule, layers=8, **sections):
    parallel = {"data": 4, "expert": 4, **sections.pop("parallel", {})}
    schedule = {"kind": "1f1b", "microbatches": 8, **schedule}
    given = {"cluster": {"gpu": "h100", "nodes": 4, "gpus_per_node": 4}, "model": {**SIZES, "layers": layers}}
    return load({**given, "parallel": parallel, "schedule": schedule, **sections})


def peak(*args, **sections):
    return max(run(scenario(*args, **sections)).peak_memory)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("layers", [4, 16])
def test_pairs_without_a_pipeline_hold_one_layer_more(layers, streams):
    experts = {"streams": streams}
    blocks = [one for one in run(scenario({}, layers)).costs.stages[0, 0].layers if not one.end]
    alone, paired = (peak({"pairs": pairs}, layers, experts=experts) for pairs in (False, True))
    assert alone < paired <= alone + blocks[0].kept


@pytest.mark.parametrize(
    "schedule",
    [
        {"pairs": True},
        {"kind": "interleaved-1f1b", "pairs": True, "chunks": 2},
        {"kind": "dualpipe"},
        {"kind": "dualpipe-v", "chunks": 2},
    ],
    ids=lambda schedule: schedule.get("kind", "1f1b"),
)
def test_a_pair_holds_a_layer_more_than_ops_in_turn(schedule):
    """Than in the order in which each backward runs just before the forward that it is paired with."""
    made = parts_of(scenario(schedule, layers=16, parallel={"pipeline": 4}))
    for rank, program in enumerate(made.plan.programs):
        now = most = made.costs.held(rank)
        largest = 0
        for action in program:
            costs = [made.costs.stages[rank, op.chunk] for op in action]
            now -= sum(cost.freed(op.kind, cost.kept) for op, cost in zip(action, costs, strict=True))
            now += sum(cost.kept for op, cost in zip(action, costs, strict=True) if op.kind == "F")
            most = max(most, now)
            largest = max([largest, *(layer.kept for cost in costs for layer in cost.layers)])
        assert most <= planned_peaks(made.plan, made.costs)[rank] <= most + largest


def test_what_is_planned_is_what_the_run_holds():
    one = scenario({"kind": "dualpipe-v", "chunks": 2}, layers=16, parallel={"pipeline": 4})
    made, ran = parts_of(one), run(one)
    planned = planned_peaks(made.plan, made.costs)
    assert ran.peak_memory == [planned[ran.timeline.layout.coordinate(rank, "pipeline")] for rank in ran.ranks]


def test_chunks_without_layers_hold_both_at_once():
    """A given workload does not say what a part of a chunk holds."""
    given = small("1f1b", 1, 4, workload={"memory": {"activation": "1 GB"}})
    alone, paired = (
        run(scenario_from({**given, "schedule": {**given["schedule"], "pairs": pairs}})) for pairs in (False, True)
    )
    assert max(paired.peak_memory) - max(alone.peak_memory) == alone.costs.stages[0, 0].kept > 0
