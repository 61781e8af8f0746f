"""When gradients travel: buckets, the rules of PyTorch's DDP and of Megatron, and what compute hides of them."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from support import scenarios
from support.sizes import chunks_of

from hybrid_des import collectives
from hybrid_des.analysis.metrics import summary
from hybrid_des.analysis.table import table as table_of
from hybrid_des.collectives import codecs
from hybrid_des.errors import Refusal, ScenarioError
from hybrid_des.pipeline import schedules
from hybrid_des.planning.gradients import DONE, buckets_of
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run

MS = 10**9  # picoseconds
FP32 = codecs.find("fp32").build()
FREE = {"bandwidth": "inf", "latency": 0}
GBPS = {"bandwidth": "1 GB/s", "latency": 0}  # with two replicas a ring takes 1 ms a million bytes


def scenario(kind="1f1b", p=1, d=2, m=1, workload=(), cluster=(), schedule=(), **gradients):
    """A million parameters per rank, reduced as the last keywords say."""
    base = {
        "cluster": {"nvlink": GBPS, "infiniband": GBPS},
        "workload": {"forward": "2 ms", "backward": "4 ms", "parameters": 1e6},
        "gradients": gradients,
    }
    changes = {"workload": dict(workload), "cluster": dict(cluster), "schedule": dict(schedule)}
    return scenarios.scenario(kind, p, m, d, **scenarios.merged(base, changes))


def reductions(result):
    """(stage, bucket, start, end) on rank 0, in ms."""
    rows = result.timeline.reductions
    columns = [rows[name][rows["rank"] == 0].tolist() for name in ("stage", "bucket", "start", "end")]
    return [(stage, bucket, start / MS, end / MS) for stage, bucket, start, end in zip(*columns, strict=True)]


def test_buckets_sum_to_the_stage_and_keep_the_size():
    for parameters, size, rule in itertools.product((1, 1000, 10**5 + 7), (4, 1000, 2**18, 2**22), ("stage", "ddp")):
        buckets = buckets_of(parameters, FP32, size, rule, stage=0)
        assert sum(bucket.elements for bucket in buckets) == parameters
        assert all(0 < FP32.payload_bytes(bucket.elements) <= size for bucket in buckets)
        assert buckets[-1].leaves == DONE
        if size > 4:
            assert len(buckets) <= -(-parameters * 4 // size) + 1


def test_each_rule_is_the_one_of_its_namesake():
    def leaves(rule, stage, parameters=2**20, size=2**21):
        return [bucket.leaves for bucket in buckets_of(parameters, FP32, size, rule, stage)]

    assert leaves("stage", 0) == [1, 1]
    # DDP: the first bucket of 1 MiB, here a quarter of the gradients, then equal ones of at most `bucket`
    assert leaves("ddp", 0) == leaves("ddp", 3) == [Fraction(1, 4), Fraction(5, 8), 1]
    # Megatron: buckets on the first stage only
    assert leaves("megatron", 0) == [Fraction(1, 2), 1]
    assert leaves("megatron", 3) == [1]
    assert buckets_of(0, FP32, 2**20, "ddp", 0) == ((0, DONE),)


def test_first_bucket_of_ddp_has_its_own_cap():
    def sizes(first, tensors=()):
        return [bucket.elements for bucket in buckets_of(1000, FP32, 1600, "ddp", 0, tensors, first=first)]

    assert sizes(400) == [100, 300, 300, 300]
    assert sizes(None) == sizes(10**6) == [400, 300, 300]
    assert sizes(400, [250] * 4) == [250, 500, 250]
    assert sizes(None, [250] * 4) == [500, 500]
    with pytest.raises(ScenarioError, match="first_bucket"):
        scenario(first_bucket="2 MiB")
    assert scenario(first_bucket="none", bucket_rule="ddp").gradients.first_bucket is None


def test_ddp_cuts_a_resnet_as_its_profile_shows():
    """Buckets of a profiled DDP run on A100s (facebookresearch/HolisticTraceAnalysis, tests/data/nccl_data)."""
    model = {"model": "resnet-50", "schedule": {"kind": "1f1b"}, "parallel": {"data": 2}}
    parts = parts_of(load({**model, "gradients": {"bucket_rule": "ddp", "overlap": True}}))
    buckets = parts.reductions.buckets[0][0]
    assert [4 * bucket.elements for bucket in buckets] == [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]
    assert buckets[0].leaves == Fraction(2_049_000, 25_557_032)


def test_tensors_of_a_workload_are_cut_as_a_models():
    sizes = [size for size, _ in parts_of(load({"model": "resnet-50"})).costs.tensors[0]]
    workload = {"forward": 1, "backward": 2, "tensors": sizes}
    values = {"workload": workload, "parallel": {"data": 2}, "gradients": {"bucket_rule": "ddp", "overlap": True}}
    scenario = load(values)
    assert scenario.workload.parameters == 25_557_032
    buckets = parts_of(scenario).reductions.buckets[0][0]
    assert [4 * bucket.elements for bucket in buckets] == [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]


def test_chunks_hold_whole_tensors():
    workload = {"forward": 1, "backward": 2, "tensors": [[1, 5, 4, 1], [3, 3]]}
    values = {"workload": workload, "parallel": {"pipeline": 2}, "schedule": {"kind": "interleaved-1f1b", "chunks": 2,
              "microbatches": 2}}  # fmt: skip
    costs = parts_of(load(values)).costs
    assert costs.tensors == (((1, 0), (5, 0)), ((3, 0),), ((4, 0), (1, 0)), ((3, 0),))
    assert costs.parameters == (6, 3, 5, 3)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"tensors": []}, "workload.tensors: expected the parameters of each tensor, a list"),
        ({"tensors": [[1], []]}, "workload.tensors: expected a list of tensors for each pipeline rank"),
        ({"tensors": [0]}, "workload.tensors: must be at least 1, not 0"),
        ({"tensors": [[1], [2]]}, "workload.tensors: found a list of 2; expected 1"),
        ({"tensors": [1, 2], "parameters": 4}, "workload.parameters: is not the sum of `workload.tensors`"),
        ({"tensors": [1], "per": "model"}, "workload.tensors: found a list; `per: model`"),
    ],
)
def test_wrong_tensors_are_refused(workload, said):
    with pytest.raises(ScenarioError, match=said):
        load({"workload": {"forward": 1, "backward": 2, **workload}})


@pytest.mark.parametrize(("model", "parallel"), [
    ("mixtral-8x7b", {"data": 4, "tensor": 2, "expert": 4}), ("gpt2", {"pipeline": 2, "tensor": 4}), ("vit-b-16", {}),
    ("bert-large", {}), ("gpt2", {}),
], ids=str)  # fmt: skip
def test_tensors_sum_to_the_parameters_of_their_stage(model, parallel):
    costs = parts_of(
        load({"model": model, "parallel": parallel, "schedule": {"kind": "gpipe", "microbatches": 2}})
    ).costs
    sums = [tuple(map(sum, zip(*tensors, strict=True))) for tensors in costs.tensors]
    assert sums == costs.parts
    assert all(len(tensors) > 20 for tensors in costs.tensors)


def test_a_bucket_rule_brings_its_frameworks_default_size():
    def bucket(d=2, **gradients):
        chosen = scenario(d=d, **gradients)
        assert scenario_from(_plain(chosen)) == chosen
        return chosen.gradients.bucket

    assert bucket() is None
    assert bucket(bucket_rule="ddp") == 25 * 2**20
    assert bucket(bucket_rule="ddp", bucket="1 MB") == 10**6
    assert bucket(bucket_rule="ddp", bucket="none") is None
    assert bucket(bucket_rule="megatron") == 4 * 40_000_000
    assert bucket(bucket_rule="megatron", d=50, codec="bf16") == 2 * 50_000_000


def test_a_size_that_cuts_gradients_to_dust_is_refused():
    with pytest.raises(Refusal, match=r"gradients\.bucket: 3 bytes split a stage into 1333334 buckets"):
        run(scenario(bucket=3))


def test_without_overlap_all_buckets_leave_after_the_pipeline():
    result = run(scenario(m=2, bucket="1 MB"))
    assert result.duration == (2 * 6 + 4) * MS
    assert reductions(result) == [(0, k, 12 + k, 13 + k) for k in range(4)]


def test_a_bucket_leaves_when_its_last_op_ends():
    """Two chunks per rank: chunk 1's gradients travel while chunk 0's backward still runs."""
    chosen = {"kind": "interleaved-1f1b", "p": 2, "m": 2, "schedule": {"chunks": 2}}
    result = run(scenario(**chosen, overlap=True))
    ops = table_of(result.timeline)
    for stage, _, start, _ in reductions(result):
        done = ops[(ops["rank"] == 0) & (ops["stage"] == stage) & (ops["kind"] == "B")]["end_s"].max()
        assert start == pytest.approx(done * 1000)
    late = run(scenario(**chosen))
    assert result.duration < late.duration
    figures = summary(result)
    assert figures["gradient_communication_s"]["hidden"] > 0 == summary(late)["gradient_communication_s"]["hidden"]


def test_where_the_backward_is_split_the_weight_part_fills_buckets():
    result = run(scenario("zb-h1", p=2, m=4, overlap=True))
    ops = table_of(result.timeline)
    weights = ops[(ops["rank"] == 0) & (ops["kind"] == "W")]
    ((_, _, start, _),) = reductions(result)
    assert start == pytest.approx(weights["end_s"].max() * 1000)


def test_ddp_and_megatron_buckets_leave_during_the_last_backward():
    """One rank: F 0–2, B 2–6 ms; four buckets of 1 ms that become ready at 3, 4, 5, 6 ms."""
    stage = run(scenario(bucket="1 MB", overlap=True))
    assert reductions(stage) == [(0, k, 6 + k, 7 + k) for k in range(4)]
    assert stage.duration == 10 * MS
    for rule in ("ddp", "megatron"):
        result = run(scenario(bucket="1 MB", overlap=True, bucket_rule=rule))
        assert reductions(result) == [(0, k, 3 + k, 4 + k) for k in range(4)]
        assert result.duration == 7 * MS
        figures = summary(result)
        assert figures["gradient_communication_s"] == {"exposed": pytest.approx(1e-3), "hidden": pytest.approx(3e-3)}
        assert figures["busy_s"] + sum(figures["idle_s"].values()) == pytest.approx(figures["step_time_s"], rel=1e-15)


def test_gradients_of_earlier_micro_batches_never_travel():
    result = run(scenario(m=3, bucket="1 MB", overlap=True, bucket_rule="ddp"))
    assert reductions(result)[0][2] == 2 * 6 + 3
    assert result.bytes_gradients == 2 * 4 * 10**6


def test_overlap_moves_the_same_bytes_and_costs_nothing_when_idle():
    for kind in ("1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe"):
        size = {"p": 4, "m": 8, "d": 2}
        free = {"cluster": {"nvlink": FREE}} if kind == "dualpipe" else {}
        runs = [run(scenario(kind, **size, **free, bucket="1 MB", bucket_rule=rule, overlap=overlap))
                for rule, overlap in (("stage", False), ("stage", True), ("ddp", True))]  # fmt: skip
        assert len({one.bytes_gradients for one in runs}) == 1
        assert runs[1].duration <= runs[0].duration and runs[2].duration <= runs[1].duration


@pytest.mark.parametrize("rule", ["stage", "ddp", "megatron"])
def test_a_direction_without_micro_batches_does_not_delay_its_bucket(rule):
    """Chimera on two ranks: F0 0–2, F1 2–4, B1 4–8, B0 8–12 ms; a bucket is reduced in 4 ms."""
    result = run(scenario("chimera", p=2, d=1, m=1, bucket="none", overlap=True, bucket_rule=rule))
    assert reductions(result) == [(1, 0, 0, 12), (0, 0, 12, 16)]
    assert result.duration == 16 * MS


def test_steps_without_a_barrier_reduce_every_bucket_once_a_step():
    chosen = scenario(p=2, m=2, bucket="1 MB", overlap=True, bucket_rule="ddp").model_copy(
        update={"steps": 3, "barrier": False}
    )
    rows = run(chosen).timeline.reductions
    found = sorted(zip(*(rows[name].tolist() for name in ("step", "rank", "bucket")), strict=True))
    assert found == sorted(itertools.product(range(3), range(4), range(4)))


@pytest.mark.parametrize("name", [name for name in collectives.all_reduces() if name != "in-switch"])
def test_every_algorithm_trains_as_the_ring_does(name):
    """With numbers, in buckets that leave during the backward: replicas alike, gradients those of serial training."""
    numerics = {"layers": 4, "width": 8, "batch": 2, "dtype": "fp64"}
    base = {"p": 2, "d": 4, "m": 2, "workload": {"parameters": 1000}, "cluster": {"gpus_per_node": 4, "nodes": 2}}
    chosen = scenario(**base, algorithm=name, codec="fp64", bucket="500 B", overlap=True, bucket_rule="ddp")
    trained = scenario_from({**_plain(chosen), "numerics": numerics})
    figures = summary(run(trained))
    assert figures["replica_difference"] == 0
    assert figures["gradient_error"] < 1e-12


def _plain(chosen):
    from hybrid_des.scenario.export import to_mapping

    return to_mapping(chosen)


def test_servers_on_hosts_of_their_own_take_part_in_training():
    chosen = _plain(scenario(p=2, d=3, m=2, cluster={"gpus_per_node": 8}, algorithm="parameter-server", servers=2,
                             servers_on="hosts", codec="fp64", workload={"parameters": 1000}))  # fmt: skip
    result = run(
        scenario_from({**chosen, "numerics": {"layers": 4, "width": 8, "batch": 2, "dtype": "fp64"}, "steps": 2})
    )
    assert summary(result)["replica_difference"] == 0
    assert summary(result)["gradient_error"] < 1e-12
    table = table_of(result.timeline)
    served = table[table["rank"] >= 6]
    assert set(served["rank"]) == {6, 7} and served["replica"].isna().all()


def test_in_switch_adds_up_on_the_machines_whose_switches_do():
    def reduced(gpu):
        values = _plain(scenario(p=1, d=8, algorithm="in-switch", pieces=4))
        values["cluster"] = {"gpu": gpu}
        return run(scenario_from(values))

    result = reduced("h100")
    figures = summary(result)
    up_and_down = 5 / 4 * 4e6 / 450e9 * 1e12  # the last of four pieces comes down when all have gone up
    assert result.duration == pytest.approx(6 * MS + 1.5e6 + up_and_down, abs=8)
    assert figures["bytes_gradients"] == figures["bytes_switched"] == 8 * 4 * 10**6
    assert figures["messages"] == 8 * 4
    with pytest.raises(Refusal, match="node 0 has no in-network reduction"):
        reduced("a100-80gb")


def test_auto_takes_the_quickest_and_says_which():
    small = {"p": 1, "d": 8, "cluster": {"nvlink": {"bandwidth": "100 GB/s", "latency": "10 us"}}}
    for parameters in (100, 10**7):
        workload = {"parameters": parameters}
        chosen = run(scenario(**small, workload=workload, algorithm="auto"))
        times = {}
        for name in collectives.all_reduces():
            if name != "in-switch":
                times[name] = run(scenario(**small, workload=workload, algorithm=name)).duration
        assert chosen.duration == min(times.values()) == times[chosen.algorithm]
        assert summary(chosen)["algorithm"] == chosen.algorithm
        assert run(scenario(**small, workload=workload, algorithm="auto")).algorithm == chosen.algorithm
    assert run(scenario(d=1, algorithm="auto")).algorithm == "ring"


def test_auto_prefers_the_hierarchy_where_nodes_share_few_nics():
    cluster = {"nodes": 4, "gpus_per_node": 4, "nvlink": {"bandwidth": "300 GB/s", "latency": "1 us"},
               "infiniband": {"bandwidth": "10 GB/s", "latency": "5 us", "nics_per_node": 1}}  # fmt: skip
    result = run(scenario(d=16, cluster=cluster, workload={"parameters": 10**7}, algorithm="auto"))
    assert result.algorithm == "hierarchical"


def test_servers_without_hosts_are_refused_with_what_would_be_right():
    with pytest.raises(Refusal, match="needs 1 GPU places that no rank uses; the cluster has 0"):
        run(scenario(algorithm="parameter-server", servers_on="hosts"))


@pytest.mark.parametrize("kind", schedules.names())
def test_every_schedule_reduces_every_stage_once_under_overlap(kind):
    result = run(scenario(kind, p=4, m=8, schedule={"chunks": chunks_of(kind)}, overlap=True))
    rows = result.timeline.reductions
    held = sum(len(result.plan.chunks_of(rank)) for rank in range(4)) * 2
    assert len(rows["rank"]) == held
    assert np.all(rows["end"] >= rows["start"])
