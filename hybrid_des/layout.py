"""Ranks and axes: the place of each rank along every axis of parallelism, and its GPU.

    Layout({"tensor": 1, "data": 2, "pipeline": 4}, order=("tensor", "data", "pipeline"))

    rank         0  1  2  3  4  5  6  7        the first axis of `order` varies fastest
    data         0  1  0  1  0  1  0  1
    pipeline     0  0  1  1  2  2  3  3

Every rank-to-coordinate question of the package is answered here, and a new axis is one more entry in `sizes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

SHARING = ("tensor", "context", "expert")  # axes along which ranks share layers and exchange messages inside ops
SHORT = 32  # below this many ranks, a Python loop is faster than an array


class RankGroup(Sequence[int]):
    """Ranks along some axes, in ascending order, computed on demand: no list of them is stored.

    Args:
        first: the lowest of all ranks along the axes.
        spans: (number of places, stride) of each axis, fastest-varying first.
        chosen: indices of those that are in the group; None: all.
    """

    def __init__(self, first: int, spans: Sequence[tuple[int, int]], chosen: range | None = None) -> None:
        self._first = first
        self._spans = tuple(spans)
        self._chosen = range(prod(count for count, _ in spans)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> RankGroup: ...
    def __getitem__(self, index: int | slice) -> int | RankGroup:
        """The rank at an index, or the group of the ranks in a slice."""
        if isinstance(index, slice):
            return RankGroup(self._first, self._spans, self._chosen[index])
        return int(self._rank_of(self._chosen[index]))

    def __iter__(self) -> Iterator[int]:
        return map(self._rank_of, self._chosen) if len(self._chosen) < SHORT else iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash((self._first, self._spans, self._chosen))

    def shifted(self, by: int) -> RankGroup:
        """The same group with `by` added to every rank."""
        return RankGroup(self._first + by, self._spans, self._chosen)

    @property
    def array(self) -> NDArray[np.int64]:
        """All ranks."""
        chosen = self._chosen
        ranks: NDArray[np.int64] = self._rank_of(np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64))
        return ranks

    def _rank_of(self, number: Any) -> Any:
        rank = self._first
        for count, stride in self._spans:
            rank = rank + number % count * stride
            number = number // count
        return rank


@dataclass(frozen=True)
class Layout:
    """How ranks are numbered.

    Attributes:
        sizes: axis → number of ranks along it.
        order: the axes, fastest-varying first.
        expert: number of consecutive ranks along context and data, and tensor where `expert_tensor` is less than its
            size, that share the experts of each layer.
        expert_tensor: number of neighbouring tensor ranks that share each expert; 0: all of them.
    """

    sizes: Mapping[str, int]
    order: Sequence[str]
    expert: int = 1
    expert_tensor: int = 0

    @cached_property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(self.sizes.values())

    @cached_property
    def strides(self) -> dict[str, int]:
        """Axis → difference between the ranks at neighbouring places along it."""
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

    def lane(self, rank: int) -> int:
        """A rank's place along data and context: context ranks of a replica are neighbours."""
        return self.coordinate(rank, "data") * self.sizes.get("context", 1) + (
            self.coordinate(rank, "context") if "context" in self.sizes else 0
        )

    def in_lanes(self, first: int, count: int) -> list[list[int]]:
        """The groups of ranks in neighbouring lanes, one for each place along the other axes."""
        contexts = self.sizes.get("context", 1)
        lanes = [divmod(lane, contexts) for lane in range(first, first + count)]
        at = [data * self.strides["data"] + context * self.strides.get("context", 0) for data, context in lanes]
        ranks = np.arange(self.ranks, dtype=np.int64)
        starts = ranks[self.first(ranks, *(axis for axis in ("data", "context") if axis in self.sizes)) == ranks]
        return [[start + one for one in at] for start in starts.tolist()]

    def line(self, rank: int, axis: str) -> range:
        """The ranks that differ from this one along one axis only, itself included, in ascending order."""
        stride = self.strides[axis]
        first = rank - self.coordinate(rank, axis) * stride
        return range(first, first + self.sizes[axis] * stride, stride)

    def rank(self, **at: int) -> int:
        """The rank at these coordinates; an axis that is not given counts as 0."""
        return sum(place * self.strides[axis] for axis, place in at.items())

    def group(self, rank: int, *axes: str) -> list[int]:
        """The ranks that differ from this one along these axes only, itself included, in ascending order."""
        ranks = [rank - sum(self.coordinate(rank, axis) * self.strides[axis] for axis in axes)]
        for axis in axes:
            ranks = [start + place * self.strides[axis] for start in ranks for place in range(self.sizes[axis])]
        return sorted(ranks)

    @cached_property
    def shared(self) -> dict[str, list[list[int]]]:
        """Axis → the groups of ranks along it that share layers or experts, if there is more than one rank along it."""
        sizes = {**self.sizes, "expert": self.expert}
        return {axis: self.groups(axis) for axis in SHARING if sizes.get(axis, 1) > 1}

    def groups(self, axis: str) -> list[list[int]]:
        """The groups of ranks along an axis, or of those that share experts."""
        axes: tuple[str, ...] = (axis,)
        if axis == "expert":
            axes = ("tensor", "context", "data") if self.across_tensor else ("context", "data")
        ranks = np.arange(self.ranks, dtype=np.int64)
        starts = ranks[self.first(ranks, *axes) == ranks].tolist()
        whole = (self.group(start, *axes) for start in starts)
        if axis != "expert":
            return list(whole)
        apart = self.expert_tensor if self.across_tensor else 1
        size = self.expert * apart
        blocks = (group[first : first + size] for group in whole for first in range(0, len(group), size))
        return [block[first::apart] for block in blocks for first in range(apart)]

    @property
    def across_tensor(self) -> bool:
        """Whether tensor ranks hold different experts, or fewer than all of them share one."""
        return 0 < self.expert_tensor < self.sizes.get("tensor", 1)

    @property
    def apart(self) -> bool:
        """Whether experts are held by other ranks than the rest of their layers."""
        return self.expert > 1 or self.across_tensor

    @property
    def crosses_lanes(self) -> bool:
        """Whether ranks with the same data and context coordinates share experts with ranks of other lanes each."""
        tensor, block = self.sizes.get("tensor", 1), self.expert * self.expert_tensor
        return self.across_tensor and bool(tensor % block and block % tensor)

    @cached_property
    def expert_holders(self) -> list[RankGroup]:
        """Ranks of the first pipeline rank that hold the same experts, one group per part of the experts."""
        if not self.across_tensor:
            return [held[first :: self.expert] for held in self.holders for first in range(self.expert)]
        axes = ("tensor", "context", "data")
        whole = RankGroup(0, [(self.sizes[axis], self.strides[axis]) for axis in self.order if axis in axes])
        apart = self.expert * self.expert_tensor
        return [whole[first::apart] for first in range(apart)]

    def first(self, ranks: NDArray[np.int64], *axes: str) -> NDArray[np.int64]:
        """For each of these ranks, the first rank of its group along these axes."""
        for axis in axes:
            ranks = ranks - ranks // self.strides[axis] % self.sizes[axis] * self.strides[axis]
        return ranks

    @cached_property
    def holders(self) -> list[RankGroup]:
        """Ranks of the first pipeline rank that hold the same parameters, one group per tensor rank."""
        spans = [(self.sizes[axis], self.strides[axis]) for axis in self.order if axis in ("context", "data")]
        return [RankGroup(tensor, spans) for tensor in self.group(0, "tensor")]

    @cached_property
    def pipelines(self) -> NDArray[np.int64]:
        """The pipeline of every rank, numbered by replica, then by its other coordinates."""
        numbers, axes = self.along("data"), [axis for axis in reversed(self.order) if axis not in ("data", "pipeline")]
        for axis in axes:
            numbers = numbers * self.sizes[axis] + self.along(axis)
        return numbers

    def along(self, axis: str) -> NDArray[np.int64]:
        """Every rank's place along an axis, one entry per rank."""
        return np.arange(self.ranks, dtype=np.int64) // self.strides[axis] % self.sizes[axis]
