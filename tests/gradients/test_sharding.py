"""Sharded optimizers and experts: what travels among replicas, when, and how much of it is exposed."""

import numpy as np
import pytest
from support import scenarios
from support.sizes import chunks_of

from hybrid_des import load
from hybrid_des.analysis.metrics import summary
from hybrid_des.analysis.table import table as table_of
from hybrid_des.errors import ScenarioError
from hybrid_des.pipeline import schedules
from hybrid_des.planning.planner import parts_of
from hybrid_des.simulation.run import run

MS = 10**9  # picoseconds
GBPS = {"bandwidth": "1 GB/s", "latency": 0}
FREE = {"bandwidth": "inf", "latency": 0}
PARAMETERS = 10**6  # of a rank; among four ranks a ring needs 3 ms to scatter 4 bytes each, 1.5 ms to gather 2
SHARDED = ("zero-1", "zero-2", "zero-3")


def scenario(sharding="none", kind="1f1b", p=1, m=2, d=4, ahead=None, **sections):
    base = {
        "cluster": {"nvlink": GBPS, "infiniband": GBPS},
        "workload": {"forward": "2 ms", "backward": "4 ms", "parameters": PARAMETERS},
        "sharding": sharding,
        "overlap": {} if ahead is None else {"parameters": ahead},
    }
    return scenarios.scenario(kind, p, m, d, **scenarios.merged(base, sections))


def waits(result, rank=0):
    rows = result.timeline.waits
    mine = rows["rank"] == rank
    return list(zip(rows["start"][mine].tolist(), rows["end"][mine].tolist(), strict=True))


def test_zero_1_moves_the_bytes_of_an_all_reduce():
    whole, sharded = (run(scenario(name, gradients={"codec": "bf16"})) for name in ("none", "zero-1"))
    assert sharded.bytes_gradients == sharded.bytes_parameters
    assert sharded.bytes_gradients + sharded.bytes_parameters == whole.bytes_gradients
    assert sharded.duration == whole.duration
    assert sharded.messages == whole.messages


def test_32_bit_gradients_are_scattered_and_16_bit_parameters_gathered():
    result = run(scenario("zero-1"))
    assert result.bytes_gradients == 3 * 4 * PARAMETERS
    assert result.bytes_parameters == 3 * 2 * PARAMETERS
    assert result.duration == 2 * 6 * MS + 3 * MS + 3 * MS // 2


def test_without_overlap_parameters_are_gathered_after_the_optimizer():
    result = run(scenario("zero-1", workload={"optimizer": "4 ms"}))
    gathers = result.timeline.gathers
    assert gathers["start"].tolist() == [16 * MS] * 4  # 12 ms of compute, 3 ms of gradients, 1 ms of a shard's update
    assert waits(result) == [(16 * MS, 16 * MS + 3 * MS // 2)]
    figures = summary(result)
    assert figures["idle_s"]["parameter_gather"] == pytest.approx(1.5e-3)
    assert figures["parameter_communication_s"] == {"exposed": pytest.approx(1.5e-3), "hidden": 0}


def test_gathers_ahead_hide_behind_the_first_forward():
    """Rank 3 of 4 receives its first micro-batch after 6 ms, when its 250,000 parameters are there."""
    result = run(scenario("zero-1", p=4, m=4, ahead=True, workload={"activation": 8}))
    gathers = result.timeline.gathers
    assert set(gathers["start"].tolist()) == {0}
    assert waits(result, rank=0) == [(0, 3 * MS // 2)]
    assert waits(result, rank=15) == []
    figures = summary(result)
    assert figures["parameter_communication_s"]["exposed"] == pytest.approx(1.5e-3 / 4)
    assert figures["parameter_communication_s"]["hidden"] == pytest.approx(1.5e-3 * 3 / 4)


def test_every_step_gathers_ahead_of_its_own_forwards():
    result = run(scenario("zero-1", ahead=True, steps=3))
    assert result.timeline.gathers["step"].tolist().count(2) == 4
    assert result.bytes_parameters == 3 * 3 * 2 * PARAMETERS


def test_zero_2_scatters_after_every_micro_batch():
    waiting, hidden = (run(scenario("zero-2", m=3, gradients={"overlap": overlap})) for overlap in (False, True))
    assert waiting.bytes_gradients == hidden.bytes_gradients == 3 * 3 * 4 * PARAMETERS
    gather = 3 * MS // 2
    assert waiting.duration == 3 * (6 + 3) * MS + gather
    assert hidden.duration == 3 * 6 * MS + 3 * MS + gather
    assert summary(waiting)["gradient_communication_s"] == {"exposed": pytest.approx(9e-3), "hidden": 0}
    found = summary(hidden)["gradient_communication_s"]
    assert found == {"exposed": pytest.approx(3e-3), "hidden": pytest.approx(6e-3)}


def test_in_a_pipeline_zero_2_scatters_once():
    once = run(scenario("zero-2", p=2, m=4))
    assert once.bytes_gradients == 2 * 3 * 4 * PARAMETERS


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("sharding", SHARDED)
@pytest.mark.parametrize("kind", schedules.names())
def test_every_schedule_shards_every_stage_once(kind, sharding, ahead):
    sections = {"schedule": {"chunks": chunks_of(kind)}, "gradients": {"overlap": ahead}}
    result = run(scenario(sharding, kind, p=4, m=8, d=2, ahead=ahead, **sections))
    copies = len(result.plan.paths)
    assert result.bytes_gradients == (2 * copies - 1) * 4 * 4 * PARAMETERS
    assert 2 * result.bytes_parameters == result.bytes_gradients
    rows = result.timeline.gathers
    assert len(rows["rank"]) == 2 * sum(len(result.plan.chunks_of(rank)) for rank in range(4))
    figures = summary(result)
    assert sum(figures["idle_s"].values(), figures["busy_s"]) == figures["step_time_s"]
    assert figures["idle_s"]["pipeline_message"] == 0


def test_ops_wait_for_the_parameters_of_their_own_stage():
    """Interleaved: chunk 1 of rank 0 is stage 2, gathered after stage 0."""
    result = run(scenario("zero-1", "interleaved-1f1b", p=2, m=2, ahead=True, schedule={"chunks": 2}))
    ops = table_of(result.timeline)
    mine = ops[(ops["rank"] == 0) & (ops["kind"] == "F")]
    rows = result.timeline.gathers
    for stage in (0, 2):
        gathered = rows["end"][(rows["rank"] == 0) & (rows["stage"] == stage)]
        assert round(mine[mine["stage"] == stage]["start_s"].min() * 1e12) >= gathered[0]


def test_timeline_and_summary_name_gathers_only_where_there_are_some():
    plain, sharded = run(scenario()), run(scenario("zero-1"))
    kinds = [set(table_of(one.timeline)["kind"]) for one in (plain, sharded)]
    assert kinds[1] - kinds[0] == {"ring-reduce-scatter", "parameters"}
    more = summary(sharded).keys() - summary(plain).keys()
    assert more == {"bytes_parameters", "parameter_communication_s"}


def test_a_workload_divides_bytes_and_the_optimizer_step():
    def held(sharding, **memory):
        return parts_of(scenario(sharding, workload={"optimizer": "4 ms", "memory": memory})).costs

    assert held("none").resident == (16 * PARAMETERS,)
    assert held("zero-1").resident == ((2 + 2 + 3) * PARAMETERS,)
    assert held("zero-2", per_parameter=18).resident == ((2 + 1 + 3) * PARAMETERS,)
    assert held("none").optimizer == (4 * MS,) and held("zero-1").optimizer == (MS,)


def test_full_recomputation_keeps_the_message_only():
    memory = {"activation": "10 MB"}
    plain, full = (
        run(scenario(recompute=recompute, workload={"activation": "1 MB", "memory": memory}))
        for recompute in ("none", "full")
    )
    assert full.duration == plain.duration + 2 * 2 * MS
    assert plain.peak_memory[0] == 16 * PARAMETERS + 10 * 10**6
    assert full.peak_memory[0] == 16 * PARAMETERS + (1 + 10) * 10**6  # one micro-batch is computed again at a time
    many, few = (
        run(scenario(recompute=recompute, p=4, m=8, workload={"activation": "1 MB", "memory": memory}))
        for recompute in ("none", "full")
    )
    assert many.peak_memory[0] - few.peak_memory[0] == (4 * 10 - (4 * 1 + 10)) * 10**6


MIXTURE = {
    "kind": "transformer", "layers": 4, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024, "sequence": 64,
    "experts": {"count": 8, "active": 2, "ffn": 512},
}  # fmt: skip


def mixture(expert, data=4, tensor=1, **sections):
    return load({
        "model": MIXTURE,
        "parallel": {"expert": expert, "data": data, "tensor": tensor, "pipeline": 2},
        "cluster": {"gpus_per_node": 2 * data * tensor},
        "schedule": {"kind": "1f1b", "microbatches": 2},
        **sections,
    })  # fmt: skip


@pytest.mark.parametrize("sharding", ["none", "zero-1"])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("expert", [1, 2, 4])
def test_experts_gradients_are_reduced_among_their_own_holders(expert, tensor, sharding):
    chosen = mixture(expert, tensor=tensor, sharding=sharding)
    costs = parts_of(chosen).costs
    dense, experts = sum(costs.parameters), sum(costs.experts)
    assert experts > dense > 0
    passes = 1 if sharding == "zero-1" else 2
    result = run(chosen)
    assert result.bytes_gradients == tensor * passes * 4 * ((4 - 1) * dense + expert * (4 // expert - 1) * experts)
    gathered = tensor * 2 * ((4 - 1) * dense + expert * (4 // expert - 1) * experts)
    assert result.bytes_parameters == (gathered if sharding == "zero-1" else 0)


def test_every_nth_rank_holds_the_same_experts():
    channels = run(mixture(2)).timeline.channels
    pairs = {(one.sender, one.receiver) for one in channels if one.kind == "ring" and one.sender < 4}
    around = {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert pairs == around | {(0, 2), (2, 0), (1, 3), (3, 1)}


@pytest.mark.parametrize("algorithm", ["hierarchical", "parameter-server", "double-binary-tree", "auto"])
def test_experts_are_reduced_by_every_algorithm(algorithm):
    result = run(mixture(2, gradients={"algorithm": algorithm, "overlap": True, "bucket": "100 kB"}))
    rows = result.timeline.reductions
    assert np.all(rows["end"] > rows["start"])
    assert set(zip(rows["rank"].tolist(), rows["stage"].tolist(), strict=True)) == {
        (rank, rank // 4) for rank in range(8)
    }


@pytest.mark.parametrize(("sections", "said"), [
    ({"overlap": {"parameters": True}}, "overlap.parameters: is read where parameters are sharded only"),
    ({"overlap": {"tensor": 0.5}}, "overlap.tensor: is read with `model` only"),
    ({"sharding": "zero-4"}, 'sharding: unknown "zero-4"; did you mean'),
    ({"sharding": "zero-1", "gradients": {"algorithm": "auto"}}, "gradients.algorithm: zero-1 scatters gradients"),
    ({"sharding": "zero-3", "gradients": {"bucket": 1000}}, "gradients.bucket: zero-3 scatters gradients layer by"),
    ({"sharding": "zero-3", "overlap": {"parameters": False}, "gradients": {"overlap": True}},
     "gradients.overlap: is what `overlap.parameters` says where weights are sharded"),
    ({"sharding": "zero-1", "numerics": {}}, "sharding: the small model of `numerics` is not divided so"),
    ({"sharding": "zero-1", "workload": {"memory": {"per_parameter": 8}}},
     "workload.memory.per_parameter: zero-1 divides weights and the state of the optimizer; expected at least 14"),
    ({"recompute": "selective"}, "recompute: selective: repeats the attention core of a `model`; expected none"),
    ({"recompute": "full", "workload": {"recompute": 0.5}}, "recompute: full: repeats all of `forward`; give only one"),
])  # fmt: skip
def test_what_cannot_be_sharded_is_one_line(sections, said):
    with pytest.raises(ScenarioError) as error:
        scenario(**sections)
    assert said in str(error.value) and "\n" not in str(error.value)


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


GPT = {
    "kind": "transformer", "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "mlp": "gelu", "vocab": 8192,
    "sequence": 1024,
}  # fmt: skip


def gpt(sharding="zero-3", model=GPT, **sections):
    parallel = {"data": 4, **sections.pop("parallel", {})}
    schedule = {"kind": "1f1b", "microbatches": 2, **sections.pop("schedule", {})}
    return load({"model": model, "parallel": parallel, "schedule": schedule, "sharding": sharding, **sections})


@pytest.mark.parametrize("share", ["0.25", "0.5"])
def test_layers_lose_their_share_beside_collectives(share):
    free, slowed = (summary(run(gpt(efficiency={"slowed": lost}))) for lost in ("0", share))
    hidden = slowed["parameter_communication_s"]["hidden"] + slowed["gradient_communication_s"]["hidden"]
    assert hidden > 0
    assert slowed["busy_s"] - free["busy_s"] == pytest.approx(float(share) * hidden, rel=1e-6)


def test_layers_of_a_model_are_gathered_one_by_one():
    result = run(gpt())
    rows = result.timeline.gathers
    mine = rows["layer"][rows["rank"] == 0].tolist()
    assert mine == [*range(6), *reversed(range(6))] * 2
    parameters = sum(parts_of(gpt()).costs.parameters)
    assert result.bytes_parameters == 2 * 2 * 3 * 2 * parameters
    assert result.bytes_gradients == 2 * 3 * 4 * parameters


def test_layers_of_experts_are_gathered_among_their_holders():
    result = run(gpt(model=MIXTURE, parallel={"expert": 2}))
    costs = parts_of(gpt(model=MIXTURE, parallel={"expert": 2})).costs
    regular, experts = sum(costs.parameters), sum(costs.experts)
    assert result.bytes_gradients == 2 * 4 * (3 * regular + 2 * experts)
    assert result.bytes_parameters == 2 * 2 * 2 * (3 * regular + 2 * experts)


def test_two_layers_are_held_gathered_or_all_in_a_pipeline():
    one, many = (parts_of(gpt(parallel={"pipeline": p, "data": 2})) for p in (1, 2))
    divided = [parts_of(gpt(parallel={"pipeline": p, "data": 2}, sharding="zero-3", overlap={"parameters": False}))
               for p in (1, 2)]  # fmt: skip
    for mine, same in zip((one, many), divided, strict=True):
        assert mine.costs.resident == same.costs.resident
    (stage,) = one.costs.stages.values()
    largest = sorted(layer.parameters for layer in stage.layers)[-2:]
    assert one.costs.resident[0] == stage.resident + stage.transient + stage.reserved + 2 * sum(largest)
    for (rank, _), held in many.costs.stages.items():
        assert many.costs.resident[rank] == held.resident + held.transient + held.reserved + 2 * held.parameters


@pytest.mark.parametrize("sharding", SHARDED)
@pytest.mark.parametrize("kind", [kind for kind in schedules.names() if kind not in ("chimera", "dualpipe")])
def test_every_schedule_shards_on_a_single_rank(kind, sharding):
    sections = {"schedule": {"chunks": chunks_of(kind)}, "gradients": {"overlap": True}}
    result = run(scenario(sharding, kind, p=1, m=4, d=2, ahead=True, **sections))
    scatters = 1 if sharding == "zero-1" else 4
    assert result.bytes_gradients == scatters * 4 * PARAMETERS
    assert result.bytes_parameters == (2 * 4 if sharding == "zero-3" else 1) * 2 * PARAMETERS
    figures = summary(result)
    assert sum(figures["idle_s"].values(), figures["busy_s"]) == figures["step_time_s"]
    assert min(figures["idle_s"].values()) >= 0


def test_a_forward_waits_for_each_bucket_when_it_gets_there():
    """Four buckets of 250,000 parameters under DDP's rule: 0.375 ms each, needed after 0, ¼, ½ and ¾ of 2 ms."""
    gradients = {"bucket": "1 MB", "bucket_rule": "ddp"}
    result = run(scenario("zero-1", ahead=True, gradients=gradients))
    assert waits(result) == [(0, 375 * MS // 1000)]
    slow = run(scenario("zero-1", ahead=True, gradients=gradients, workload={"forward": "1 ms"}))
    eighths = [8 * (end - start) / MS for start, end in waits(slow)]
    assert eighths == [3, 1, 1, 1]
    whole = run(scenario("zero-1", ahead=True, gradients={"bucket": "1 MB"}))
    assert sum(end - start for start, end in waits(whole)) == 1500 * MS // 1000
    assert result.bytes_parameters == whole.bytes_parameters == 3 * 2 * PARAMETERS


def test_a_layer_takes_few_events():
    """On each rank: when its gather and its scatter are over, when it ends, and once more for what it has lost."""
    few, many = (run(gpt(schedule={"microbatches": m})) for m in (2, 6))
    passes = 4 * 4 * 2 * 6  # ranks, micro-batches more, forward and backward, layers
    assert many.events - few.events <= 4 * passes
