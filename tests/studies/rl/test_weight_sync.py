"""Weight syncs as messages: who sends what, and how long it takes on links whose figures are known."""

import csv
from collections import Counter
from fractions import Fraction

import pytest
from support.paths import SHARED

from hybrid_des import load
from hybrid_des.errors import UsageError
from hybrid_des.studies.rl.weight_sync import MECHANISMS, in_line, messages_between, sync_ps, weights_of

NONE = Fraction(0)
NIC = 0.96 * 50e9  # bytes per second that NCCL reaches of an NDR port
ROWS = SHARED / "rl" / "weight_sync.csv"


def trainer(base="qwen2.5-0.5b", nodes=2, sharding="zero-1", cluster=(), shards=(), **parallel):
    several = "pipeline" in parallel
    return load(
        {
            "cluster": {"gpu": "h100", "nodes": nodes, **dict(cluster)},
            "model": {"base": base},
            "parallel": {**parallel, **({"stages": "balanced"} if several else {})},
            "sharding": sharding,
            "shards": dict(shards),
            "batch": 2 * parallel.get("data", 1) * parallel.get("pipeline", 1),
            **({"schedule": {"kind": "1f1b"}} if several else {}),
        }
    )


@pytest.mark.parametrize(
    "parallel",
    [
        {"data": 8, "sharding": "zero-3"},
        {"data": 8},
        {"tensor": 2, "data": 2, "pipeline": 2},
        {"base": "qwen3-30b-a3b", "tensor": 2, "data": 2, "pipeline": 2, "expert": 2},
        {"base": "qwen3-30b-a3b", "data": 8, "expert": 4, "sharding": "zero-3"},
    ],
)
@pytest.mark.parametrize("tensor", [1, 4, 8])
def test_every_engine_gpu_receives_its_part_of_the_weights(parallel, tensor):
    weights = weights_of(trainer(**parallel))
    received = Counter()
    for (_, gpu), size in messages_between(weights.parts, range(8, 16), tensor).items():
        received[gpu] += size
    assert sum(received.values()) == weights.bytes * 8 // tensor
    assert all(abs(size - weights.bytes / tensor) <= len(weights.parts) for size in received.values())


def test_shards_of_all_ranks_are_the_whole_model():
    weights = weights_of(trainer("qwen3-30b-a3b", tensor=2, data=2, pipeline=2, expert=2))
    assert weights.bytes == 2 * 30532122624
    for part in weights.parts:
        assert len({len(copy) for copy in part.copies}) == 1
    assert {gpu for part in weights.parts for copy in part.copies for gpu in copy} == set(range(8))


@pytest.mark.parametrize(
    ("parallel", "copies"),
    [({}, 8), ({"sharding": "zero-3"}, 1), ({"sharding": "zero-3", "shards": {"ranks": 4}}, 2)],
)
def test_sharded_weights_have_as_many_copies_as_groups(parallel, copies):
    """Eight ranks, each with a copy, or groups of eight or four that share one."""
    (part,) = weights_of(trainer(data=8, **parallel)).parts
    assert len(part.copies) == copies


def test_matrices_of_experts_are_tensors_of_their_own():
    """A layer of Qwen3-30B has two norms, four tensors of attention, a router, and two matrices of 128 experts."""
    assert weights_of(trainer("qwen3-30b-a3b", data=1)).tensors == 48 * (2 + 4 + 1 + 2 * 128) + 3


def test_a_broadcast_takes_the_time_of_its_slowest_link():
    scenario = trainer("qwen3-8b", data=1)
    alone = 2 * 8190735360 / NIC
    for mechanism in ("gather", "buckets"):
        assert sync_ps(scenario, range(8, 16), 1, mechanism, NONE) / 1e12 == pytest.approx(alone, rel=0.03)


def test_shards_use_all_adapters_of_a_node():
    """Eight ranks of the trainer each send an eighth of the model to one rank of the engine."""
    for sharding in ("zero-3", "zero-1"):
        took = sync_ps(trainer("qwen3-8b", sharding=sharding, data=8), range(8, 16), 8, "shards", NONE) / 1e12
        assert took == pytest.approx(2 * 8190735360 / 8 / NIC, rel=0.01)


def test_gathered_weights_are_gathered_before_they_are_sent():
    alone = sync_ps(trainer("qwen3-8b", data=1), range(8, 16), 1, "gather", NONE)
    assert sync_ps(trainer("qwen3-8b", sharding="zero-3", data=8), range(8, 16), 1, "gather", NONE) > alone


def test_buckets_leave_a_line_of_stages_one_by_one():
    assert in_line([(3, 5, 2)]) == 10
    assert in_line([(3, 5, 2)] * 7) == 10 + 6 * 5
    assert in_line([(1, 1, 4), (9, 1, 4)]) == 10 + 1 + 4


def test_loading_is_hidden_by_buckets_only():
    scenario, load_time = trainer("qwen3-8b", data=1), Fraction(1, 1000)
    whole = int(load_time * weights_of(scenario).tensors * 10**12)
    without, loaded = (
        {one: sync_ps(scenario, range(8, 16), 8, one, time) for one in MECHANISMS} for time in (NONE, load_time)
    )
    assert loaded["gather"] == without["gather"] + whole
    assert loaded["shards"] == without["shards"] + whole
    assert max(whole, without["buckets"]) < loaded["buckets"] < without["buckets"] + whole


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_faster_links_do_not_lengthen_a_sync(mechanism):
    slow, fast = (
        sync_ps(
            trainer("qwen3-8b", sharding="zero-3", data=8, cluster={"infiniband": {"bandwidth": f"{rate} GB/s"}}),
            range(8, 16), 4, mechanism, NONE,
        )
        for rate in (25, 50)
    )  # fmt: skip
    assert fast < slow


def test_weights_that_are_in_place_need_no_message():
    assert sync_ps(trainer(nodes=1, tensor=2, data=2), range(4), 2, "shards", NONE) == 0


@pytest.mark.parametrize(
    ("gpus", "tensor", "mechanism", "said"),
    [
        (range(8, 16), 1, "gathers", 'rl.sync.mechanism: unknown "gathers"; did you mean "gather"?'),
        (range(8, 16), 3, "gather", "8 GPUs are not replicas of 3"),
        (range(0), 1, "gather", "0 GPUs are not replicas of 1"),
    ],
)
def test_what_is_no_sync_is_refused_in_one_line(gpus, tensor, mechanism, said):
    with pytest.raises(UsageError) as error:
        sync_ps(trainer(data=8), gpus, tensor, mechanism, NONE)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.skipif(not ROWS.exists(), reason="the rows are not part of the project")
def test_a_load_time_of_one_model_predicts_another():
    """NeMo-RL, shard to shard on H100s: what the smaller model takes per tensor gives the larger one's time."""
    with ROWS.open(encoding="utf-8") as file:
        seconds = {row["model"]: float(row["seconds"]) for row in csv.DictReader(file)
                   if row["mechanism"] == "shard to shard"}  # fmt: skip
    small = trainer("qwen3-30b-a3b", nodes=4, data=8, expert=8, pipeline=2)
    large = trainer("deepseek-v3", nodes=64, data=16, expert=16, pipeline=16)
    alone = sync_ps(small, range(16, 32), 8, "shards", NONE) / 1e12
    assert alone < seconds["Qwen3-30B-A3B"]
    load_time = Fraction((seconds["Qwen3-30B-A3B"] - alone) / weights_of(small).tensors)
    predicted = sync_ps(large, range(256, 512), 32, "shards", load_time) / 1e12
    assert predicted == pytest.approx(seconds["DeepSeek-V3"], rel=0.1)
