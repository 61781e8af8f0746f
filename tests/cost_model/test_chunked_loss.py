"""Losses that take some tokens after the other: their logits, and whether a backward computes these again."""

import pytest

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import ScenarioError

M, H, V = 4096, 1024, 32000
MODEL = {"kind": "transformer", "layers": 1, "hidden": H, "heads": 8, "ffn": 4096, "vocab": V, "sequence": M}


def logits(tensor=1, model=None, **operators):
    scenario = load({
        "model": {**MODEL, **(model or {})}, "schedule": {"microbatches": 1}, "cluster": {"gpu": "h100"},
        "operators": {"loss": "chunked", **operators}, "parallel": {"tensor": tensor},
    })  # fmt: skip
    return layer_parts(CostBasis.of(scenario))


@pytest.mark.parametrize("tensor", [1, 4])
def test_logits_of_a_chunk_take_twelve_bytes_each(tensor):
    """As logarithms, their gradients and those of the logits, all in 32 bits."""
    without, chunked = logits(tensor)[-1], logits(tensor, loss_chunk=512)[-1]
    assert chunked.widest == 12 * 512 * V // tensor
    assert chunked.transient - without.transient == chunked.widest
    assert (chunked.kept, chunked.times, chunked.again) == (without.kept, without.times, 0)


def test_a_chunk_is_at_most_the_micro_batch():
    assert logits(loss_chunk=10 * M)[-1].widest == 12 * M * V


def test_a_backward_may_compute_the_logits_again():
    layer = logits(loss_chunk=512, loss_again=True)[-1]
    product = {one.name: took.forward for one, took in layer.operations}
    assert layer.again == pytest.approx(product["logits"] + product["loss"])


def test_predictions_repeat_it():
    *_, prediction, last = logits(loss_chunk=512, loss_again=True, model={"predictions": 1})
    assert prediction.again == pytest.approx(last.again)
    assert prediction.widest == last.widest


@pytest.mark.parametrize(("key", "value"), [("loss_chunk", 512), ("loss_again", True)])
def test_only_chunked_losses_have_chunks(key, value):
    with pytest.raises(ScenarioError, match=f"operators.{key}: is read with `loss: chunked` only"):
        logits(loss="fused", **{key: value})
