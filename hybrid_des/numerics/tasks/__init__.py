"""Data sets to learn, one file each: a function from a random generator to samples.

    @task("mine", features=2, classes=2, held_out=512)
    def mine(generator):
        return inputs, labels

Classes are balanced, so an untrained model is right as often as chance; the order of the samples is random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybrid_des.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Task = Callable[[Any], "tuple[NDArray[Any], NDArray[np.int64]]"]  # generator → inputs (n, features), labels (n)

_REGISTRY: Registry[Task] = Registry("task", "hybrid_des.numerics.tasks")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def task(name: str, *, features: int, classes: int, held_out: int) -> Callable[[Task], Task]:
    """Register a data set: numbers a sample, classes, and how many samples at the end are kept from training."""
    return _REGISTRY(name, features=features, classes=classes, held_out=held_out)
