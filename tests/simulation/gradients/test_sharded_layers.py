"""Sharded weights: each layer is gathered before it is needed, and its gradients are scattered behind it."""

import pytest
from support.sharded import MS, PARAMETERS, gpt, scenario, waits

from hybrid_des.analysis.metrics import summary
from hybrid_des.analysis.table import table as table_of
from hybrid_des.planning.planner import parts_of
from hybrid_des.shortcuts.run import run


def layers_apart(ahead=True, forward="20 ms", backward="40 ms", m=2, **sections):
    """Four chunks of 250,000 parameters on one rank per replica: a gather takes 0.375 ms, a scatter 0.75 ms."""
    work = {"forward": forward, "backward": backward}
    return scenario("zero-3", "looped-bfs", m=m, ahead=ahead, schedule={"chunks": 4}, workload=work, **sections)


def test_zero_3_exposes_the_edges_of_a_long_step_only():
    result = run(layers_apart())
    assert result.duration == 2 * 60 * MS + 375 * MS // 1000 + 750 * MS // 1000
    assert waits(result) == [(0, 375 * MS // 1000)]
    assert summary(result)["busy_s"] == pytest.approx(0.12, rel=1e-14)


@pytest.mark.parametrize("ahead", [False, True])
def test_zero_3_exposes_all_of_it_without_compute(ahead):
    result = run(layers_apart(ahead, forward=0, backward=0, m=3))
    assert result.duration == 3 * 4 * (2 * 375 + 750) * MS // 1000
    figures = summary(result)
    assert figures["busy_s"] == 0
    assert figures["parameter_communication_s"]["hidden"] == figures["gradient_communication_s"]["hidden"] == 0


def test_without_overlap_zero_3_waits_for_every_layer():
    result = run(layers_apart(ahead=False))
    assert result.duration == 2 * 60 * MS + 2 * 4 * (2 * 375 + 750) * MS // 1000
    figures = summary(result)
    assert figures["idle_s"]["parameter_gather"] == pytest.approx(2 * 4 * 2 * 0.375e-3)
    assert figures["idle_s"]["gradient_reduction"] == pytest.approx(2 * 4 * 0.75e-3)
    assert figures["busy_s"] == pytest.approx(0.12)


def test_zero_3_gathers_twice_and_scatters_once_per_micro_batch():
    result = run(layers_apart(m=3))
    assert result.bytes_parameters == 3 * 2 * 3 * 2 * PARAMETERS
    assert result.bytes_gradients == 3 * 3 * 4 * PARAMETERS
    assert len(result.timeline.gathers["rank"]) == 4 * 3 * 4 * 2
    assert len(result.timeline.reductions["rank"]) == 4 * 3 * 4


def test_one_layer_is_gathered_before_it_is_needed():
    result = run(layers_apart())
    ops = table_of(result.timeline)
    begins = sorted(round(start * 1e12) for start in ops[(ops["rank"] == 0) & (ops["lane"] == "compute")]["start_s"])
    rows = result.timeline.gathers
    started = rows["start"][rows["rank"] == 0].tolist()
    assert started == [0, *begins[:9], *(begin + 750 * MS // 1000 for begin in begins[9:-1])]  # scatters go first


def test_a_replayed_gather_waits_for_the_slowest_member():
    nodes = [{"count": 1}, {"count": 1, "speed": 0.5}]
    cluster = {"nodes": nodes, "gpus_per_node": 2}
    result = run(layers_apart(cluster=cluster))
    rows = result.timeline.gathers
    ends = {rank: rows["end"][rows["rank"] == rank].tolist() for rank in range(4)}
    assert ends[0] == ends[1] == ends[2] == ends[3]
    assert result.duration > 2 * 120 * MS


@pytest.mark.parametrize("share", ["0.25", "0.5"])
def test_layers_lose_their_share_beside_collectives(share):
    keys = "slowed", "slowed_network", "slowed_memory"
    free, slowed = (summary(run(gpt(efficiency=dict.fromkeys(keys, lost)))) for lost in ("0", share))
    hidden = slowed["parameter_communication_s"]["hidden"] + slowed["gradient_communication_s"]["hidden"]
    assert hidden > 0
    assert slowed["busy_s"] - free["busy_s"] == pytest.approx(float(share) * hidden, rel=1e-6)
    assert slowed["slowed_s"] == pytest.approx(float(share) * hidden, rel=1e-6)


def test_layers_of_a_model_are_gathered_one_by_one():
    result = run(gpt())
    rows = result.timeline.gathers
    mine = rows["layer"][rows["rank"] == 0].tolist()
    assert mine == [*range(6), *reversed(range(6))] * 2
    parameters = sum(parts_of(gpt()).costs.parameters)
    assert result.bytes_parameters == 2 * 2 * 3 * 2 * parameters
    assert result.bytes_gradients == 2 * 3 * 4 * parameters


def test_two_blocks_and_both_ends_are_held_gathered():
    one, many = (parts_of(gpt(parallel={"pipeline": p, "data": 2})) for p in (1, 2))
    divided = [parts_of(gpt(parallel={"pipeline": p, "data": 2}, sharding="zero-3", overlap={"parameters": False}))
               for p in (1, 2)]  # fmt: skip
    for mine, same in zip((one, many), divided, strict=True):
        assert mine.costs.resident == same.costs.resident
    (stage,) = one.costs.stages.values()
    *blocks, last = [layer.states.parameters for layer in stage.layers]
    gathered = sum(blocks[:1]) + sum(sorted(blocks[1:])[-2:]) + last  # both ends, and two blocks
    waiting = 4 * max(blocks[1:]) + 2 * last  # a block's gradient in 32 bits while it is scattered, and the logits'
    assert one.costs.resident[0] == stage.states.resident + stage.transient + stage.reserved + 2 * gathered + waiting
    for (rank, _), held in many.costs.stages.items():
        assert (
            many.costs.resident[rank]
            == held.states.resident + held.transient + held.reserved + 2 * held.states.parameters
        )


def test_a_layer_takes_few_events():
    """On each rank: when its gather and its scatter are over, when it ends, and once more for what it has lost."""
    few, many = (run(gpt(schedule={"microbatches": m})) for m in (2, 6))
    passes = 4 * 4 * 2 * 6  # ranks, micro-batches more, forward and backward, layers
    assert many.events - few.events <= 4 * passes
