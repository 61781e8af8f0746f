"""Parts of convolutional networks on square images of 2-byte elements; a whole image counts as one token.

A convolution is the product of its patches with its filters: (pixels out × channels·kernel²) · (… × filters); the
patches are not materialized. Bytes of the other operations are their reads and writes:

    elements       forward                                  backward
    batch norm     2 reads, 1 write                         2 × (input and gradient), 1 write
    ReLU           1 read, 1 write, in place                2 reads, 1 write
    addition       2 reads, 1 write                         the same, for the sum of both gradients
    pooling        its input and output                     the same

The inputs of convolutions, batch norms and max-pooling are kept; the output of a ReLU is the input of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from hybrid_des.models.kinds import ModelRefusal
from hybrid_des.models.layer import ELEMENT, Elementwise, Gemm, Kept, Parameters, Part
from hybrid_des.options import Reads, describe, whole

COLOURS = 3


@dataclass(frozen=True)
class FeatureMap:
    """A square image of `side`² pixels."""

    channels: int
    side: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.channels * self.side**2

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return ELEMENT * self.elements

    def after(self, kernel: int, stride: int, padding: int, channels: int | None = None) -> FeatureMap:
        """The output of a sliding window over it.

        Raises:
            ModelRefusal: the window does not fit.
        """
        if self.side + 2 * padding < kernel:
            raise ModelRefusal("image", "too small for the number of layers that shrink it")
        return FeatureMap(channels or self.channels, (self.side + 2 * padding - kernel) // stride + 1)


def convolve(
    name: str, source: FeatureMap, target: FeatureMap, kernel: int, *, bias: bool = False, keeps: bool = True
) -> Part:
    """A convolution; `keeps` is false if another operation already keeps its input."""
    n, k, pixels = target.channels, source.channels * kernel**2, target.side**2
    reads = min(pixels * k, source.elements)  # strides of a 1 × 1 kernel skip pixels
    gemm = Gemm(name, n, k, "none", Fraction(pixels), reads=reads)
    own = Parameters(replicated=n * k + (n if bias else 0))
    return Part((gemm,), own, Kept(sequence=source.bytes if keeps else 0))


def batch_norm(name: str, on: FeatureMap) -> Part:
    """A batch norm per channel."""
    passes = Elementwise(name, 3 * on.bytes, 5 * on.bytes, "none")
    return Part((passes,), Parameters(replicated=2 * on.channels), Kept(sequence=on.bytes))


def relu(name: str, on: FeatureMap) -> Part:
    """A ReLU in place."""
    return Part((Elementwise(name, 2 * on.bytes, 3 * on.bytes, "none"),))


def add(name: str, on: FeatureMap) -> Part:
    """The end of a residual connection."""
    return Part((Elementwise(name, 3 * on.bytes, 3 * on.bytes, "none"),))


def pool(name: str, source: FeatureMap, target: FeatureMap, *, keeps: bool) -> Part:
    """A pooling; `keeps` is true for max-pooling, whose backward needs the input to find the maximum again."""
    moved = source.bytes + target.bytes
    return Part((Elementwise(name, moved, moved, "none"),), kept=Kept(sequence=source.bytes if keeps else 0))


_count = whole(1, 1000)


def _counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"expected a list such as [3, 4, 6, 3], found {describe(value)}")
    for item in value:
        _count.read(item)
    return tuple(map(int, value))


_LIST = {"type": "array", "items": _count.schema, "minItems": 1}
Counts = Annotated[tuple[int, ...], Reads(_counts, _LIST)]
