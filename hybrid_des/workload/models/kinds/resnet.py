"""Residual networks with bottlenecks (He et al., arXiv 1512.03385), as in torchvision: the 3 × 3 convolution strides.

stem: 7 × 7 convolution, max-pooling         224 → 56 pixels per side
bottleneck: 1 × 1 ─► 3 × 3 ─► 1 × 1 ─► +     widths 64, 128, 256, 512; four times as many channels out
classes: average of all pixels, product
"""

from __future__ import annotations

from hybrid_des.options import Count, Options
from hybrid_des.workload.models.amounts import Kept
from hybrid_des.workload.models.kinds.feature_maps import (
    COLOURS,
    Counts,
    FeatureMap,
    add,
    batch_norm,
    convolve,
    pool,
    relu,
)
from hybrid_des.workload.models.kinds.registration import kind
from hybrid_des.workload.models.layer import Layer, Model, Part, layer_of, linear

EXPANSION = 4


class ResNet(Options):
    """Sizes of a residual network."""

    blocks: Counts
    """Bottlenecks of each width; [3, 4, 6, 3] is ResNet-50."""
    image: Count = 224
    """Side of an image, in pixels."""
    classes: Count = 1000
    """Number of classes."""


@kind("resnet", summary="residual networks with bottlenecks", options=ResNet, framework="pytorch")
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
