"""Data sets, each a function from a random generator to samples, and the order of samples in training.

    @dataset("mine", features=2, classes=2, held_out=512)
    def mine(generator):
        return inputs, labels

Classes are balanced, so that an untrained model has chance accuracy; samples are in random order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybrid_des.errors import UsageError, installing
from hybrid_des.options import describe_type
from hybrid_des.registry import Registry

Array = NDArray[Any]  # of the settings' dtype
Drawn = tuple[NDArray[Any], NDArray[np.int64]]  # inputs (n, features), labels (n)
DataSet = Callable[["np.random.Generator"], Drawn]

DATA, ORDER, WEIGHTS = range(3)  # uses of a seed, each with a separate random stream
_REGISTRY: Registry[DataSet] = Registry("data set", "hybrid_des.workload.numerics.datasets")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def dataset(name: str, *, features: int, classes: int, held_out: int) -> Callable[[DataSet], DataSet]:
    """Register a data set: features per sample, classes, and number of held-out samples at the end."""
    return _REGISTRY(name, features=features, classes=classes, held_out=held_out)


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
        entry = find(task)
        drawn = entry.build(np.random.default_rng([DATA, seed]))
        if wrong := _wrong(drawn, **entry.facts):
            raise UsageError(f'data set "{task}": {wrong}')
        inputs, labels = drawn
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


def _wrong(drawn: object, features: int, classes: int, held_out: int) -> str:
    """What is wrong with the samples of a data set; empty if nothing is."""
    if not (isinstance(drawn, tuple) and len(drawn) == 2 and all(isinstance(array, np.ndarray) for array in drawn)):
        return f"expected two arrays, inputs and labels, found {describe_type(drawn)}"
    inputs, labels = drawn
    if inputs.shape != (len(labels), features) or labels.ndim != 1:
        return f"expected inputs of shape (n, {features}) and n labels, found shapes {inputs.shape} and {labels.shape}"
    if len(labels) <= held_out:
        return f"{len(labels)} samples, of which {held_out} are held out: none is left to train on"
    if inputs.dtype.kind not in "iuf" or not np.isfinite(inputs).all():
        return "inputs: expected finite numbers"
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
        return f"labels: expected whole numbers from 0 to {classes - 1}"
    return ""


# The 1797 handwritten digits of 8 × 8 pixels that scikit-learn ships (UCI optical recognition, its test set).
@dataset("digits", features=64, classes=10, held_out=360)
def digits(generator: np.random.Generator) -> Drawn:
    """All digits in random order, pixels from −1 to 1; needs the extra `digits`."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError(f"numerics.task: digits needs scikit-learn: {installing('digits')}") from None
    data = load_digits()
    order = generator.permutation(len(data.target))
    return data.data[order] / 8 - 1, data.target[order].astype("int64")


# Normally distributed inputs, classified by a small random network (teacher and student).
@dataset("teacher-student", features=8, classes=2, held_out=1024)
def teacher_student(generator: np.random.Generator) -> Drawn:
    """5120 samples; the class says whether the teacher's output (8-4-1, tanh) is above its median."""
    inputs = generator.normal(size=(5120, 8))
    hidden = np.tanh(inputs @ generator.normal(size=(8, 4)) / np.sqrt(8))
    output = hidden @ generator.normal(size=4)
    return inputs, (output > np.median(output)).astype(np.int64)


# Two interleaved spirals of one and a quarter turns with a little noise (after Lang & Witbrock, 1988).
@dataset("two-spirals", features=2, classes=2, held_out=512)
def two_spirals(generator: np.random.Generator) -> Drawn:
    """2560 points in the plane, coordinates up to 2.5; the arms are 1 apart, the noise is 0.05."""
    labels = generator.permutation(2560) % 2
    turn = np.sqrt(generator.uniform(0.02, 1, labels.size)) * 2.5 * np.pi
    angle = turn + np.pi * labels
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) / np.pi
    return points + generator.normal(scale=0.05, size=points.shape), labels
