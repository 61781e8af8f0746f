"""Least and most time of a class of activities over all critical paths, and what a change of durations does to them.

In frozen order, if every critical path has at least c_min of a class and some path has c_max, scaling the class by
θ < 1 saves at most (1 − θ)·c_min, and scaling it by θ > 1 costs at least (θ − 1)·c_max.

In a folded run, a class that is on one rank or link only has its time in one image of an edge: least and most are found
for all images of every point at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.chains import Chains, Step
from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.planning.program_table import NONE, Column

MOST = 4_000_000  # numbers held at once

Steps = tuple[list[Step], int]


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


def spans(slack: Slack, weights: Mapping[Any, Weight]) -> dict[Any, Span]:
    """The span of each class."""
    if slack.graph.images.order == 1:
        return _on_all(slack, weights)
    known = _on_all(slack, {name: weight for name, weight in weights.items() if weight.image is None})
    known |= _on_one(slack, {name: weight for name, weight in weights.items() if weight.image is not None})
    return {name: known[name] for name in weights}


def change_of(slack: Slack, lag: Column) -> int:
    """Least growth of the run if the order stays and edges take other times: the largest sum over a critical path.

    Args:
        slack: the slack of the run.
        lag: the lags of the edges of `slack.critical`.
    """
    more, chains = lag - slack.graph.edges.lag(slack.critical), slack.chains
    sums = np.zeros(len(chains.cause), dtype=np.int64)
    np.add.at(sums, chains.of, more)
    most: dict[int, int] = {}
    end = NONE
    for cause, end, summed in zip(chains.cause.tolist(), chains.point.tolist(), sums.tolist(), strict=True):
        after = most.get(cause, 0) + summed
        if after > most.get(end, after - 1):
            most[end] = after
    return most.get(end, 0)


def _on_all(slack: Slack, weights: Mapping[Any, Weight]) -> dict[Any, Span]:
    """The spans of classes whose time counts in all images of an edge."""
    chains = slack.chains
    sums = [_summed(chains, weight) for weight in weights.values()]
    return {name: Span(*both) for name, both in zip(weights, _extremes(chains, sums), strict=True)}


def _summed(chains: Chains, weight: Weight) -> tuple[Column, Column]:
    """The chains on which a class takes time, in order, and its time on each."""
    chain = chains.of[weight.edges]
    order = np.argsort(chain, kind="stable")
    firsts = np.flatnonzero(np.diff(chain[order], prepend=NONE))
    return chain[order[firsts]], np.add.reduceat(weight.time[order], firsts) if len(firsts) else weight.time


def _extremes(chains: Chains, sums: Sequence[tuple[Column, Column]]) -> Iterator[tuple[int, int]]:
    """The least and the greatest sum of each class over all paths to the last point.

    The greatest sums are kept as the least ones of negative times, so that both are found at once.
    """
    steps, slots = chains.steps()
    state = np.zeros((max(slots, 1), 2 * len(sums)), dtype=np.int64)
    at, parts, end = list(state), _rows(sums, len(chains.cause)), 0
    for _, end, _, starts, fresh in steps:
        for slot in fresh:
            at[slot][:] = 0
        into = at[end]
        np.add(at[starts[0]], next(parts), out=into)
        for start in starts[1:]:
            np.minimum(into, at[start] + next(parts), out=into)
    least, most = np.split(state[end], 2)
    yield from zip(least.tolist(), (-most).tolist(), strict=True)


def _rows(sums: Sequence[tuple[Column, Column]], count: int) -> Iterator[Column]:
    """The times of all classes on each chain, then the same as negative numbers."""
    classes = len(sums)
    size = max(1, MOST // max(2 * classes, 1))
    for first in range(0, count, size):
        block = np.zeros((min(size, count - first), 2 * classes), dtype=np.int64)
        for number, (chain, time) in enumerate(sums):
            low, high = np.searchsorted(chain, (first, first + len(block)))
            block[chain[low:high] - first, number] = time[low:high]
        np.negative(block[:, :classes], out=block[:, classes:])
        yield from block


def _sums(chain: Column, weight: Column, count: int) -> Column:
    """Weights summed over each chain."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, chain, weight)
    return sums


def _on_one(slack: Slack, weights: Mapping[Any, Weight]) -> dict[Any, Span]:
    """The spans of classes whose time counts in one image of an edge."""
    images, chains = slack.graph.images, slack.met
    after = _turns_to_end(chains.of, slack.graph.edges.turn[slack.critical], images)
    classes: dict[Any, Span] = {}
    steps = chains.steps()
    names, batch = list(weights), max(1, MOST // max(1, 2 * steps[1] * images.order))
    for first in range(0, len(names), batch):
        some = names[first : first + batch]
        paths = _Paths(slack, chains, steps, after, [weights[name] for name in some])
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

    def __init__(self, slack: Slack, chains: Chains, steps: Steps, after: Column, weights: Sequence[Weight]) -> None:
        graph, self._images = slack.graph, slack.graph.images
        order = self._images.order
        self._steps, self._slots = steps
        self._turn = after[np.unique(chains.of, return_index=True)[1]].tolist()  # edges are ordered by their points
        self._shape = len(weights), order
        self._keeping = [None if group == NONE else graph.keeping[group] for group in graph.meets[chains.ends].tolist()]
        self._from = cache(lambda turn: self._images.combined(np.arange(order), turn))
        self._times = self._sorted(chains, after, weights)

    def _sorted(self, chains: Chains, after: Column, weights: Sequence[Weight]) -> list[Any]:
        """For each chain, the classes and images of its end for which it takes time, and the time.

        Every class is followed by itself with negative times.
        """
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
        columns = [
            np.stack(both, axis=1) for both in ((of_class, of_class + len(weights)), (end, end), (total, -total))
        ]
        return [tuple(column[a:b].reshape(-1) for column in columns) if b > a else None for a, b in pairwise(bounds)]

    def extremes(self) -> Iterator[tuple[int, int]]:
        """The least and the most time of each class over all paths to the last point."""
        classes, order = self._shape
        state = np.zeros((max(self._slots, 1), 2 * classes, order), dtype=np.int64)
        end = 0
        for point, end, number, starts, fresh in self._steps:
            for slot in fresh:
                state[slot] = 0
            into = state[end]
            self._along(number, state[starts[0]], into)
            for chain, start in enumerate(starts[1:], number + 1):
                np.minimum(into, self._along(chain, state[start], np.empty_like(into)), out=into)
            if (keeping := self._keeping[point]) is not None:
                into[:] = _of_cosets(into, keeping)
        least, most = state[end, :classes, 0], -state[end, classes:, 0]
        yield from zip(least.tolist(), most.tolist(), strict=True)

    def _along(self, chain: int, sums: Column, into: Column) -> Column:
        """Write the sums after a chain."""
        if turn := self._turn[chain]:
            np.take(sums, self._from(turn), axis=1, out=into)
        else:
            into[:] = sums
        if (times := self._times[chain]) is not None:
            into[times[:2]] += times[2]
        return into


def _of_cosets(values: Column, keeping: Column) -> Column:
    """For each image of a meeting, the least value of all that share it."""
    merged = values.copy()
    np.minimum.at(merged.T, keeping, values.T)
    return merged[:, keeping]
