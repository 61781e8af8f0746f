"""Samples of a data set, and their order in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybrid_des.numerics import datasets
from hybrid_des.numerics.layers import DATA, ORDER, Array, StageLayers, TrainingSettings, all_layers, loss_and_gradient


@dataclass(frozen=True)
class Samples:
    """Inputs (count, features) and the class of each (count)."""

    inputs: Array
    labels: NDArray[np.int64]

    def __getitem__(self, which: slice | NDArray[np.int64]) -> Samples:
        return Samples(self.inputs[which], self.labels[which])

    def __len__(self) -> int:
        return len(self.labels)


class Data:
    """Training and held-out samples of a data set.

    Training reads a fixed stream: one random permutation of the training samples after another. Step k of a run with
    global batch G takes samples kG … (k+1)G−1 of it, whatever the layout and schedule.
    """

    def __init__(self, task: str, seed: int, dtype: DTypeLike) -> None:
        entry = datasets.find(task)
        inputs, labels = entry.build(np.random.default_rng([DATA, seed]))
        samples, cut = Samples(inputs.astype(dtype), labels), len(labels) - entry.facts["held_out"]
        self.training, self.held_out = samples[:cut], samples[cut:]
        self._seed = seed
        self._order: NDArray[np.int64] = np.empty(0, np.int64)

    def stream(self, start: int, stop: int) -> Samples:
        """Samples `start` … `stop`−1 of the stream."""
        count = len(self.training)
        while self._order.size < stop:
            generator = np.random.default_rng([ORDER, self._seed, self._order.size // count])
            self._order = np.concatenate([self._order, generator.permutation(count)])
        return self.training[self._order[start:stop]]


# Serial training, the reference: one process, one micro-batch after another through all stages.


class Passed(NamedTuple):
    """Loss of one forward and backward pass, and stage by stage its outputs and its flat gradients.

    The loss is the sum over samples, divided by the given number of them; the first stage has no input gradient.
    """

    loss: float
    outputs: Sequence[Array]
    input_gradients: Sequence[Array | None]
    weight_gradients: Sequence[Array]


def forward_and_backward(stages: Sequence[StageLayers], batch: Samples, samples: int) -> Passed:
    """Run forward and backward of a batch through all stages, whose `gradient` is overwritten.

    Loss and gradients are divided by `samples`.
    """
    outputs, kept = [], []
    x = batch.inputs
    for stage in stages:
        x, layers = stage.forward(x)
        outputs.append(x)
        kept.append(layers)
    loss, gradient = loss_and_gradient(x, batch.labels, samples)
    below: Array | None = gradient
    input_gradients, weight_gradients = [], []
    for stage, layers in zip(reversed(stages), reversed(kept), strict=True):
        assert below is not None
        below, needed = stage.input_gradient(below, layers)
        stage.gradient[:] = 0
        stage.add_weight_gradient(needed)
        input_gradients.append(below)
        weight_gradients.append(stage.gradient.copy())
    return Passed(loss, outputs, input_gradients[::-1], weight_gradients[::-1])


def loss_and_gradients(settings: TrainingSettings, weights: Array, samples: Samples) -> tuple[float, Array]:
    """Mean loss and gradient over all samples, at flat weights of the whole model."""
    passed = forward_and_backward([StageLayers(all_layers(settings), weights)], samples, len(samples))
    return passed.loss, passed.weight_gradients[0]


def accuracy(settings: TrainingSettings, weights: Array, samples: Samples) -> float:
    """Share of samples classified correctly."""
    output, _ = StageLayers(all_layers(settings), weights).forward(samples.inputs)
    return float((output.argmax(axis=1) == samples.labels).mean())
