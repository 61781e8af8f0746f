"""The times of all points of a graph of causes with other durations of ops, for several changes at once.

A point with one cause follows it at a fixed distance, so it shares the node of that cause. Nodes are those that wait
for several causes, and those at which ops end, which take other times:

    node   time = max over its edges of (time of the cause's node + distance)  [+ duration of a piece of an op]
    point  time = time of its node + its distance

Nodes are computed level by level, all changes together: a level's causes are at levels before it.

Where a change lets messages reach a link in another order, the edge from the message before gives way to a wait of its
own, which is known from an earlier attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.edges import BLOCK
from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.services import LINK
from hybrid_des.simulation.timeline import NONE, Column

NEVER = -(2**61)  # picoseconds, of an edge that releases nothing


class Waits(NamedTuple):
    """How long messages wait for a link, instead of an edge from the message before: that edge, change and wait."""

    edge: Column
    change: Column
    wait: Column


@dataclass(frozen=True, eq=False)
class Nodes:
    """A graph of causes whose points are joined into nodes, which are ordered by level.

    Attributes:
        node: of each point.
        distance: picoseconds of each point after its node.
        cause: of each edge between nodes, ordered by the node that it leads to.
        lag: picoseconds of each of these edges, without durations of pieces.
        first: of each node, its first edge, and their number at the end; those of level 0 have none.
        levels: the first node of each level, and their number at the end.
        piece: the pieces of ops, by the order of the nodes at which they end: the last ones of their levels.
        pieces: by level, the first of these; and their number.
        behind: of each point, the edge from the message before on its link; −1 for other points.
        leads_to: of each edge, its node.
    """

    node: Column
    distance: Column
    cause: Column
    lag: Column
    first: Column
    levels: list[int]
    piece: Column
    pieces: list[int]
    behind: Column
    leads_to: Column

    @classmethod
    def of(cls, graph: Graph, alone: Column) -> Nodes:
        """Join the points of a graph.

        Args:
            graph: the graph.
            alone: points of messages that are served first at their links, but might be served after others.
        """
        edges, count = graph.edges, len(graph.time)
        lags = edges.lag()
        causes = np.bincount(edges.point, minlength=count)
        ends = edges.point[graph.pieces]
        apart = causes != 1
        apart[ends] = apart[alone] = True
        to, distance = _followed(np.flatnonzero(~apart), edges.cause[np.flatnonzero(~apart[edges.point])], lags, graph)
        number = np.cumsum(apart, dtype="int32") - 1
        mine = np.flatnonzero(apart[edges.point])
        cause, point = number[to[edges.cause[mine]]], number[edges.point[mine]]
        lag = lags[mine] + distance[edges.cause[mine]]
        lag[np.searchsorted(mine, graph.pieces)] -= lags[graph.pieces]
        queued = np.flatnonzero(edges.kind(mine) == LINK)
        turns = np.concatenate([queued, len(mine) + np.arange(len(alone))])
        after = np.concatenate([edges.point[mine[queued]], alone])
        cause = np.concatenate(
            [cause, np.zeros(len(alone), dtype=cause.dtype)]
        )  # of the first point, which has no cause
        point, lag = np.concatenate([point, number[alone]]), np.concatenate([lag, np.full(len(alone), NEVER)])
        level = _levels(cause, point, int(apart.sum()))
        timed = np.zeros(len(level), dtype=bool)
        timed[number[ends]] = True
        order = np.lexsort((timed, level))
        position = np.empty(len(order), dtype="int32")
        position[order] = np.arange(len(order))
        sorted_edges = np.argsort(position[point], kind="stable")
        first = np.searchsorted(position[point][sorted_edges], np.arange(len(order) + 1))
        piece = np.argsort(position[number[ends]], kind="stable")
        behind, at = np.full(count, NONE, dtype="int32"), np.empty(len(sorted_edges), dtype="int32")
        at[sorted_edges] = np.arange(len(sorted_edges))
        behind[after] = at[turns]
        bounds = np.searchsorted(level[order], np.arange(int(level.max(initial=0)) + 2))
        pieces = np.searchsorted(level[order][position[number[ends]][piece]], np.arange(len(bounds)))
        return cls(
            position[number[to]],
            distance,
            position[cause][sorted_edges],
            lag[sorted_edges],
            first,
            bounds.tolist(),
            piece,
            pieces.tolist(),
            behind,
            position[point][sorted_edges],
        )

    def times(self, durations: Column, waits: Waits) -> Column:
        """The times of nodes: node × change.

        Args:
            durations: piece × change, in the order of `Graph.pieces`.
            waits: what replaces edges, in the order of these.
        """
        changes = durations.shape[1]
        ordered = durations[self.piece]
        times: Column = np.zeros((self.levels[-1], changes), dtype=np.int64)
        first, cause, lag, levels, pieces = self.first.tolist(), self.cause, self.lag[:, None], self.levels, self.pieces
        other = 2 * self.first[self.leads_to[waits.edge]] + 1 - waits.edge  # a message that waits has two edges
        bounds = np.searchsorted(waits.edge, self.first[levels]).tolist()
        for level in range(1, len(levels) - 1):
            begin, end = levels[level], levels[level + 1]
            low, high = first[begin], first[end]
            ready = times[cause[low:high]]
            ready += lag[low:high]
            if bounds[level] < bounds[level + 1]:
                some = slice(bounds[level], bounds[level + 1])
                edge, change = waits.edge[some] - low, waits.change[some]
                ready[edge, change] = ready[other[some] - low, change] + waits.wait[some]
            own = pieces[level + 1] - pieces[level]
            if own:
                ready[-own:] += ordered[pieces[level] : pieces[level + 1]]
            np.maximum.reduceat(ready, self.first[begin:end] - low, axis=0, out=times[begin:end])
        return times

    def at(self, times: Column, points: Column) -> Column:
        """The times of points: point × change."""
        there: Column = times[self.node[points]]
        there += self.distance[points][:, None]
        return there


def _followed(points: Column, causes: Column, lags: Column, graph: Graph) -> tuple[Column, Column]:
    """What points follow at last that have one cause each, themselves for others; and how far behind."""
    count = len(graph.time)
    to, distance = np.arange(count, dtype="int32"), np.zeros(count, dtype=np.int64)
    to[points] = causes
    known = np.zeros(count, dtype=bool)
    known[points] = True
    distance[points] = lags[known[graph.edges.point]]
    while len(points):  # twice as far each time
        next_one = to[to[points]]
        on = np.flatnonzero(next_one != to[points])
        points, next_one = points[on], next_one[on]
        distance[points] += distance[to[points]]
        to[points] = next_one
    return to, distance


def _levels(cause: Column, point: Column, count: int) -> Column:
    """The most edges that lead to each node; edges follow those that lead to their causes, but for such from node 0."""
    levels = [0] * count
    order = np.argsort(point, kind="stable")
    for low in range(0, len(cause), BLOCK):
        some = order[low : low + BLOCK]
        for before, after in zip(cause[some].tolist(), point[some].tolist(), strict=True):
            if levels[before] >= levels[after]:
                levels[after] = levels[before] + 1
    return np.array(levels, dtype="int32")
