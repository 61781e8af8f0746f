"""Products in 32 bits: `precision: fp32` and `tf32`, whose elements have 4 bytes."""

import pytest
from support.tables import from_table

from hybrid_des import load
from hybrid_des.cluster import gpus
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of

SIZES = {"layers": 2, "hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 32000, "sequence": 4096}
MODEL = {"kind": "transformer", **SIZES}


def scenario(precision, **more):
    gpu = {"gpu": "h100", "gpus_per_node": 2}
    return load({"model": MODEL, "precision": precision, "schedule": {"microbatches": 1}, "cluster": gpu, **more})


def layers(precision, **more):
    return layer_parts(CostBasis.of(scenario(precision, **more)))


@pytest.mark.parametrize(("name", "tf32", "fp32"), [
    ("v100-16gb", None, 15.7), ("a100-80gb", 156, 19.5), ("h100", 494, 67), ("h200", 494, 67), ("b200", 1100, 75),
    ("gb200", 1250, 80), ("mi300x", 653.7, 163.4),
])  # fmt: skip
def test_the_catalogue_has_the_data_sheets_peaks(name, tf32, fp32):
    part = gpus.part(name)
    assert [peak and float(peak) / 1e12 for peak in (part.peak_tf32, part.peak_fp32)] == [tf32, fp32]


def product(layer, name):
    return next(took.forward for one, took in layer.operations if one.name == name)


@pytest.mark.parametrize(("precision", "slower"), [("tf32", 989 / 494), ("fp32", 989 / 67)])
def test_products_take_as_much_longer_as_their_peak_is_lower(precision, slower):
    usual, wide = layers("bf16"), layers(precision)
    for number, name in ((1, "MLP up"), (1, "attention"), (3, "logits")):
        assert product(wide[number], name) == pytest.approx(slower * product(usual[number], name), rel=1e-3)


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_elements_have_four_bytes(precision):
    usual, wide = layers("bf16")[1], layers(precision)[1]
    assert (wide.kept, wide.message) == (2 * usual.kept, 2 * usual.message)
    norms = "norms and residuals"
    assert product(wide, norms) == pytest.approx(2 * product(usual, norms))


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_messages_of_tensor_and_context_ranks_are_twice_as_large(precision):
    parallel = {"tensor": 2, "sequence": True}
    usual, wide = (layers(one, parallel=parallel)[1] for one in ("bf16", precision))
    assert [one.size for one in wide.forward] == [2 * one.size for one in usual.forward]


def test_weights_of_32_bits_have_no_further_copy():
    """4 bytes of weight, 4 of gradient and 8 of Adam's moments; in 16 bits 2, 4, and 12 with the copy."""
    states = [parts_of(scenario(one)).costs.stages[0, 0].states for one in ("bf16", "fp32")]
    assert [one.resident / one.parameters for one in states] == pytest.approx([18, 16])


@from_table
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ScenarioError) as caught:
        load({"model": MODEL, "schedule": {"microbatches": 1}, **given})
    assert message in str(caught.value)
