"""Least and most time of a class of activities over all critical paths, and what a change of durations does to them.

In frozen order, if every critical path has at least c_min of a class and some path has c_max, scaling the class by
θ < 1 saves at most (1 − θ)·c_min, and scaling it by θ > 1 costs at least (θ − 1)·c_max.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.simulation.timeline import OP_KINDS, Column

MOST = 8_000_000  # numbers held at once


MOST_CLASSES = 32  # of one sort: those with the most time on critical paths


class Span(NamedTuple):
    """The least and the most time of a class over all critical paths, in picoseconds."""

    least: int
    most: int


def spans(slack: Slack, weights: Mapping[Any, Column]) -> dict[Any, Span]:
    """The span of each class; `weights` has the time of each class on each edge of `slack.critical`."""
    names = list(weights)
    edges = slack.critical
    cause, point, chain = _contracted(slack.graph.cause[edges], slack.graph.point[edges])
    points = int(point.max(initial=0)) + 1
    classes: dict[Any, Span] = {}
    batch = max(1, MOST // points)
    for first in range(0, len(names), batch):
        some = names[first : first + batch]
        parts = np.stack([_summed(chain, weights[name], len(cause)) for name in some], axis=1)
        least, most = _extremes(cause.tolist(), point.tolist(), parts, points)
        classes |= {name: Span(int(a), int(b)) for name, a, b in zip(some, least, most, strict=True)}
    return classes


def _summed(chain: Column, weight: Column, count: int) -> Column:
    """The weights of edges, summed over each chain; exactly, in two halves, since a float holds 53 bits."""
    high, low = weight >> 31, weight & (2**31 - 1)
    sums = [np.bincount(chain, weights=half, minlength=count).astype(np.int64) for half in (high, low)]
    return np.asarray((sums[0] << 31) + sums[1])


def _contracted(cause: Column, point: Column) -> tuple[Column, Column, Column]:
    """Merge chains of edges without branches: the ends of each chain, numbered in order, and the chain of each edge.

    The chain of an edge is found by pointer jumping: each edge points to the one before it, then to the one before
    that, twice as far each time.
    """
    points, numbers = np.unique(np.concatenate([cause, point]), return_inverse=True)
    cause, point = numbers[: len(cause)], numbers[len(cause) :]
    into, out = np.bincount(point, minlength=len(points)), np.bincount(cause, minlength=len(points))
    edge_into = np.zeros(len(points), dtype=np.int64)
    edge_into[point] = np.arange(len(point))
    inner = (into == 1) & (out == 1)
    root = np.where(inner[cause], edge_into[cause], np.arange(len(cause)))
    while (root[root] != root).any():
        root = root[root]
    roots, chain = np.unique(root, return_inverse=True)
    last = np.zeros(len(roots), dtype=np.int64)
    np.maximum.at(last, chain, point)
    order = np.argsort(last, kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    _, kept = np.unique(np.concatenate([cause[roots][order], last[order]]), return_inverse=True)
    return kept[: len(roots)], kept[len(roots) :], position[chain]


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


def change_of(slack: Slack, lag: Column) -> int:
    """Least growth of the run if the order stays and edges have these lags: the largest sum over a critical path."""
    edges = slack.critical
    return spans(slack, {"": lag[edges] - slack.graph.lag[edges]})[""].most


def class_weights(slack: Slack) -> dict[tuple[str, object], Column]:
    """The time of each class on critical edges: by kind, rank, rank and kind, stage, link, and of all links."""
    graph, edges = slack.graph, slack.critical
    ops = graph.timeline.op_rows()
    activity = graph.activity[edges]
    computes = (activity >= 0) & (activity < len(ops["rank"]))
    lag = np.where(computes, graph.lag[edges], 0)
    of = np.where(computes, activity, 0)
    bytes_ = graph.transfer[edges] + graph.queue[edges]
    weights: dict[tuple[str, object], Column] = {
        ("links", "all"): bytes_,
        ("latency", "all"): graph.latency[edges],
        ("queueing", "all"): graph.queue[edges],
        ("compute", "all"): lag,
    }
    keys = {"kind": ops["kind"], "rank": ops["rank"], "stage": ops["stage"],
            "rank and kind": ops["rank"] * len(OP_KINDS) + ops["kind"]}  # fmt: skip
    for sort, key in keys.items():
        weights |= {(sort, value): part for value, part in _split(key[of] if len(key) else of, lag)}
    weights |= {("link", value): part for value, part in _split(graph.link[edges], bytes_)}
    return {(sort, _named(graph, sort, value)): part for (sort, value), part in weights.items()}


def _split(key: Column, lag: Column) -> list[tuple[object, Column]]:
    """The lags of each value of a key, those with the most first."""
    timed = lag != 0
    values, places = np.unique(key[timed], return_inverse=True)
    sums = np.bincount(places.reshape(-1), weights=lag[timed].astype(np.float64), minlength=len(values))
    chosen = values[np.argsort(-sums, kind="stable")][:MOST_CLASSES].tolist()
    return [(value, np.where(key == value, lag, 0)) for value in chosen]


def _named(graph: Graph, sort: str, value: object) -> object:
    """The name of a class in reports."""
    if not isinstance(value, int):
        return value
    if sort == "kind":
        return OP_KINDS[value]
    if sort == "link":
        return graph.messages.links[value] if value >= 0 else "none"
    if sort == "rank and kind":
        return f"{value // len(OP_KINDS)} {OP_KINDS[value % len(OP_KINDS)]}"
    return value
