"""Sharding on two levels, and in pipelines: who divides what, what is sent, and what a rank then holds."""

import pytest

from hybrid_des import simulate
from hybrid_des.errors import HybridDesError, ScenarioError

MODEL = {
    "kind": "transformer", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "sequence": 1024,
}  # fmt: skip
EXPERTS = {**MODEL, "experts": {"count": 8, "active": 2, "ffn": 1024}}
GRADIENTS = {"overlap": False, "bucket": "none"}


def summary(sharding="zero-3", model=MODEL, nodes=2, batch=32, **values):
    parallel = {"data": 16, **values.pop("parallel", {})}
    overlap = {"parameters": False} if sharding != "none" else {}
    usual = {
        "name": "shards", "cluster": {"gpu": "h100", "nodes": nodes, "gpus_per_node": 8}, "model": model,
        "parallel": parallel, "schedule": {"kind": "1f1b"}, "batch": batch, "sharding": sharding,
        "overlap": overlap, "gradients": GRADIENTS,
    }  # fmt: skip
    return simulate({**usual, **values}).summary


def figures(found):
    return found["step_time_s"], found["peak_memory_bytes"], found["bytes_gradients"], found["messages"]


@pytest.mark.parametrize("model", [MODEL, EXPERTS], ids=["dense", "experts"])
def test_one_group_is_plain_sharding(model):
    parallel = {"expert": 8} if model is EXPERTS else {}
    alone = summary(model=model, parallel=parallel)
    assert figures(summary(model=model, parallel=parallel, shards={"ranks": 16})) == figures(alone)


def test_groups_of_one_rank_divide_nothing():
    alone, none = summary(shards={"ranks": 1}), summary("none")
    assert figures(alone) == figures(none)


def test_a_group_holds_its_share():
    """Weights, gradients and state in groups of 8 are twice those over 16; with zero-1 outside the state is not."""
    whole, node, divided = (
        summary(shards=shards)["memory_parts_bytes"] for shards in ({}, {"ranks": 8}, {"ranks": 8, "outside": "zero-1"})
    )
    for part in ("parameters", "gradients", "optimizer"):
        assert node[part] == pytest.approx(2 * whole[part], rel=1e-4)
    assert divided["parameters"] == node["parameters"]
    assert divided["optimizer"] == pytest.approx(whole["optimizer"], rel=1e-4)


def test_gathers_stay_within_nodes_and_shares_are_summed_once():
    """16 ranks gather P in groups of 8; their shares P/8 are then summed once between two nodes."""
    whole, node = summary(), summary(shards={"ranks": 8})
    parameters = node["model_parameters"]
    passes = 2 * 2  # of two micro-batches, forward and backward
    assert whole["bytes_parameters"] == pytest.approx(passes * 15 * 2 * parameters, rel=0.02)
    assert node["bytes_parameters"] == pytest.approx(passes * 2 * 7 * 2 * parameters, rel=0.02)
    scattered = 2 * 2 * 7 * 4 * parameters  # per micro-batch, in two groups, of 4 bytes
    between = 8 * 2 * 4 * parameters / 8  # an all-reduce of two members in each of eight groups
    assert node["bytes_gradients"] == pytest.approx(scattered + between, rel=0.02)


def test_resharded_pipelines_gather_for_every_use():
    parallel = {"pipeline": 2, "data": 8}
    kept = summary(parallel=parallel, shards={"reshard": False})
    again = summary(parallel=parallel, shards={"reshard": True})
    micro_batches = 32 // 8
    assert again["bytes_parameters"] == pytest.approx(2 * micro_batches * kept["bytes_parameters"], rel=0.02)
    assert again["bytes_gradients"] == pytest.approx(micro_batches * kept["bytes_gradients"], rel=0.02)
    assert again["peak_memory_bytes"][0] < kept["peak_memory_bytes"][0]
    assert again["step_time_s"] > kept["step_time_s"]


def test_a_pipeline_keeps_weights_unless_told_otherwise():
    parallel = {"pipeline": 2, "data": 8}
    assert figures(summary(parallel=parallel)) == figures(summary(parallel=parallel, shards={"reshard": False}))


def test_outside_pipelines_weights_that_stay_are_gathered_once():
    kept, again = summary(shards={"reshard": False}), summary()
    assert again["bytes_parameters"] == pytest.approx(4 * kept["bytes_parameters"], rel=1e-6)
    held = [each["memory_parts_bytes"]["transients"] for each in (kept, again)]
    assert held[0] > held[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shards": {"ranks": 5}}, "the 16 ranks that hold the same parameters cannot be groups of 5"),
        ({"sharding": "zero-1", "shards": {"ranks": 8}}, "zero-2 or zero-3"),
        ({"sharding": "zero-1", "shards": {"reshard": True}}, "is read with zero-3"),
        ({"shards": {"outside": "zero-1"}}, "is read with `shards.ranks`"),
        ({"shards": {"ranks": 0}}, "shards.ranks"),
    ],
)
def test_groups_that_cannot_be_are_one_line(values, message):
    with pytest.raises(ScenarioError) as error:
        summary(**values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_two_copies_of_a_stage_cannot_reshard():
    with pytest.raises(HybridDesError, match="keeps two copies of every stage"):
        summary(parallel={"pipeline": 2, "data": 8}, schedule={"kind": "chimera"}, shards={"reshard": True})


@pytest.mark.parametrize("sharding", ["zero-2", "zero-3"])
@pytest.mark.parametrize("model", [MODEL, EXPERTS], ids=["dense", "experts"])
def test_groups_in_pipelines_gather_and_scatter_once(sharding, model):
    """One group of all is plain sharding; each of two groups sends among itself, and sums its shares with the other."""
    parallel, sent = {"pipeline": 2, "data": 8}, ("bytes_parameters", "bytes_gradients", "peak_memory_bytes")
    plain, whole, halves = (
        summary(sharding, model, parallel=parallel, shards=shards) for shards in ({}, {"ranks": 8}, {"ranks": 4})
    )
    assert [whole[name] for name in sent] == [plain[name] for name in sent]
    assert halves["bytes_parameters"] * 7 == pytest.approx(plain["bytes_parameters"] * 6, rel=1e-3)  # 2 · 3 of 7 shares
    assert halves["bytes_gradients"] * 7 == pytest.approx(plain["bytes_gradients"] * 8, rel=1e-3)  # 2 more between
    assert halves["peak_memory_bytes"] > plain["peak_memory_bytes"]


REPORTED = {
    "model": {"base": "qwen3-30b-a3b", "sequence": 4096, "written": "compiled"},
    "nodes": 8, "batch": 1024, "schedule": {"kind": "dualpipe-v", "microbatch_size": 1},
    "parallel": {"pipeline": 4, "data": 16, "expert": 8, "order": ["tensor", "data", "pipeline"]},
    "experts": {"dispatcher": "all-to-all"}, "optimizer": {"state": 10},
}  # fmt: skip


@pytest.mark.slow
def test_groups_within_nodes_are_as_much_faster_as_measured():
    """Qwen3-30B-A3B on 64 H100s: 14.2 to 14.6 s in groups of all, 10.7 s within nodes (mlc-ai/pith-train, PR 40).

    So they are if every micro-batch gathers and scatters, which its source does of embedding and logits only.
    """
    gradients = {"codec": "bf16"}
    whole, node = (summary(**REPORTED, gradients=gradients, shards={"reshard": True, **more})["step_time_s"]
                   for more in ({}, {"ranks": 8}))  # fmt: skip
    assert 14.2 - 10.7 - 0.2 < whole - node < 14.6 - 10.7 + 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "gib"), [({}, 48.3), ({"ranks": 8}, 53.9)])
def test_groups_of_a_pipeline_with_experts_hold_as_reported(shards, gib):
    """Qwen3-30B-A3B on 64 H100s, FSDP and HSDP (mlc-ai/pith-train, pull request 40; GiB in its log, pretrain_lm.py).

    Weights of layers stay gathered and gradients whole, of 32 bits, until a step ends (set_requires_gradient_sync in
    pithtrain/dualpipe/dualpipev.py; MixedPrecisionPolicy in modules/training.py); shards have 32 bits, and Adam's
    moments too: 12 bytes, of which 2 are counted as weights.
    """
    found = summary(**REPORTED, gradients={"codec": "fp32"}, shards=shards)
    assert max(found["peak_memory_bytes"]) == pytest.approx(gib * 2**30, rel=0.1)
