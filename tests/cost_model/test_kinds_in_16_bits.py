"""Kinds of blocks whose products stay in 16 bits, such as the last ones (Megatron-LM: --num-layers-at-end-in-bf16)."""

import pytest

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts

MODEL = {"kind": "transformer", "layers": 4, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 4096, "sequence": 2048}
KINDS = {"kinds": {"few": {}, "plain": {"quantised": False}}, "pattern": "few*3 plain"}


def layers(precision, **model):
    scenario = load({
        "model": {**MODEL, **model}, "precision": precision, "schedule": {"microbatches": 1},
        "cluster": {"gpu": "b200"}, "parallel": {"tensor": 2, "sequence": True},
        "efficiency": {"gemm_16bit": 0.5, "gemm": 0.5},
    })  # fmt: skip
    return layer_parts(CostBasis.of(scenario))


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_kinds_in_16_bits_cost_what_they_do_in_bf16(precision):
    """Times, messages and what is kept; the others cost what they do without such kinds."""
    mixed, few, plain = layers(precision, **KINDS), layers(precision), layers("bf16")
    assert mixed[4] == plain[4] != few[4]
    assert mixed[:4] == few[:4]


def test_predictions_may_stay_in_16_bits():
    mixed, plain = (layers(one, **KINDS, predictions={"kinds": ["plain"]})[5] for one in ("mxfp8", "bf16"))
    assert (mixed.times, mixed.kept, mixed.forward) == (plain.times, plain.kept, plain.forward)
