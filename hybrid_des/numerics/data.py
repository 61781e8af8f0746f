"""Samples of a data set, and their order in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybrid_des.numerics import datasets
from hybrid_des.numerics.layers import DATA, ORDER, Array


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
