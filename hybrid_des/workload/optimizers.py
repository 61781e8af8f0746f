"""Optimizers: bytes of state per parameter, in the precisions in which each part of it is kept.

| | copy of the weights | first moment | second moment | bytes |
|---|---|---|---|---:|
| adam (also AdamW) | fp32 | fp32 | fp32 | 12 |
| adam-8bit | fp32 | 8-bit | 8-bit | 6.03 |
| sgd, lion, signum, muon | fp32 | fp32 | – | 8 |

`8-bit` has a byte per element and a 32-bit scale per block of 256 (bitsandbytes, functional.py, quantize_blockwise).
`remainder` are the 16 bits of a 32-bit copy that a bf16 weight lacks (NVIDIA/apex, FusedAdam with
store_param_remainders, which Megatron-LM's precision-aware optimizer turns on). The optimizer step reads the gradient
and writes the weight, and reads and writes the state. Muon (kellerjordan.github.io/posts/muon) updates matrices of
blocks; embeddings, logits and vectors stay with Adam.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

FORMATS = {
    "fp32": Fraction(4), "bf16": Fraction(2), "fp16": Fraction(2), "fp8": Fraction(1), "8-bit": 1 + Fraction(4, 256),
    "remainder": Fraction(2), "none": Fraction(0),
}  # fmt: skip


class StateFormats(NamedTuple):
    """In which precision an optimizer keeps each part of its state; `none`: it has no such part."""

    master: str = "fp32"
    first: str = "fp32"
    second: str = "fp32"

    @property
    def bytes(self) -> Fraction:
        """Bytes per parameter."""
        return sum((FORMATS[name] for name in self), Fraction(0))


ADAM, ONE_MOMENT = StateFormats(), StateFormats(second="none")
OPTIMIZERS = {
    "adam": ADAM, "adam-8bit": StateFormats("fp32", "8-bit", "8-bit"), "sgd": ONE_MOMENT, "lion": ONE_MOMENT,
    "signum": ONE_MOMENT, "muon": ONE_MOMENT,
}  # fmt: skip


class Product(NamedTuple):
    """A product (m × k) · (k × n), and the share of it that is computed."""

    m: int
    n: int
    k: int
    share: Fraction


class Matrix(NamedTuple):
    """Weights that Muon orthogonalises.

    Attributes:
        whole: rows and columns of the matrix.
        block: those of the block that a tensor rank holds.
        expert: whether it belongs to experts.
    """

    whole: tuple[int, int]
    block: tuple[int, int]
    expert: bool = False

    @property
    def elements(self) -> int:
        """Elements of the block."""
        return self.block[0] * self.block[1]


def newton_schulz(sizes: tuple[int, int], *, symmetric: bool = False, ranks: int = 1) -> Iterator[Product]:
    """The products of an iteration on a matrix M × N, M ≤ N, whose longer side so many ranks divide.

    X·Xᵀ, its square, and the polynomial of both times X: 4M²N + 2M³ FLOP, or 3M²N + M³ where kernels compute half of
    the `symmetric` ones (Megatron-LM: `--muon-use-syrk`). The square stays whole.
    """
    short, long = sorted(sizes)
    part = -(-long // ranks)
    half = Fraction(1, 2) if symmetric else Fraction(1)
    yield Product(short, short, part, half)
    yield Product(short, short, short, half)
    yield Product(short, part, short, Fraction(1))
