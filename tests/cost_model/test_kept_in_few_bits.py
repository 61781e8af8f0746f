"""Activations kept under 8 and 4 bits: what products convert is kept converted, where the framework does so."""

import pytest

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts

M, H, F = 128, 256, 512  # tokens of a micro-batch, hidden size, width of the MLP
WIDTH = 8 * 32 + 2 * 2 * 32  # queries, keys and values
DENSE = {"layers": 1, "hidden": H, "heads": 8, "kv_heads": 2, "ffn": F, "vocab": 1024, "sequence": M}
EXPERTS = {"count": 8, "active": 2, "ffn": 128}
BYTES = {"fp8-current": 1, "fp8-blockwise": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
# what a pass between products needs stays in 16 bits: inputs of both norms, queries, keys and values, results of the
# core, which the projection after it reads too, and both inputs of the activation
BETWEEN = 2 * (2 * H + WIDTH + H + 2 * F)


def kept(precision, recompute="none", model=None, **more):
    scenario = load({
        "model": {"kind": "transformer", **DENSE, **(model or {})}, "precision": precision, "recompute": recompute,
        "schedule": {"microbatches": 1}, "cluster": {"gpu": "b200"}, **more,
    })  # fmt: skip
    return layer_parts(CostBasis.of(scenario))[1].kept


@pytest.mark.parametrize("precision", BYTES)
def test_inputs_of_products_are_kept_as_they_were_converted(precision):
    assert kept("bf16") == M * (BETWEEN + 2 * (H + H + F))
    assert kept(precision) == pytest.approx(M * (BETWEEN + BYTES[precision] * (H + H + F)), abs=M)


def test_delayed_scaling_keeps_the_results_of_attention_twice():
    assert kept("fp8") == kept("fp8-current") + M * H


@pytest.mark.parametrize("written", ["pytorch", "compiled", "jax"])
def test_stacks_that_convert_again_keep_16_bits(written):
    assert kept("fp8", model={"written": written}) == kept("bf16", model={"written": written})


def test_experts_keep_converted_tokens_and_a_router_16_bits():
    saved = kept("bf16", model={"experts": EXPERTS}) - kept("fp8-current", model={"experts": EXPERTS})
    assert saved == M * (H + 2 * H + 2 * 128)  # of attention, the experts' tokens, and the results of activations
    shared = {"experts": {**EXPERTS, "shared_ffn": 64}}
    # the router keeps its input beside that of the shared expert
    assert kept("bf16", model=shared) - kept("fp8-current", model=shared) == saved + M * (64 - H)


# what is computed again is not kept in any bits, and the input of a module as a whole in 16, as the checkpoint's
@pytest.mark.parametrize(
    ("module", "model", "saved"),
    [
        ("layernorm", {}, F),
        ("mlp", {}, H),
        ("moe_act", {"experts": EXPERTS}, H + 2 * H),
        ("shared_experts", {"experts": {**EXPERTS, "shared_ffn": 64}}, H + 2 * H + 2 * 128),
        ("full", {}, 0),
    ],
)  # fmt: skip
def test_what_is_computed_again_is_not_kept_converted(module, model, saved):
    recompute = module if module == "full" else [module]
    assert kept("bf16", recompute, model) - kept("fp8-current", recompute, model) == M * saved


# Nemotron 3 Super, 120.6 B parameters (NVIDIA, arXiv 2604.12374)
SUPER = {
    "layers": 88, "hidden": 4096, "heads": 32, "kv_heads": 2, "head_size": 128, "mlp": "relu2", "vocab": 131072,
    "sequence": 8192, "mamba": {"heads": 128, "head_size": 64, "groups": 8, "state": 128, "conv": 4, "chunk": 128},
    "experts": {"count": 512, "active": 22, "ffn": 2688, "shared_ffn": 5376, "router_bias": True, "latent": 1024},
    "kinds": {"M": {"mixer": "mamba2", "experts": "none"}, "A": {"experts": "none"}, "E": {"mixer": "none"}},
    "pattern": " ".join("A".join(["MEMEMEM", *["EMEMEMEM"] * 2, *["EMEMEMEMEM"] * 4, "EMEMEMEM", "EMEMEMEME"])),
    "predictions": {"kinds": ["A", "E"], "passes": 2},
}  # fmt: skip


def test_nemotron_3_super_keeps_what_megatron_lm_measured():
    """With TP 2, EP 64 a step peaks 124.64 − 68.54 GB above what stays (Megatron-LM, nemotron3_super_release_gb200)."""
    scenario = load({
        "model": {"kind": "transformer", **SUPER}, "precision": "mxfp8",
        "schedule": {"kind": "1f1b", "microbatches": 1},
        "cluster": {"gpu": "gb200", "nodes": 16}, "sharding": "zero-1",
        "parallel": {"tensor": 2, "sequence": True, "expert": 64, "expert_tensor": 1, "data": 32},
    })  # fmt: skip
    layers = layer_parts(CostBasis.of(scenario))
    assert sum(layer.kept for layer in layers) + layers[-1].widest == pytest.approx(56.1e9, rel=0.1)
