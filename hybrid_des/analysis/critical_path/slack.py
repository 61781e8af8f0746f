"""Slack: how late each point may be without making the run longer, and what follows for ops and messages.

The order of everything is kept. For an activity of duration d that starts at s:

    total float   how much later it may start: latest start − s
    free float    how much later it may start before anything else starts later
    drag          how much shorter the run would be if it took no time: T − T(d := 0)

Latest times by Kelley and Walker, 1959; drag by Devaux, 1999.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybrid_des.analysis.critical_path.chains import Chains
from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.messages import LINK
from hybrid_des.simulation.timeline import NONE, Column

AT_ONCE = 2**16  # rows
FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Slack:
    """The slack of all points.

    Attributes:
        graph: the causes of the run.
        latest: the latest time of each point that does not make the run longer.
        free: how much later each point may be before anything else starts later.
    """

    graph: Graph
    latest: Column
    free: Column

    @classmethod
    def of(cls, graph: Graph) -> Slack:
        """Compute the slack of all points, in one pass from the end."""
        latest = [graph.duration] * len(graph.time)
        free = [FOREVER] * len(graph.time)
        edges = (graph.cause, graph.point, graph.lag, graph.time[graph.point] - graph.time[graph.cause] - graph.lag,
                 _passed_on(graph))  # fmt: skip
        for cause, point, lag, slack, passed in _backwards(*edges):
            if (late := latest[point] - lag) < latest[cause]:
                latest[cause] = late
            if passed:
                slack += free[point]
            if slack < free[cause]:
                free[cause] = slack
        lates = np.array(latest, dtype=np.int64)
        return cls(graph, lates, np.minimum(np.array(free, dtype=np.int64), lates - graph.time))

    @property
    def total(self) -> Column:
        """The total float of each point."""
        return self.latest - self.graph.time

    @cached_property
    def of_ops(self) -> Column:
        """The total float of each op row: of its first piece, or of its point if it takes no time."""
        total = self.total[self.graph.at_op[1]].copy()
        ops, points = self._pieces
        np.minimum.at(total, ops, self.total[points])
        return total

    @property
    def _pieces(self) -> tuple[Column, Column]:
        """The op and the end of each piece of an op."""
        graph = self.graph
        chosen = (graph.activity >= 0) & (graph.activity < len(graph.timeline.ops["step"]))
        return graph.activity[chosen], graph.point[chosen]

    @property
    def of_messages(self) -> Column:
        """The total float of each message."""
        return self.total[self.graph.head]

    @cached_property
    def free_of_ops(self) -> Column:
        """The free float of each op row."""
        return np.minimum(self.free[self.graph.at_op[1]], self.of_ops)

    @cached_property
    def free_of_messages(self) -> Column:
        """The free float of each message: until its receiver or the message behind it on any link would be delayed."""
        graph = self.graph
        ops = len(graph.timeline.ops["step"])
        free = self.free[graph.delivered].copy()
        behind = np.flatnonzero((graph.kind == LINK) & (graph.activity >= ops))
        slack = graph.time[graph.point[behind]] - graph.time[graph.cause[behind]] - graph.lag[behind]
        np.minimum.at(free, graph.activity[behind] - ops, slack)
        return np.minimum(free, self.of_messages)

    @cached_property
    def critical(self) -> Column:
        """The edges of all critical paths."""
        graph, on = self.graph, self.latest == self.graph.time
        edges = np.flatnonzero(on[graph.point])
        cause, point = graph.cause[edges], graph.point[edges]
        return edges[on[cause] & (graph.time[cause] + graph.lag[edges] == graph.time[point])]

    @cached_property
    def chains(self) -> Chains:
        """The critical edges, merged to chains."""
        return self._merged(np.empty(0, dtype=np.int64))

    @cached_property
    def met(self) -> Chains:
        """The same; chains end where ranks meet."""
        return self._merged(np.flatnonzero(self.graph.meets != NONE))

    def _merged(self, kept: Column) -> Chains:
        return Chains.of_edges(self.graph.cause[self.critical], self.graph.point[self.critical], kept)

    @cached_property
    def drag_of_ops(self) -> Column:
        """The drag of each op row; for ops of several pieces, the largest drag of a piece.

        In a folded run it is 0: an image of a critical path, which is as long, leads through an image of the op.
        """
        graph = self.graph
        drag = np.zeros(len(graph.timeline.ops["step"]), dtype=np.int64)
        if graph.images.order > 1:
            return drag
        mine = (graph.activity >= 0) & (graph.activity < len(drag))
        edges = np.flatnonzero(mine & (self.total[graph.point] == 0) & graph.binding)
        without = self._longest_beside(graph.point[edges])
        np.maximum.at(drag, graph.activity[edges], np.minimum(graph.lag[edges], graph.duration - without))
        return drag

    def _longest_beside(self, points: Column) -> Column:
        """The length of the longest path that bypasses each of some points, which have one edge each.

        In the order of points, every path crosses the place of a point once; a path that bypasses the point does so on
        an edge from before it to after it, and the longest path over such an edge is known. So this is the maximum of
        the intervals over a place: each is entered as two blocks of the largest power of two that fits, which are then
        halved down to single places.
        """
        graph = self.graph
        places, back = np.unique(points, return_inverse=True)
        low = np.searchsorted(places, graph.cause, side="right")  # the first place after the cause
        high = np.searchsorted(places, graph.point, side="left")  # the first place not before the point
        longest = graph.time[graph.cause] + graph.lag + graph.duration - self.latest[graph.point]
        over = np.flatnonzero(high > low)
        low, high, longest = low[over], high[over], longest[over]
        level = np.frexp(high - low)[1].astype(np.int64) - 1
        best = np.zeros(len(places), dtype=np.int64)
        for depth in range(int(level.max(initial=NONE)), NONE, -1):
            size, here = 1 << depth, level == depth
            if depth < int(level.max()):  # halve the blocks of the level above
                upper = best.copy()
                np.maximum(best[size:], upper[:-size], out=best[size:])
            np.maximum.at(best, low[here], longest[here])
            np.maximum.at(best, high[here] - size, longest[here])
        return best[back.reshape(-1)]


def _backwards(*columns: Column) -> Iterator[tuple[int, ...]]:
    """The rows of columns from the last to the first, a part at a time: Python's numbers take four times the memory."""
    for end in range(len(columns[0]), 0, -AT_ONCE):
        yield from zip(*(column[max(end - AT_ONCE, 0) : end][::-1].tolist() for column in columns), strict=True)


def _passed_on(graph: Graph) -> Column:
    """Whether an edge passes on a delay without itself starting anything later.

    True where a process merely continues to wait; not where it computes, sends a message, or ends the run.
    """
    waits: Column = (graph.activity == NONE) & (graph.point != graph.end)
    return waits
