"""Data sets, one per file: a function from a random generator to samples.

    @dataset("mine", features=2, classes=2, held_out=512)
    def mine(generator):
        return inputs, labels

Classes are balanced, so that an untrained model has chance accuracy; samples are in random order.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.registry import Registry

Drawn = tuple[NDArray[Any], NDArray[np.int64]]  # inputs (n, features), labels (n)
DataSet = Callable[[np.random.Generator], Drawn]

_REGISTRY: Registry[DataSet] = Registry("data set", "hybrid_des.numerics.datasets")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def dataset(name: str, *, features: int, classes: int, held_out: int) -> Callable[[DataSet], DataSet]:
    """Register a data set: features per sample, classes, and number of held-out samples at the end."""
    return _REGISTRY(name, features=features, classes=classes, held_out=held_out)
