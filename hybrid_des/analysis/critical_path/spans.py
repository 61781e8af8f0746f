"""Least and most time of a class of activities over all critical paths, and what a change of durations does to them.

In frozen order, if every critical path has at least c_min of a class and some path has c_max, scaling the class by
θ < 1 saves at most (1 − θ)·c_min, and scaling it by θ > 1 costs at least (θ − 1)·c_max.

In a folded run, a class that is on one rank or link only has its time in one image of an edge: least and most are found
for all images of every point at once.

Classes are ranks, kinds, stages and links; a folded run has the classes of all ranks and links: images of a rank have
the same times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.slack import Chains, Slack, Step
from hybrid_des.planning.program_table import NONE, OP_KINDS, Column, Columns

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
        return _spans(slack, weights, apart=False)
    known = _spans(slack, {name: weight for name, weight in weights.items() if weight.image is None}, apart=False)
    known |= _spans(slack, {name: weight for name, weight in weights.items() if weight.image is not None}, apart=True)
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


def _spans(slack: Slack, weights: Mapping[Any, Weight], *, apart: bool) -> dict[Any, Span]:
    """The spans of classes whose time counts in one image of an edge, where images are kept `apart`, or in all."""
    chains = slack.met if apart else slack.chains
    classes: dict[Any, Span] = {}
    steps = chains.steps()
    order = slack.graph.images.order if apart else 1
    names, batch = list(weights), max(1, MOST // max(1, 2 * steps[1] * order))
    for first in range(0, len(names), batch):
        some = names[first : first + batch]
        paths = _Paths(slack, chains, steps, [weights[name] for name in some], apart=apart)
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

    def __init__(self, slack: Slack, chains: Chains, steps: Steps, weights: Sequence[Weight], *, apart: bool) -> None:
        graph, self._images = slack.graph, slack.graph.images
        self._steps, self._slots = steps
        self._shape = classes, order = len(weights), self._images.order if apart else 1
        edges = [weight.edges for weight in weights]
        key = chains.of[np.concatenate(edges)] * classes + np.repeat(np.arange(classes), [*map(len, edges)])
        self._turn, self._keeping = [0] * len(chains.cause), [None] * len(chains.ends)
        if apart:
            after = _turns_to_end(chains.of, graph.edges.turn[slack.critical], self._images)
            self._turn = after[np.unique(chains.of, return_index=True)[1]].tolist()  # edges are ordered by their points
            self._keeping = [
                graph.keeping[group] if group != NONE else None for group in graph.meets[chains.ends].tolist()
            ]
            image = np.concatenate([weight.image for weight in weights])
            key = key * order + self._images.combined(image, self._images.inverse(after[np.concatenate(edges)]))
        self._from = cache(lambda turn: self._images.combined(np.arange(order), turn))
        self._times = self._by_chain(key, np.concatenate([weight.time for weight in weights]), len(chains.cause))

    def _by_chain(self, key: Column, time: Column, count: int) -> list[Any]:
        """For each chain, the classes and images of its end for which it takes time, and the time.

        Every class is followed by itself with negative times.

        Args:
            key: of each time, its chain, class and image, in this order.
            time: picoseconds.
            count: of chains.
        """
        classes, order = self._shape
        unique, places = np.unique(key, return_inverse=True)
        total = np.zeros(len(unique), dtype=np.int64)
        np.add.at(total, places.reshape(-1), time)
        bounds = np.searchsorted(unique // (order * classes), np.arange(count + 1)).tolist()
        of_class, end = unique // order % classes, unique % order
        columns = [np.stack(both, axis=1) for both in ((of_class, of_class + classes), (end, end), (total, -total))]
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


MOST_CLASSES = 32  # of one sort: those with the most time on critical paths


Name = tuple[str, object]  # sort and name


class Class(NamedTuple):
    """A class, and the one that was simulated in its place, whose times it has."""

    name: Name
    simulated: Name


def class_spans(slack: Slack) -> dict[Name, Span]:
    """The span of each class: by kind, rank, rank and kind, stage, link, and of all links."""
    classes, weights = _classes(slack)
    known = spans(slack, weights)
    return {one.name: known[one.simulated] for one in classes}


def _classes(slack: Slack) -> tuple[list[Class], Mapping[Name, Weight]]:
    """The classes in the order of reports, and the times of those that were simulated."""
    graph, edges = slack.graph, slack.critical
    ops = graph.timeline.op_rows()
    activity, parts = graph.edges.activity(edges), graph.edges.parts(edges)
    computes = (activity >= 0) & (activity < len(ops["rank"]))
    lag = np.where(computes, graph.edges.lag(edges), 0)
    of = np.where(computes, activity, 0)
    bytes_ = parts["transfer"] + parts["queue"]
    weights: dict[Name, Weight] = {
        ("links", "all"): Weight.of(bytes_),
        ("latency", "all"): Weight.of(parts["latency"]),
        ("queueing", "all"): Weight.of(parts["queue"]),
        ("compute", "all"): Weight.of(parts["compute"]),
    }
    classes = [Class(name, name) for name in weights]
    mine = {name: ops[name][of] if len(ops[name]) else of for name in ("kind", "rank", "stage")}
    for sort in ("kind", "rank", "stage", "rank and kind"):
        if "rank" in sort:
            some, times = _by_rank(graph, sort, mine, lag)
        else:
            some, times = _by_value(sort, mine[sort], lag)
        classes += some
        weights |= times
    some, times = _by_link(graph, graph.edges.link(edges), bytes_)
    return classes + some, weights | times


def _by_value(sort: str, key: Column, lag: Column) -> tuple[list[Class], dict[Name, Weight]]:
    """Classes that all images share."""
    values, sums = _sums(key, lag)
    chosen = values[np.argsort(-sums, kind="stable")][:MOST_CLASSES].tolist()
    names: list[Name] = [(sort, OP_KINDS[value] if sort == "kind" else value) for value in chosen]
    return [Class(name, name) for name in names], dict(zip(names, _weights(key, lag, chosen), strict=True))


def _by_rank(graph: Graph, sort: str, of: Columns, lag: Column) -> tuple[list[Class], dict[Name, Weight]]:
    """The ranks, or kinds of ops on each, with the most time."""
    kinds = len(OP_KINDS) if "kind" in sort else 1
    key = of["rank"] * kinds + (of["kind"] if kinds > 1 else 0)
    values, sums = _sums(key, lag)
    images = graph.images.moved((values // kinds)[:, None], np.arange(graph.images.order)) * kinds
    every = (images + (values % kinds)[:, None]).reshape(-1)
    order = np.lexsort((every, -np.repeat(sums, graph.images.order)))[:MOST_CLASSES]

    def named(value: int) -> Name:
        return sort, f"{value // kinds} {OP_KINDS[value % kinds]}" if kinds > 1 else value

    simulated = np.repeat(values, graph.images.order)
    classes = [Class(named(a), named(b)) for a, b in zip(every[order].tolist(), simulated[order].tolist(), strict=True)]
    image = np.zeros(len(lag), dtype=np.int64)
    wanted = np.unique(simulated[order]).tolist()
    return classes, dict(zip(map(named, wanted), _weights(key, lag, wanted, image), strict=True))


def _by_link(graph: Graph, link: Column, bytes_: Column) -> tuple[list[Class], dict[Name, Weight]]:
    """The links with the most time; `none` for what takes time on none, which all images share."""
    images, links = graph.images, graph.messages.over
    lane, turned = np.append(links.lane, NONE)[link], np.append(links.turned, 0)[link]
    values, sums = _sums(lane, bytes_)
    sums[values == NONE] *= images.order  # once for every image
    names = [(-total, name, value) for value, total in zip(values.tolist(), sums.tolist(), strict=True)
             for name in (links.images(value) if value >= 0 else [""])]  # fmt: skip
    chosen = sorted(names)[:MOST_CLASSES]
    classes = [Class(("link", name or "none"), ("lane", value)) for _, name, value in chosen]
    image = images.inverse(turned)
    lanes = list(dict.fromkeys(value for _, _, value in chosen))
    weights: dict[Name, Weight] = {}
    for value, weight in zip(lanes, _weights(lane, bytes_, lanes, image), strict=True):
        weights["lane", value] = weight._replace(image=None) if value == NONE else weight
    return classes, weights


def _weights(key: Column, time: Column, values: Sequence[int], image: Column | None = None) -> Iterator[Weight]:
    """The times of the classes that have these values of a key."""
    timed = np.flatnonzero(time)
    keys = key[timed]
    for value in values:
        edges = timed[keys == value]
        yield Weight(edges.astype(np.int32), time[edges].astype(np.int64), None if image is None else image[edges])


def _sums(key: Column, lag: Column) -> tuple[Column, Column]:
    """The values of a key, and the time of each."""
    timed = lag != 0
    values, places = np.unique(key[timed], return_inverse=True)
    return values, np.bincount(places.reshape(-1), weights=lag[timed].astype(np.float64), minlength=len(values))
