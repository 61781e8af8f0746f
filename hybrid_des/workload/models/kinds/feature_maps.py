"""Convolutional networks on square images: ResNet and VGG, and the operations they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from hybrid_des.options import Reads, describe, whole
from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.kinds.registration import ModelRefusal
from hybrid_des.workload.models.layer import Part, weights
from hybrid_des.workload.models.operations import Elementwise, Gemm

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
    own = weights(*(Parameters(replicated=count) for count in ((n * k, n) if bias else (n * k,))))
    return Part((gemm,), kept=Kept(sequence=source.bytes if keeps else 0)) + own


def batch_norm(name: str, on: FeatureMap) -> Part:
    """A batch norm per channel."""
    passes = Elementwise(name, 3 * on.bytes, 5 * on.bytes, "none")
    scale = shift = Parameters(replicated=on.channels)
    return Part((passes,), kept=Kept(sequence=on.bytes)) + weights(scale, shift)


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
