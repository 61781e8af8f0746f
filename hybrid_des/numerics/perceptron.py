"""The model as layers, split over stages; the same seed gives the same weights however it is split."""

from __future__ import annotations

import numpy as np

from hybrid_des.errors import UsageError
from hybrid_des.numerics import datasets
from hybrid_des.numerics.data import WEIGHTS
from hybrid_des.numerics.layers import Array, LayerSpec, StageLayers
from hybrid_des.numerics.settings import TrainingSettings
from hybrid_des.units import split_evenly


def all_layers(settings: TrainingSettings) -> list[LayerSpec]:
    """Every layer of the model, first to last: one input, one output, hidden ones between."""
    facts, last = datasets.find(settings.task).facts, settings.layers - 1
    sizes = [facts["features"], *[settings.width] * last, facts["classes"]]
    return [
        LayerSpec(i, "output" if i == last else "hidden" if i else "input", sizes[i], sizes[i + 1])
        for i in range(settings.layers)
    ]


def layers_of_stages(settings: TrainingSettings, stages: int) -> list[list[LayerSpec]]:
    """The layers of each stage.

    Raises:
        UsageError: there are fewer layers than stages.
    """
    if settings.layers < stages:
        raise UsageError(
            f"numerics.layers: {settings.layers} layers cannot be split over {stages} stages; "
            f"at least {stages} are needed"
        )
    layers = iter(all_layers(settings))
    return [[next(layers) for _ in range(count)] for count in split_evenly(settings.layers, stages)]


def initial_weights(layers: list[LayerSpec], settings: TrainingSettings, seed: int) -> Array:
    """Flat weights of some layers: each drawn from the seed and the layer's depth in the model; biases zero.

    W is normal with deviation 1/√features; the output layer starts at a tenth of that, close to equal chances.
    """
    parts: list[Array] = []
    for layer in layers:
        generator = np.random.default_rng([WEIGHTS, seed, layer.depth])
        scale = (0.1 if layer.role == "output" else 1) / np.sqrt(layer.features)
        parts += [generator.normal(scale=scale, size=layer.features * layer.outputs), np.zeros(layer.outputs)]
    return np.concatenate(parts).astype(settings.float_type)


def whole(settings: TrainingSettings, weights: Array) -> StageLayers:
    """The undivided model on given flat weights (those of the stages one after another)."""
    return StageLayers(all_layers(settings), weights)
