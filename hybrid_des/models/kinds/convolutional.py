"""Convolutional networks on square images: ResNet and VGG, and the operations they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any

from hybrid_des.models.kinds import ModelRefusal, kind
from hybrid_des.models.layer import (
    ELEMENT,
    Elementwise,
    Gemm,
    Kept,
    Layer,
    Model,
    Parameters,
    Part,
    layer_of,
    linear,
    weights,
)
from hybrid_des.options import Count, Options, Reads, describe, whole

# Parts of convolutional networks on square images of 2-byte elements; a whole image counts as one token.
#
# A convolution is the product of its patches with its filters: (pixels out × channels·kernel²) · (… × filters); the
# patches are not materialized. Bytes of the other operations are their reads and writes:
#
#     elements       forward                                  backward
#     batch norm     2 reads, 1 write                         2 × (input and gradient), 1 write
#     ReLU           1 read, 1 write, in place                2 reads, 1 write
#     addition       2 reads, 1 write                         the same, for the sum of both gradients
#     pooling        its input and output                     the same
#
# The inputs of convolutions, batch norms and max-pooling are kept; the output of a ReLU is the input of the next one.


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


# Residual networks with bottlenecks (He et al., arXiv 1512.03385), as in torchvision: the 3 × 3 convolution strides.
#
# stem: 7 × 7 convolution, max-pooling         224 → 56 pixels per side
# bottleneck: 1 × 1 ─► 3 × 3 ─► 1 × 1 ─► +     widths 64, 128, 256, 512; four times as many channels out
# classes: average of all pixels, product


EXPANSION = 4


class ResNet(Options):
    """Sizes of a residual network."""

    blocks: Counts
    """Bottlenecks of each width; [3, 4, 6, 3] is ResNet-50."""
    image: Count = 224
    """Side of an image, in pixels."""
    classes: Count = 1000
    """Number of classes."""


@kind("resnet", summary="residual networks with bottlenecks", options=ResNet)
def resnet(options: ResNet) -> Model:
    """Stem, bottlenecks, and classes."""
    stem, on = _stem(options.image)
    layers = [stem]
    for group, count in enumerate(options.blocks):
        for i in range(count):
            name = f"bottleneck {group + 1}.{i + 1}"
            layer, on = _bottleneck(name, on, 64 * 2**group, stride=2 if group and i == 0 else 1)
            layers.append(layer)
    average = FeatureMap(on.channels, 1)
    last = (
        pool("average pooling", on, average, keeps=False)
        + linear("classes", on.channels, options.classes, "none", bias=True)
        + Part(kept=Kept(sequence=on.bytes + average.bytes))
    )
    return Model(1, (*layers, layer_of("classes", (last,), 0, "last")), "image")


def _stem(side: int) -> tuple[Layer, FeatureMap]:
    image = FeatureMap(COLOURS, side)
    inner = image.after(7, 2, 3, 64)
    out = inner.after(3, 2, 1)
    parts = (
        convolve("convolution", image, inner, 7),
        batch_norm("batch norm", inner),
        relu("ReLU", inner),
        pool("max-pooling", inner, out, keeps=True),
    )
    return layer_of("stem", parts, out.bytes, "first"), out


def _bottleneck(name: str, source: FeatureMap, width: int, stride: int) -> tuple[Layer, FeatureMap]:
    """Three convolutions in parallel with a shortcut, which is a convolution if shapes differ."""
    narrow = FeatureMap(width, source.side)
    middle = narrow.after(3, stride, 1)
    out = FeatureMap(EXPANSION * width, middle.side)
    parts = [
        *_normed("1 × 1", source, narrow, 1),
        relu("ReLU 1", narrow),
        *_normed("3 × 3", narrow, middle, 3),
        relu("ReLU 2", middle),
        *_normed("1 × 1 out", middle, out, 1),
        add("addition", out),
        relu("ReLU 3", out),
    ]
    if source != out:
        parts += _normed("1 × 1 beside", source, out, 1, keeps=False)
    return layer_of(name, parts, out.bytes), out


def _normed(name: str, source: FeatureMap, target: FeatureMap, kernel: int, *, keeps: bool = True) -> tuple[Part, Part]:
    return convolve(name, source, target, kernel, keeps=keeps), batch_norm(f"batch norm of {name}", target)


# VGG networks (Simonyan and Zisserman, arXiv 1409.1556), as in torchvision: 3 × 3 convolutions, three products.
#
# [3 × 3 convolution, ReLU] × 1 … 4 ─► max-pooling     five times; 64, 128, 256, 512, 512 channels
# 7 × 7 × 512 ─► 4096 ─► 4096 ─► classes


CHANNELS = (64, 128, 256, 512, 512)
PRODUCT = 4096
POOLED = 7  # pixels per side


class Vgg(Options):
    """Sizes of a VGG network."""

    convolutions: Counts
    """Convolutions before each of the five poolings; [2, 2, 3, 3, 3] is VGG-16."""
    image: Count = 224
    """Side of an image, in pixels."""
    classes: Count = 1000
    """Number of classes."""


@kind("vgg", summary="VGG networks", options=Vgg)
def vgg(options: Vgg) -> Model:
    """Convolutions, then products; each one is a layer."""
    if len(options.convolutions) != len(CHANNELS):
        raise ModelRefusal("convolutions", f"expected {len(CHANNELS)} numbers, found {len(options.convolutions)}")
    on, layers = FeatureMap(COLOURS, options.image), []
    for group, (count, channels) in enumerate(zip(options.convolutions, CHANNELS, strict=True), 1):
        for i in range(1, count + 1):
            layer, on = _convolution(f"convolution {group}.{i}", on, channels, pooled=i == count)
            layers.append(layer)
    return Model(1, (*layers, *_products(on, options.classes)), "image")


def _convolution(name: str, source: FeatureMap, channels: int, *, pooled: bool) -> tuple[Layer, FeatureMap]:
    inner = source.after(3, 1, 1, channels)
    parts = [convolve(name, source, inner, 3, bias=True), relu("ReLU", inner)]
    if not pooled:
        return layer_of(name, parts, inner.bytes), inner
    out = inner.after(2, 2, 0)
    return layer_of(name, [*parts, pool("max-pooling", inner, out, keeps=True)], out.bytes), out


def _products(source: FeatureMap, classes: int) -> list[Layer]:
    """The products; an image that is not 7 pixels wide here is first average-pooled to that size."""
    on = FeatureMap(source.channels, POOLED)
    widths = (on.elements, PRODUCT, PRODUCT, classes)
    layers = []
    for number, (inputs, outputs) in enumerate(pairwise(widths), 1):
        parts = [linear(f"product {number}", inputs, outputs, "none", bias=True)]
        parts.append(Part(kept=Kept(sequence=ELEMENT * inputs)))
        if number == 1 and source != on:
            parts.append(pool("average pooling", source, on, keeps=False))
        if number < len(widths) - 1:
            parts.append(relu("ReLU", FeatureMap(outputs, 1)))
        layers.append(layer_of(f"product {number}", parts, ELEMENT * outputs))
    return layers
