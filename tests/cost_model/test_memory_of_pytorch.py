"""Memory as PyTorch's stacks hold it: the optimizer's state, logits, whole gradients, checkpoints by operators."""

import pytest

from hybrid_des import simulate
from hybrid_des.errors import ScenarioError
from hybrid_des.scenario.loading import load

MODEL = {"layers": 2, "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 4096, "sequence": 512, "tied": False}
ONE = {
    "model": MODEL,
    "cluster": {"gpu": "h100"},
    "batch": 8,
    "parallel": {"data": 1},
    "schedule": {"microbatch_size": 2},
}
SHARDED = {**ONE, "parallel": {"data": 2}, "sharding": "zero-3"}
TOKENS = 512 * 2
EXPERTS = {**MODEL, "experts": {"count": 8, "active": 2, "ffn": 256}, "qk_norm": True}


def figures(*changes):
    values = {}
    for change in changes:
        values |= change
    return simulate(load(values)).summary


def part(name, *changes):
    (parts,) = {tuple(each[name] for each in [figures(*changes)["memory_parts_bytes"]])}
    return parts[0]


def test_the_optimizer_keeps_as_many_bytes_per_parameter_as_stated():
    usual, short = figures(ONE), figures(ONE, {"optimizer": {"state": 4}})
    count = usual["model_parameters"]
    assert part("optimizer", ONE) == 12 * count
    assert part("optimizer", ONE, {"optimizer": {"state": 4}}) == 4 * count
    assert short["step_time_s"] < usual["step_time_s"]  # of which it reads and writes less


def test_replicas_divide_the_stated_state():
    count = figures(SHARDED)["model_parameters"]
    assert part("optimizer", SHARDED, {"optimizer": {"state": 8}}) == pytest.approx(8 * count / 2, rel=1e-6)


def test_a_chunked_loss_holds_hardly_any_logits():
    compiled, chunked = (figures(ONE, {"operators": {"loss": how}}) for how in ("compiled", "chunked"))
    inputs = 2 * 2 * TOKENS * 512  # of the last norm and of the logits, gone before the backward of blocks
    assert max(compiled["peak_memory_bytes"]) - max(chunked["peak_memory_bytes"]) == 4 * TOKENS * 4096 + inputs
    assert compiled["step_time_s"] == chunked["step_time_s"]


def test_tensor_ranks_may_gather_all_logits():
    """Each then has 4 bytes per logit of the whole vocabulary, and received half of them in 16 bits."""
    halves = {"parallel": {"tensor": 2}, "operators": {"loss": "compiled"}}
    whole = {**halves, "operators": {"loss": "compiled", "logits": "gathered"}}
    sharded, gathered = figures(ONE, halves), figures(ONE, whole)
    assert max(gathered["peak_memory_bytes"]) - max(sharded["peak_memory_bytes"]) == 4 * TOKENS * 4096 // 2
    more = gathered["bytes_tensor"] - sharded["bytes_tensor"]
    assert more == 4 * 2 * (2 * TOKENS * 4096 // 2)  # micro-batches, ranks, bytes that each sends
    assert gathered["step_time_s"] > sharded["step_time_s"]


def test_whole_gradients_are_summed_until_the_last_micro_batch():
    every, once = figures(SHARDED), figures(SHARDED, {"gradients": {"scattered": "step"}})
    assert part("gradients", SHARDED, {"gradients": {"scattered": "step"}}) == 2 * part("gradients", SHARDED)
    assert every["bytes_gradients"] == 2 * once["bytes_gradients"] > 0  # of two micro-batches
    alone = {**SHARDED, "batch": 4}  # one micro-batch each: nothing to sum
    assert figures(alone, {"gradients": {"scattered": "step"}})["step_time_s"] == figures(alone)["step_time_s"]


@pytest.mark.parametrize("more", [{}, {"sharding": "zero-1"}, {"sharding": "zero-3", "parallel": {"pipeline": 2}}])
def test_whole_gradients_are_for_layers_that_are_scattered(more):
    with pytest.raises(ScenarioError, match=r"gradients.scattered: is read with zero-2 and zero-3 outside pipelines"):
        load({**ONE, "schedule": {"kind": "1f1b"}, **more, "gradients": {"scattered": "step"}})


def test_checkpoints_by_operators_keep_attention_alone_beside_experts():
    """Its input, queries, values and results of attention; with experts on other ranks also what was exchanged."""
    one = {**ONE, "model": EXPERTS, "recompute": ["ops"], "parallel": {"data": 2}}
    h, kept = 512, part("activations", one)
    ends = part("activations", one, {"model": {**EXPERTS, "layers": 1}})
    assert kept - ends == TOKENS * 2 * (h + h + h + h)
    both = {"parallel": {"data": 2, "expert": 2}}
    apart = part("activations", one, both) - part("activations", one, both, {"model": {**EXPERTS, "layers": 1}})
    assert apart == TOKENS * 2 * (4 * h + 2 * h)  # two experts per token
    again = figures(one)["hardware_flop_per_step"] - figures(one, {"recompute": "none"})["hardware_flop_per_step"]
    products = 2 * 2 * (h * h + 8 * h + 2 * 3 * h * 256)  # of two blocks: results of attention, router, experts
    assert again == products * TOKENS * 4  # eight samples


@pytest.mark.parametrize("written", ["pytorch", "compiled"])
def test_experts_keep_results_that_weights_of_a_router_multiply(written):
    """Two results of each token in both blocks, unless the backward computes the experts again."""
    for recompute, blocks in [("none", 2), (["moe"], 0), (["ops"], 0), (["moe_act"], 2)]:
        each = [
            part("activations", ONE, {"model": {**EXPERTS, "written": how}, "recompute": recompute})
            for how in ("megatron", written)
        ]
        assert each[1] - each[0] == blocks * TOKENS * 2 * 2 * 512


def test_a_million_tokens_fit_as_reported():
    """Qwen3 8B on 8 H100s, context 8, states sharded, inputs of blocks on the host: 56.2 GB (huggingface/trl 6846)."""
    model = {"layers": 36, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_size": 128, "ffn": 12288, "vocab": 151936,
             "sequence": 1048560, "written": "pytorch", "qk_norm": True}  # fmt: skip
    found = figures({
        "model": model, "cluster": {"gpu": "h100"}, "parallel": {"context": 8}, "batch": 1, "sharding": "zero-3",
        "recompute": "full", "offload": {"activations": 1}, "operators": {"blocks": "eager", "loss": "chunked"},
    })  # fmt: skip
    assert max(found["peak_memory_bytes"]) == pytest.approx(56.2e9, rel=0.1)
    assert not found["out_of_memory"]


def test_checkpoints_by_operators_with_experts_fit_as_reported():
    """Qwen3 30B-A3B on 8 B200s with torchtitan, micro-batches of 8: 141.8 GiB (mlc-ai/pith-train, issue 79)."""
    found = figures({
        "model": {"base": "qwen3-30b-a3b", "sequence": 8192}, "cluster": {"gpu": "b200"}, "parallel": {"data": 8},
        "schedule": {"microbatch_size": 8}, "batch": 64, "sharding": "zero-3", "recompute": ["ops"],
        "operators": {"loss": "chunked"},
    })  # fmt: skip
    assert max(found["peak_memory_bytes"]) == pytest.approx(141.8 * 2**30, rel=0.1)
    assert not found["out_of_memory"]


def test_a_pipeline_with_states_on_hosts_fits_as_reported():
    """535B on 192 H100s, 65,536 tokens, activations and optimizer on hosts (marin-community/marin, issue 9277).

    Its pipeline.py joins the product of the vocabulary and the loss (fused_linear_softmax_cross_entropy_loss); sizes
    are near those of the report, whose experts work on a narrower width.
    """
    model = {"layers": 48, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 12288, "vocab": 128256, "sequence": 65536,
             "window": 2048, "window_every": 4,
             "experts": {"count": 384, "active": 8, "ffn": 1536, "shared": 1}}  # fmt: skip
    hero = {
        "model": model, "cluster": {"gpu": "h100", "nodes": 24}, "batch": 384, "schedule": {"kind": "1f1b"},
        "parallel": {"pipeline": 24, "data": 8, "expert": 8, "order": ["tensor", "data", "pipeline"]},
        "recompute": "full", "offload": {"optimizer": 1, "activations": 1}, "operators": {"loss": "chunked"},
    }  # fmt: skip
    assert not figures(hero)["out_of_memory"]
    assert figures(hero, {"offload": {"optimizer": 1}})["out_of_memory"]
    assert figures(hero, {"operators": {"loss": "fused"}})["out_of_memory"]


@pytest.mark.parametrize(
    ("layout", "samples", "gib"),
    [({"data": 2}, 2, 62.4), ({"tensor": 2, "data": 2}, 4, 45.9), ({"tensor": 4, "data": 8}, 4, 27.6)],
)
def test_states_of_16_bits_and_whole_logits_take_as_reported(layout, samples, gib):
    """Llama 3 8B on H200s with KempnerForge, GiB (its benchmarks/mfu_scaling, April 2026).

    Parameters and Adam's moments are of 16 bits, gradients whole 32-bit sums over micro-batches, and every tensor rank
    has the logits of the whole vocabulary and their gradients, each twice in 16 bits: 8 bytes.
    """
    found = figures({
        "model": {"base": "llama3-8b", "sequence": 4096, "written": "pytorch"},
        "cluster": {"gpu": "h200", "nodes": 8, "gpus_per_node": 4}, "parallel": {"sequence": True, **layout},
        "schedule": {"microbatches": 8 // samples, "microbatch_size": samples}, "sharding": "zero-3",
        "recompute": "full", "gradients": {"scattered": "step"}, "optimizer": {"state": 4},
        "operators": {"blocks": "fused", "loss": "fused", "logits": "gathered"},
    })  # fmt: skip
    assert max(found["peak_memory_bytes"]) == pytest.approx(gib * 2**30, rel=0.12)
