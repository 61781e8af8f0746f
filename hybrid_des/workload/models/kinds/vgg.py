"""VGG networks (Simonyan and Zisserman, arXiv 1409.1556), as in torchvision: 3 × 3 convolutions, three products.

[3 × 3 convolution, ReLU] × 1 … 4 ─► max-pooling     five times; 64, 128, 256, 512, 512 channels
7 × 7 × 512 ─► 4096 ─► 4096 ─► classes
"""

from __future__ import annotations

from itertools import pairwise

from hybrid_des.options import Count, Options
from hybrid_des.workload.models.amounts import ELEMENT, Kept
from hybrid_des.workload.models.kinds.feature_maps import COLOURS, Counts, FeatureMap, convolve, pool, relu
from hybrid_des.workload.models.kinds.registration import ModelRefusal, kind
from hybrid_des.workload.models.layer import Layer, Model, Part, layer_of, linear

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


@kind("vgg", summary="VGG networks", options=Vgg, framework="pytorch")
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
