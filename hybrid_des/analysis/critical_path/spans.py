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

MOST = 8_000_000  # numbers held at once


class Span(NamedTuple):
    """The least and the most time of a class over all critical paths, in picoseconds."""

    least: int
    most: int


class Weight(NamedTuple):
    """The time of a class on each edge of `Slack.critical`.

    Attributes:
        time: picoseconds.
        image: the image in which the cause of each edge must be for its time to count; None: it counts in all.
    """

    time: Column
    image: Column | None = None


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


def spans(slack: Slack, weights: Mapping[Any, Weight]) -> dict[Any, Span]:
    """The span of each class."""
    if slack.graph.images.order == 1:
        return _on_all(slack, {name: weight.time for name, weight in weights.items()})
    known = _on_all(slack, {name: weight.time for name, weight in weights.items() if weight.image is None})
    known |= _on_one(slack, {name: weight for name, weight in weights.items() if weight.image is not None})
    return {name: known[name] for name in weights}


def change_of(slack: Slack, lag: Column) -> int:
    """Least growth of the run if the order stays and edges have these lags: the largest sum over a critical path."""
    edges = slack.critical
    return _on_all(slack, {"": lag[edges] - slack.graph.lag[edges]})[""].most


def _on_all(slack: Slack, weights: Mapping[Any, Column]) -> dict[Any, Span]:
    """The spans of classes whose time counts in all images of an edge."""
    names = list(weights)
    chains = _merged(slack, np.zeros(len(slack.graph.time), dtype=np.bool_))
    points = int(chains.point.max(initial=0)) + 1
    classes: dict[Any, Span] = {}
    batch = max(1, MOST // points)
    for first in range(0, len(names), batch):
        some = names[first : first + batch]
        parts = np.stack([_summed(chains.of, weights[name], len(chains.cause)) for name in some], axis=1)
        least, most = _extremes(chains.cause.tolist(), chains.point.tolist(), parts, points)
        classes |= {name: Span(int(a), int(b)) for name, a, b in zip(some, least, most, strict=True)}
    return classes


def _summed(chain: Column, weight: Column, count: int) -> Column:
    """The weights of edges, summed over each chain; exactly, in two halves, since a float holds 53 bits."""
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


def _extremes(cause: list[int], point: list[int], parts: Column, points: int) -> tuple[Column, Column]:
    """The least and the greatest sum of each column over all paths to the last point."""
    least = np.zeros((points, parts.shape[1]), dtype=np.int64)
    most = np.zeros_like(least)
    before = -1
    for edge, (start, end) in enumerate(zip(cause, point, strict=True)):
        low, high = least[start] + parts[edge], most[start] + parts[edge]
        if end == before:  # another path to the same point
            np.minimum(least[end], low, out=least[end])
            np.maximum(most[end], high, out=most[end])
        else:
            least[end], most[end] = low, high
        before = end
    return least[-1], most[-1]


def _on_one(slack: Slack, weights: Mapping[Any, Weight]) -> dict[Any, Span]:
    """The spans of classes whose time counts in one image of an edge."""
    graph, images = slack.graph, slack.graph.images
    chains = _merged(slack, graph.meets != NONE)
    after = _turns_to_end(chains.of, graph.turn[slack.critical], images)
    classes: dict[Any, Span] = {}
    names, size = list(weights), (int(chains.point.max(initial=0)) + 1) * images.order
    batch = max(1, MOST // size)
    for first in range(0, len(names), batch):
        some = names[first : first + batch]
        paths = _Paths(slack, chains, after, [weights[name] for name in some])
        classes |= {name: Span(*both) for name, both in zip(some, paths.extremes(), strict=True)}
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
        order, count = self._images.order, len(chains.cause)
        turn = np.zeros(count, dtype=np.int64)
        _, firsts = np.unique(chains.of, return_index=True)  # edges are ordered by their points
        turn[:] = after[firsts]
        self._edges = list(zip(chains.cause.tolist(), chains.point.tolist(), turn.tolist(), strict=True))
        self._points, self._shape = len(chains.ends), (len(weights), order)
        self._keeping = [None if group == NONE else graph.keeping[group] for group in graph.meets[chains.ends].tolist()]
        self._from = cache(lambda turn: self._images.combined(np.arange(order), turn))
        self._times = self._sorted(chains, after, weights)

    def _sorted(self, chains: Chains, after: Column, weights: Sequence[Weight]) -> list[Any]:
        """For each chain, the classes and images of its end for which it takes time, and the time."""
        count, (_, order) = len(chains.cause), self._shape
        keys, times = [], []
        for number, (time, image) in enumerate(weights):
            edges = np.flatnonzero(time)
            assert image is not None
            end = self._images.combined(image[edges], self._images.inverse(after[edges]))
            keys.append((chains.of[edges] * len(weights) + number) * order + end)
            times.append(time[edges])
        unique, places = np.unique(np.concatenate(keys), return_inverse=True)
        total = _summed(places.reshape(-1), np.concatenate(times), len(unique))
        of = unique // (order * len(weights))
        bounds = np.searchsorted(of, np.arange(count + 1)).tolist()
        of_class, end = unique // order % len(weights), unique % order
        return [(of_class[a:b], end[a:b], total[a:b]) if b > a else None for a, b in pairwise(bounds)]

    def extremes(self) -> Iterator[tuple[int, int]]:
        """The least and the most time of each class over all paths to the last point."""
        least = np.zeros((self._points, *self._shape), dtype=np.int64)
        most = np.zeros_like(least)
        edges = enumerate(self._edges)
        for end, into in groupby(edges, key=lambda edge: edge[1][1]):
            lows, highs = zip(*(self._along(edge, least, most) for edge in into), strict=True)
            least[end], most[end] = np.minimum.reduce(lows), np.maximum.reduce(highs)
            if (keeping := self._keeping[end]) is not None:
                least[end] = _of_cosets(least[end], keeping, np.minimum)
                most[end] = _of_cosets(most[end], keeping, np.maximum)
        yield from zip(least[-1, :, 0].tolist(), most[-1, :, 0].tolist(), strict=True)

    def _along(self, edge: tuple[int, tuple[int, int, int]], least: Column, most: Column) -> tuple[Column, Column]:
        number, (start, _, turn) = edge
        images = self._from(turn)
        low, high = least[start][:, images], most[start][:, images]
        if (times := self._times[number]) is not None:
            low[times[:2]] += times[2]
            high[times[:2]] += times[2]
        return low, high


def _of_cosets(values: Column, keeping: Column, extreme: np.ufunc) -> Column:
    """For each image of a meeting, the extreme value of all that share it."""
    merged = values.copy()
    extreme.at(merged.T, keeping, values.T)
    return merged[:, keeping]
