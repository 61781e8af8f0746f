"""The group of images under which ranks do the same: along each folded axis all rotations, or all exchanges.

    rotation   image g of place x is (x + g·keep) mod size: rings, pipelines, parameter servers on the ranks
    swap       image g of place x is x xor g·keep, for powers of two: halving–doubling, recursive doubling

An axis may be folded by digits of its places: whole nodes on each other, and places within every node:

    replica 0 1 2 3 │ 4 5 6 7   block 4, keep 1: replicas 0 to 3 stand for 4 to 7
                                block 1, size 4, keep 1: replica 0 stands for 1, 2 and 3, and 4 for 5, 6 and 7

A *root* is a rank as `engine.lineage` keeps it: `rank << 4 | known`, where `known` is the number of axes, slowest
first, that are certain; `SURE` if all are. To that of an event with an unknown lineage, its number times all ranks is
added: no image changes it.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, reduce
from itertools import pairwise, product
from math import prod
from operator import and_
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybrid_des.layout import Layout

Ranks = TypeVar("Ranks", int, NDArray[np.int64])


Element = tuple[int, ...]  # of the group: along each folded axis, the multiple of `keep` places to move by


SURE = 15


def root_of(rank: int) -> int:
    """The root of events that descend from a rank, with certainty."""
    return rank << 4 | SURE


class FoldedAxis(NamedTuple):
    """How an axis, or a digit of it, is folded: its first `keep` places are simulated.

    Attributes:
        swap: whether images are exchanges, not rotations.
        block: of a digit, the number of neighbouring places that move together.
        size: of a digit, the number of blocks that are moved onto each other; 0: all.
    """

    axis: str
    keep: int
    swap: bool = False
    block: int = 1
    size: int = 0

    def blocks(self, size: int) -> int:
        """The number of blocks that are moved onto each other, of an axis of this size."""
        return self.size or size // self.block


class Digit(NamedTuple):
    """A digit of ranks: `rank // stride % size`; `keep` of its values are simulated, None: all, and no image moves."""

    stride: int
    size: int
    keep: int | None


class Fold:
    """Which ranks are simulated, and for which others each of them stands.

    Args:
        layout: the ranks.
        folded_axes: the folded axes, or digits of them; each `keep` divides the number of its blocks.

    Attributes:
        layout, folded_axes: as given.
        order: the number of ranks that each simulated one stands for.
        identity: the element that leaves every rank where it is.
    """

    def __init__(self, layout: Layout, folded_axes: Sequence[FoldedAxis]) -> None:
        self.layout = layout
        self.folded_axes = tuple(folded_axes)
        sizes = [folded.blocks(layout.sizes[folded.axis]) for folded in folded_axes]
        self.counts = tuple(size // folded.keep for size, folded in zip(sizes, folded_axes, strict=True))
        self.order = prod(self.counts)
        self.identity: Element = (0,) * len(self.folded_axes)
        self._places = [
            (layout.strides[folded.axis] * folded.block, size, folded)
            for size, folded in zip(sizes, folded_axes, strict=True)
        ]
        self._slowest_first = [digit for axis in reversed(layout.order) for digit in self._digits(axis)]

    def _digits(self, axis: str) -> list[Digit]:
        """The digits of an axis, slowest-varying first."""
        stride, size = self.layout.strides[axis], self.layout.sizes[axis]
        digits, done = list[Digit](), 1
        for folded in sorted((one for one in self.folded_axes if one.axis == axis), key=lambda digit: digit.block):
            if folded.block > done:
                digits.append(Digit(stride * done, folded.block // done, None))
            digits.append(Digit(stride * folded.block, folded.blocks(size), folded.keep))
            done = folded.block * folded.blocks(size)
        if done < size or not digits:
            digits.append(Digit(stride * done, size // done, None))
        return digits[::-1]

    def kept(self, axis: str) -> int:
        """The number of places simulated along an axis."""
        return prod(digit.keep or digit.size for digit in self._digits(axis)) if axis in self.layout.sizes else 1

    @cached_property
    def ranks(self) -> list[int]:
        """The simulated ranks, in ascending order."""
        ranges = [range(0, (keep or size) * stride, stride) for stride, size, keep in self._slowest_first]
        return [sum(offsets) for offsets in product(*ranges)]

    def simulated(self, rank: Ranks) -> Any:
        """Whether a rank is simulated, or which ranks of an array are."""
        return reduce(and_, (rank // stride % size < folded.keep for stride, size, folded in self._places), True)

    def representative(self, rank: int) -> tuple[int, Element]:
        """The representative of a rank, and the element that maps the representative to it."""
        representative, element = rank, []
        for stride, size, folded in self._places:
            times = rank // stride % size // folded.keep
            representative -= times * folded.keep * stride
            element.append(times)
        return representative, tuple(element)

    @property
    def representatives(self) -> NDArray[np.int64]:
        """The representative of each rank."""
        ranks = np.arange(self.layout.ranks)
        return ranks - sum(ranks // stride % size // one.keep * one.keep * stride for stride, size, one in self._places)

    def move(self, rank: Ranks, element: Element) -> Ranks:
        """The image of a rank, or of each rank of an array."""
        moved = rank
        for (stride, size, folded), times in zip(self._places, element, strict=True):
            coordinate = rank // stride % size
            image = coordinate ^ (times * folded.keep) if folded.swap else (coordinate + times * folded.keep) % size
            moved = moved + (image - coordinate) * stride
        return moved

    def inverse(self, element: Element) -> Element:
        """The element that undoes another."""
        return tuple(
            times if folded.swap else -times % count
            for times, count, folded in zip(element, self.counts, self.folded_axes, strict=True)
        )

    def combined(self, this: Element, other: Element) -> Element:
        """The composition of two elements; their order does not matter."""
        return tuple(
            a ^ b if folded.swap else (a + b) % count
            for a, b, count, folded in zip(this, other, self.counts, self.folded_axes, strict=True)
        )

    def elements(self) -> Iterator[Element]:
        """All elements, the identity first."""
        return product(*map(range, self.counts))

    @cached_property
    def generators(self) -> list[Element]:
        """Elements that generate all others."""
        generators = []
        for axis, (count, folded) in enumerate(zip(self.counts, self.folded_axes, strict=True)):
            steps = [1 << bit for bit in range(count.bit_length() - 1)] if folded.swap else [1] if count > 1 else []
            generators += [(*self.identity[:axis], step, *self.identity[axis + 1 :]) for step in steps]
        return generators

    def ordered(self, this: int, other: int) -> bool:
        """Whether all images of two roots are in the order of the roots."""
        return self._tied_at(this, other) is None

    def apart(self, rank: int, number: int) -> int:
        """The root of what descends from an event of a rank that has this number, and an unknown lineage."""
        return root_of(rank + number * self.layout.ranks)

    def together(self, this: int, other: int) -> bool:
        """Whether two roots are of ranks, or of images of the same numbered event."""
        return (this >> 4) // self.layout.ranks == (other >> 4) // self.layout.ranks

    def joined(self, this: int, other: int) -> int:
        """The certain part of a root that may be either of two."""
        tied = self._tied_at(this, other)
        return this if tied is None else this >> 4 << 4 | tied

    def shared(self, this: int, other: int) -> int:
        """The number of digits, the slowest first, in which two ranks agree; `SURE` if it is all of them."""
        for number, (stride, size, _) in enumerate(self._slowest_first):
            if this // stride % size != other // stride % size:
                return number
        return SURE

    def _tied_at(self, this: int, other: int) -> int | None:
        """The first axis at which the order of two roots depends on the image; None if it does not."""
        known, here, there = min(this & SURE, other & SURE), this >> 4, other >> 4
        for axis, (stride, size, keep) in enumerate(self._slowest_first):
            if axis == known:
                return axis
            coordinate, place_there = here // stride % size, there // stride % size
            if keep is not None and coordinate // keep != place_there // keep:
                return axis
            if coordinate != place_there:
                return None
        return None


def folds_along(layout: Layout, axis: str, keep: int) -> list[Fold]:
    """The folds that keep some places of an axis: by rotations, and between powers of two by exchanges."""
    powers = not (keep & (keep - 1) or layout.sizes[axis] & (layout.sizes[axis] - 1))
    return [Fold(layout, [FoldedAxis(axis, keep, swap)]) for swap in (False, True)[: 1 + powers]]


def folds_by_digits(layout: Layout, axis: str, keep: int, blocks: Collection[int]) -> Iterator[Fold]:
    """The folds that keep some places of an axis by rotations of its digits, those of the fewest nodes first.

    Args:
        layout: the ranks.
        axis: the axis.
        keep: the number of places that are simulated.
        blocks: the numbers of places after which a digit begins, such as those of a node; without effect if they do
            not divide each other and the axis.
    """
    size = layout.sizes[axis]
    starts = [1, *sorted({block for block in blocks if 1 < block < size})]
    if len(starts) == 1 or any(end % start for start, end in pairwise([*starts, size])):
        return
    counts = [end // start for start, end in pairwise([*starts, size])]
    keeps = ([kept for kept in range(1, count + 1) if count % kept == 0] for count in reversed(counts))
    for chosen in product(*keeps):
        if prod(chosen) == keep:
            digits = zip(starts, counts, reversed(chosen), strict=True)
            yield Fold(layout, [
                FoldedAxis(axis, kept, block=block, size=count) for block, count, kept in digits if kept < count
            ])  # fmt: skip
