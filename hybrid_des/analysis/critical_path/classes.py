"""Classes of activities, with their least and most time over all critical paths: ranks, kinds, stages, links.

A folded run has the classes of all ranks and links: images of a rank have the same times.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.spans import Span, Weight, spans
from hybrid_des.planning.program_table import NONE, OP_KINDS, Column, Columns

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
