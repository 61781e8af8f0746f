"""The model as layers, shared out over stages; the same seed gives the same weights however it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybrid_des.errors import UsageError
from hybrid_des.numerics import tasks
from hybrid_des.numerics.data import WEIGHTS
from hybrid_des.numerics.layers import LayerSpec, Stage
from hybrid_des.numerics.settings import DTYPES, Settings
from hybrid_des.units import split_evenly

if TYPE_CHECKING:
    from hybrid_des.numerics.layers import Array


def layers(settings: Settings) -> list[LayerSpec]:
    """Every layer of the model, first to last: one in, one out, hidden ones between."""
    facts, last = tasks.find(settings.task).facts, settings.layers - 1
    sizes = [facts["features"], *[settings.width] * last, facts["classes"]]
    return [
        LayerSpec(i, "output" if i == last else "hidden" if i else "input", sizes[i], sizes[i + 1])
        for i in range(settings.layers)
    ]


def shares(settings: Settings, stages: int) -> list[list[LayerSpec]]:
    """The layers of each stage.

    Raises:
        UsageError: there are fewer layers than stages.
    """
    if settings.layers < stages:
        raise UsageError(
            f"numerics.layers: {settings.layers} layers cannot be shared out over {stages} stages; "
            f"at least {stages} are needed"
        )
    every, shared, at = layers(settings), [], 0
    for count in split_evenly(settings.layers, stages):
        shared.append(every[at : at + count])
        at += count
    return shared


def initial_weights(specs: list[LayerSpec], settings: Settings, seed: int) -> Array:
    """Flat weights of some layers: each drawn from the seed and its own place in the model; biases zero.

    W is normal with deviation 1/√features; the output layer starts at a tenth of that, close to equal chances.
    """
    import numpy

    parts: list[Array] = []
    for spec in specs:
        generator = numpy.random.default_rng([WEIGHTS, seed, spec.depth])
        scale = (0.1 if spec.role == "output" else 1) / numpy.sqrt(spec.features)
        parts += [generator.normal(scale=scale, size=spec.features * spec.outputs), numpy.zeros(spec.outputs)]
    return numpy.concatenate(parts).astype(DTYPES[settings.dtype])


def whole(settings: Settings, weights: Array) -> Stage:
    """The undivided model on given flat weights (those of the stages one after another)."""
    return Stage(layers(settings), weights)
