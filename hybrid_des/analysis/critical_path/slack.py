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
    """

    graph: Graph
    latest: Column

    @classmethod
    def of(cls, graph: Graph) -> Slack:
        """Compute the slack of all points, in one pass from the end."""
        latest = [graph.duration] * len(graph.time)
        for cause, point, lag in _backwards(graph.cause, graph.point, graph.lag):
            if (late := latest[point] - lag) < latest[cause]:
                latest[cause] = late
        return cls(graph, np.array(latest, dtype=np.int64))

    @cached_property
    def free(self) -> Column:
        """How much later each point may be before anything else starts later."""
        graph, passed = self.graph, _passed_on(self.graph)
        free = np.full(len(graph.time), FOREVER)
        for first in range(0, len(passed), AT_ONCE):
            edges = first + np.flatnonzero(~passed[first : first + AT_ONCE])
            np.minimum.at(free, graph.cause[edges], self._slack_of(edges))
        edges, frees = np.flatnonzero(passed), free.data
        for cause, point, slack in _backwards(graph.cause[edges], graph.point[edges], self._slack_of(edges)):
            if (until := slack + frees[point]) < frees[cause]:
                frees[cause] = until
        until_late: Column = np.minimum(free, self.total)
        return until_late

    def _slack_of(self, edges: Column) -> Column:
        """How long causes are ready before what their edges lead to."""
        graph = self.graph
        slack: Column = graph.time[graph.point[edges]] - graph.time[graph.cause[edges]] - graph.lag[edges]
        return slack

    @property
    def total(self) -> Column:
        """The total float of each point."""
        return self.latest - self.graph.time

    @cached_property
    def of_ops(self) -> Column:
        """The total float of each op row: of its first piece, or of its point if it takes no time."""
        total = self.total[self.graph.at_op[1]].copy()
        pieces = self.graph.pieces
        np.minimum.at(total, self.graph.activity[pieces], self.total[self.graph.point[pieces]])
        return total

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
        np.minimum.at(free, graph.activity[behind] - ops, self._slack_of(behind))
        return np.minimum(free, self.of_messages)

    @cached_property
    def critical(self) -> Column:
        """The edges of all critical paths."""
        graph, on = self.graph, self.latest == self.graph.time
        edges: Column = np.flatnonzero(on[graph.point])
        cause, point = graph.cause[edges], graph.point[edges]
        binding = graph.time[cause] + graph.lag[edges] == graph.time[point]
        critical: Column = edges[on[cause] & binding]
        return critical

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
        edges = graph.pieces
        edges = edges[(self.total[graph.point[edges]] == 0) & (self._slack_of(edges) == 0)]
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
        until = np.searchsorted(places, np.arange(len(graph.time)), side="right").astype(
            np.int32
        )  # places up to a point
        into = np.zeros(len(graph.time), dtype=np.bool_)
        into[places] = True
        low = until[graph.cause]  # the first place after the cause
        over = np.flatnonzero(until[graph.point] - into[graph.point] > low)
        cause, point = graph.cause[over], graph.point[over]
        low, high = low[over], until[point] - into[point]  # the first place not before the point
        longest = graph.time[cause] + graph.lag[over] + graph.duration - self.latest[point]
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
