"""Ranks and axes: where each rank stands along every axis of parallelism, and on which GPU it runs.

    Layout({"tensor": 1, "data": 2, "pipeline": 4}, order=("tensor", "data", "pipeline"))

    rank         0  1  2  3  4  5  6  7        the first axis of `order` varies fastest
    data         0  1  0  1  0  1  0  1
    pipeline     0  0  1  1  2  2  3  3

Every rank-to-coordinate question of the package is answered here, and an axis more is an entry more in `sizes`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Layout:
    """How ranks are numbered.

    Attributes:
        sizes: axis → number of ranks along it.
        order: the axes, the one that varies fastest along ranks first.
    """

    sizes: Mapping[str, int]
    order: Sequence[str]

    @cached_property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(self.sizes.values())

    @cached_property
    def strides(self) -> dict[str, int]:
        """Axis → by how much the rank grows from one place along it to the next."""
        strides, stride = {}, 1
        for axis in self.order:
            strides[axis] = stride
            stride *= self.sizes[axis]
        return strides

    def coordinates(self, rank: int) -> dict[str, int]:
        """Axis → a rank's place along it; the inverse of `rank`."""
        return {axis: rank // self.strides[axis] % self.sizes[axis] for axis in self.order}

    def coordinate(self, rank: int, axis: str) -> int:
        """A rank's place along one axis."""
        return rank // self.strides[axis] % self.sizes[axis]

    def rank(self, **at: int) -> int:
        """The rank at these coordinates; an axis that is not given counts as 0."""
        return sum(place * self.strides[axis] for axis, place in at.items())

    def group(self, rank: int, *axes: str) -> list[int]:
        """The ranks that differ from this one along these axes only, itself among them, in ascending order."""
        ranks = [rank - sum(self.coordinate(rank, axis) * self.strides[axis] for axis in axes)]
        for axis in axes:
            ranks = [start + place * self.strides[axis] for start in ranks for place in range(self.sizes[axis])]
        return sorted(ranks)

    @cached_property
    def holders(self) -> list[list[int]]:
        """Of the first pipeline rank: the ranks that hold the same parameters, one group per tensor rank."""
        return [self.group(tensor, "context", "data") for tensor in self.group(0, "tensor")]

    def gpu_of(self, rank: int) -> int:
        """The GPU that a rank runs on: ranks fill the nodes in order."""
        return rank

    @cached_property
    def pipelines(self) -> NDArray[np.int64]:
        """Which pipeline every rank is part of: numbered by replica, then by its other coordinates."""
        numbers, axes = self.along("data"), [axis for axis in reversed(self.order) if axis not in ("data", "pipeline")]
        for axis in axes:
            numbers = numbers * self.sizes[axis] + self.along(axis)
        return numbers

    def along(self, axis: str) -> NDArray[np.int64]:
        """Every rank's place along an axis, one entry per rank."""
        return np.arange(self.ranks, dtype=np.int64) // self.strides[axis] % self.sizes[axis]
