"""Least and most time of a class of activities over all critical paths, and what a change of durations does to them.

In frozen order, if every critical path has at least c_min of a class and some path has c_max, scaling the class by
θ < 1 saves at most (1 − θ)·c_min, and scaling it by θ > 1 costs at least (θ − 1)·c_max.

In a folded run, a class that is on one rank or link only has its time in one image of an edge: least and most are found
for all images of every point at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.simulation.timeline import NONE, Column

MOST = 4_000_000  # numbers held at once


class Span(NamedTuple):
    """The least and the most time of a class over all critical paths, in picoseconds."""

    least: int
    most: int


class Weight(NamedTuple):
    """The time of a class on edges of `Slack.critical`.

    Attributes:
        edges: those on which it takes time.
        time: picoseconds.
        image: the image in which the cause of each edge must be for its time to count; None: it counts in all.
    """

    edges: Column
    time: Column
    image: Column | None = None

    @classmethod
    def of(cls, time: Column, image: Column | None = None) -> Weight:
        """The weight of a class by its time on every critical edge."""
        edges = np.flatnonzero(time)
        return cls(edges.astype(np.int32), time[edges].astype(np.int64), None if image is None else image[edges])


class Chains(NamedTuple):
    """Critical edges, with chains of them that do not branch merged.

    Attributes:
        cause, point: the ends of each chain, numbered in order; chains are ordered by `point`.
        of: the chain of each critical edge.
        ends: the point of the graph that each number is.
    """

    cause: Column
    point: Column
    of: Column
    ends: Column

    def steps(self) -> tuple[list[Step], int]:
        """The chains into each point, in order, and the most points that are needed at once.

        A point's values are kept in a slot, which is used again after its last chain.
        """
        last = dict(zip(self.cause.tolist(), range(len(self.cause)), strict=True))
        slot: dict[int, int] = {}
        unused, slots = list[int](), 0
        steps: list[Step] = []
        edges = enumerate(zip(self.cause.tolist(), self.point.tolist(), strict=True))
        for end, into in groupby(edges, key=lambda edge: edge[1][1]):
            chains = [(number, start) for number, (start, _) in into]
            roots = [start for _, start in chains if start not in slot]
            for point in dict.fromkeys([*roots, end]):
                if not unused:
                    unused, slots = [slots], slots + 1
                slot[point] = unused.pop()
            fresh = [slot[start] for start in roots]
            steps.append(Step(end, slot[end], [(number, slot[start]) for number, start in chains], fresh))
            for number, start in chains:
                if last[start] == number:
                    unused.append(slot[start])
        return steps, slots


class Step(NamedTuple):
    """The chains into a point, each with the slot of its cause; `fresh` are those of causes that nothing releases."""

    point: int
    slot: int
    chains: Sequence[tuple[int, int]]
    fresh: Sequence[int]


def spans(slack: Slack, weights: Mapping[Any, Weight]) -> dict[Any, Span]:
    """The span of each class."""
    if slack.graph.images.order == 1:
        return _on_all(slack, weights)
    known = _on_all(slack, {name: weight for name, weight in weights.items() if weight.image is None})
    known |= _on_one(slack, {name: weight for name, weight in weights.items() if weight.image is not None})
    return {name: known[name] for name in weights}


def change_of(slack: Slack, lag: Column) -> int:
    """Least growth of the run if the order stays and edges have these lags: the largest sum over a critical path."""
    edges = slack.critical
    return _on_all(slack, {"": Weight.of(lag[edges] - slack.graph.lag[edges])})[""].most


def _on_all(slack: Slack, weights: Mapping[Any, Weight]) -> dict[Any, Span]:
    """The spans of classes whose time counts in all images of an edge."""
    names = list(weights)
    chains = _merged(slack, np.zeros(len(slack.graph.time), dtype=np.bool_))
    steps, slots = chains.steps()
    classes: dict[Any, Span] = {}
    batch = max(1, MOST // max(slots, len(chains.cause), 1))
    for first in range(0, len(names), batch):
        some = names[first : first + batch]
        parts = np.stack([_summed(chains, weights[name]) for name in some], axis=1)
        classes |= {name: Span(*both) for name, both in zip(some, _extremes(steps, slots, parts), strict=True)}
    return classes


def _summed(chains: Chains, weight: Weight) -> Column:
    """The time of a class on each chain."""
    return _sums(chains.of[weight.edges], weight.time, len(chains.cause))


def _sums(chain: Column, weight: Column, count: int) -> Column:
    """Weights summed over each chain; exactly, in two halves, since a float holds 53 bits."""
    high, low = weight >> 31, weight & (2**31 - 1)
    sums = [np.bincount(chain, weights=half, minlength=count).astype(np.int64) for half in (high, low)]
    return np.asarray((sums[0] << 31) + sums[1])


def _merged(slack: Slack, kept: NDArray[np.bool_]) -> Chains:
    """Merge chains of edges without branches, except at some points.

    The chain of an edge is found by pointer jumping: each edge points to the one before it, then to the one before
    that, twice as far each time.
    """
    edges = slack.critical
    cause, point = slack.graph.cause[edges], slack.graph.point[edges]
    points, numbers = np.unique(np.concatenate([cause, point]), return_inverse=True)
    cause, point = numbers[: len(cause)], numbers[len(cause) :]
    into, out = np.bincount(point, minlength=len(points)), np.bincount(cause, minlength=len(points))
    edge_into = np.zeros(len(points), dtype=np.int64)
    edge_into[point] = np.arange(len(point))
    inner = (into == 1) & (out == 1) & ~kept[points]
    root = np.where(inner[cause], edge_into[cause], np.arange(len(cause)))
    while (root[root] != root).any():
        root = root[root]
    roots, chain = np.unique(root, return_inverse=True)
    last = np.zeros(len(roots), dtype=np.int64)
    np.maximum.at(last, chain, point)
    order = np.argsort(last, kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    ends, numbers = np.unique(np.concatenate([cause[roots][order], last[order]]), return_inverse=True)
    return Chains(numbers[: len(roots)], numbers[len(roots) :], position[chain], points[ends])


def _extremes(steps: Sequence[Step], slots: int, parts: Column) -> Iterator[tuple[int, int]]:
    """The least and the greatest sum of each column over all paths to the last point."""
    least = np.zeros((max(slots, 1), parts.shape[1]), dtype=np.int64)
    most = np.zeros_like(least)
    end = 0
    for _, end, chains, fresh in steps:
        least[fresh] = most[fresh] = 0
        (chain, start), *others = chains
        low, high = least[start] + parts[chain], most[start] + parts[chain]
        for chain, start in others:
            np.minimum(low, least[start] + parts[chain], out=low)
            np.maximum(high, most[start] + parts[chain], out=high)
        least[end], most[end] = low, high
    yield from zip(least[end].tolist(), most[end].tolist(), strict=True)


def _on_one(slack: Slack, weights: Mapping[Any, Weight]) -> dict[Any, Span]:
    """The spans of classes whose time counts in one image of an edge."""
    graph, images = slack.graph, slack.graph.images
    chains = _merged(slack, graph.meets != NONE)
    after = _turns_to_end(chains.of, graph.turn[slack.critical], images)
    classes: dict[Any, Span] = {}
    steps, slots = chains.steps()
    names, batch = list(weights), max(1, MOST // max(1, slots * images.order))
    for first in range(0, len(names), batch):
        some = names[first : first + batch]
        paths = _Paths(slack, chains, after, [weights[name] for name in some])
        classes |= {name: Span(*both) for name, both in zip(some, paths.extremes(steps, slots), strict=True)}
    return classes


def _turns_to_end(chain: Column, turn: Column, images: Images) -> Column:
    """For each edge, the element that maps the image of its chain's end to that of its own cause."""
    order = np.argsort(chain, kind="stable")
    lasts = np.flatnonzero(np.diff(chain[order], append=NONE))
    last = lasts[chain[order]]  # chains are numbered without gaps
    fold = images.fold
    columns = []
    for times, count, axis in zip(images.element(turn[order]), fold.counts, fold.folded_axes, strict=True):
        summed = (np.bitwise_xor.accumulate if axis.swap else np.cumsum)(times)
        columns.append(summed[last] ^ summed ^ times if axis.swap else (summed[last] - summed + times) % count)
    after = np.empty_like(order)
    after[order] = images.number(columns)
    return after


class _Paths:
    """Least and most times of classes on paths to the images of points: class × image, for each point."""

    def __init__(self, slack: Slack, chains: Chains, after: Column, weights: Sequence[Weight]) -> None:
        graph, self._images = slack.graph, slack.graph.images
        order = self._images.order
        self._turn = after[np.unique(chains.of, return_index=True)[1]].tolist()  # edges are ordered by their points
        self._shape = len(weights), order
        self._keeping = [None if group == NONE else graph.keeping[group] for group in graph.meets[chains.ends].tolist()]
        self._from = cache(lambda turn: self._images.combined(np.arange(order), turn))
        self._times = self._sorted(chains, after, weights)

    def _sorted(self, chains: Chains, after: Column, weights: Sequence[Weight]) -> list[Any]:
        """For each chain, the classes and images of its end for which it takes time, and the time."""
        count, (_, order) = len(chains.cause), self._shape
        keys, times = [], []
        for number, (edges, time, image) in enumerate(weights):
            assert image is not None
            end = self._images.combined(image, self._images.inverse(after[edges]))
            keys.append((chains.of[edges] * len(weights) + number) * order + end)
            times.append(time)
        unique, places = np.unique(np.concatenate(keys), return_inverse=True)
        total = _sums(places.reshape(-1), np.concatenate(times), len(unique))
        of = unique // (order * len(weights))
        bounds = np.searchsorted(of, np.arange(count + 1)).tolist()
        of_class, end = unique // order % len(weights), unique % order
        return [(of_class[a:b], end[a:b], total[a:b]) if b > a else None for a, b in pairwise(bounds)]

    def extremes(self, steps: Sequence[Step], slots: int) -> Iterator[tuple[int, int]]:
        """The least and the most time of each class over all paths to the last point."""
        least = np.zeros((max(slots, 1), *self._shape), dtype=np.int64)
        most = np.zeros_like(least)
        end = 0
        for point, end, chains, fresh in steps:
            least[fresh] = most[fresh] = 0
            lows, highs = zip(*(self._along(chain, least[start], most[start]) for chain, start in chains), strict=True)
            low, high = np.minimum.reduce(lows), np.maximum.reduce(highs)
            if (keeping := self._keeping[point]) is not None:
                low, high = _of_cosets(low, keeping, np.minimum), _of_cosets(high, keeping, np.maximum)
            least[end], most[end] = low, high
        yield from zip(least[end, :, 0].tolist(), most[end, :, 0].tolist(), strict=True)

    def _along(self, chain: int, least: Column, most: Column) -> tuple[Column, Column]:
        images = self._from(self._turn[chain])
        low, high = least[:, images], most[:, images]
        if (times := self._times[chain]) is not None:
            low[times[:2]] += times[2]
            high[times[:2]] += times[2]
        return low, high


def _of_cosets(values: Column, keeping: Column, extreme: np.ufunc) -> Column:
    """For each image of a meeting, the extreme value of all that share it."""
    merged = values.copy()
    extreme.at(merged.T, keeping, values.T)
    return merged[:, keeping]
