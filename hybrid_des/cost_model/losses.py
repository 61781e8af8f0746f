"""Logits and their loss, and activations' gradients: bytes that exist at a time; what a backward computes again.

Bytes of a logit and its gradient at the same time are 8 of 32 bits each; 4 where a compiler joins all that is between
16-bit ones; 12 for logarithms, their gradients and those of the logits, all of 32 bits; over tensor ranks 16, with an
exponential and a sum. A chunked loss has 12 bytes each of some tokens only: Liger's forms gradients in the forward
(linkedin/Liger-Kernel, fused_linear_cross_entropy), others compute the logits of each chunk again in the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.elementwise import larger, times_up
from hybrid_des.cost_model.operation_times import ELEMENT, Times
from hybrid_des.workload.models.layer import Layer
from hybrid_des.workload.models.operations import Operation

EIGHT = {"fused": Fraction(1), "compiled": Fraction(4, 8), "eager": Fraction(12, 8)}  # bytes, relative to 8
DIVIDED = Fraction(16, 8)


def widest_bytes(layer: Layer, basis: CostBasis) -> int:
    """Bytes that exist only while the backward of a layer runs: activations' gradients, or logits and theirs."""
    if layer.place != "last":
        tile = basis.operators.mlp_tile if any(one.name == "mlp" for one in layer.modules) else None
        return times_up(at_a_time(tile, basis), layer.transient * Fraction(1, basis.parallel.tensor))
    divided = 1 if gathers_logits(basis) else basis.parallel.tensor
    if basis.operators.loss != "chunked":
        return times_up(basis.tokens, layer.transient * _relative(basis) / divided)
    if basis.operators.loss_chunk is None:
        return times_up(basis.tokens, Fraction(0))
    return times_up(at_a_time(basis.operators.loss_chunk, basis), layer.transient * EIGHT["eager"] / divided)


def at_a_time(most: int | None, basis: CostBasis) -> int:
    """Tokens of a rank that are processed at a time, if those are at most so many."""
    return basis.tokens if most is None else -larger(-basis.tokens, -most)


def _relative(basis: CostBasis) -> Fraction:
    """Bytes of logits and their gradients at the same time, relative to those of fused kernels.

    Eager over tensor ranks: torch/distributed/tensor/parallel/loss.py, the backward of both.
    """
    how = basis.operators.loss
    if how == "compiled" and basis.element > ELEMENT:
        return EIGHT["fused"]  # nothing is converted
    divided = basis.parallel.tensor > 1 and not gathers_logits(basis)
    return DIVIDED if how == "eager" and divided else EIGHT[how]


def gathers_logits(basis: CostBasis) -> bool:
    """Whether tensor ranks gather the logits, whose gradients each has of the whole vocabulary too."""
    return basis.parallel.tensor > 1 and basis.operators.logits == "gathered"


def logits_again(layer: Layer, basis: CostBasis, parts: Sequence[tuple[Operation, Times]], *, full: bool) -> float:
    """Seconds of the logits and the loss that a backward computes again, unless it repeats the layer as a whole."""
    if not basis.operators.loss_again or layer.place != "last" or full:
        return 0.0
    return sum(took.forward for one, took in parts if one.name in ("logits", "loss"))
