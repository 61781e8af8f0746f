"""Slack: how late each point may be without making the run longer, and what follows for ops and messages.

The order of everything is kept. For an activity of duration d that starts at s:

    total float   how much later it may start: latest start − s
    free float    how much later it may start before anything else starts later
    drag          how much shorter the run would be if it took no time: T − T(d := 0)

Latest times by Kelley and Walker, 1959; drag by Devaux, 1999.

`Chains` are the critical edges of a graph, shortened: edges in a row, without a branch between them, become one chain.

    ──►──►──►──┬──►──►──┐          three chains: what is looked for on all critical paths, such as the most time of
               └──►──►──┴──►──     a class, needs to visit only the points where chains meet

Values are passed from chain to chain in the order of these points (`Step`), each in a slot that is used again once all
chains that begin there are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.critical_path.edges import Some
from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.messages import LINK
from hybrid_des.planning.program_table import NONE, Column


class Step(NamedTuple):
    """The chains into a point.

    Attributes:
        point: the number of the point.
        slot: where its values are kept.
        chain: the first chain; the others follow it.
        starts: the slots of the causes of the chains.
        fresh: those of causes that nothing releases.
    """

    point: int
    slot: int
    chain: int
    starts: Sequence[int]
    fresh: Sequence[int]


@dataclass(frozen=True, eq=False)
class Chains:
    """Edges, with chains of them that do not branch merged.

    Attributes:
        cause, point: the ends of each chain, numbered in order; chains are ordered by `point`.
        of: the chain of each edge.
        ends: the point of the graph that each number is.
    """

    cause: Column
    point: Column
    of: Column
    ends: Column

    @classmethod
    def of_edges(cls, cause: Column, point: Column, kept: Column) -> Chains:
        """Merge chains of edges without branches, except at some points.

        The chain of an edge is found by pointer jumping: each edge points to the one before it, then to the one before
        that, twice as far each time.

        Args:
            cause: where each edge begins.
            point: where it ends; edges are ordered by it.
            kept: the points at which chains end in any case.
        """
        points, cause, point = _numbered(cause, point)
        into, out = np.bincount(point, minlength=len(points)), np.bincount(cause, minlength=len(points))
        edge_into = np.zeros(len(points), dtype=np.int64)
        edge_into[point] = np.arange(len(point))
        inner = (into == 1) & (out == 1) & ~np.isin(points, kept)
        root = np.where(inner[cause], edge_into[cause], np.arange(len(cause)))
        while ((before := root[root]) != root).any():
            root = before
        roots, chain = np.unique(root, return_inverse=True)
        last = np.zeros(len(roots), dtype=np.int64)
        np.maximum.at(last, chain, point)
        order = np.argsort(last, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        ends, cause, point = _numbered(cause[roots][order], last[order])
        return cls(cause, point, position[chain], points[ends])

    def steps(self) -> tuple[list[Step], int]:
        """The chains into each point, in order, and the most points that are needed at once.

        A point's values are kept in a slot, which is used again after its last chain.
        """
        causes, unused = self.cause.tolist(), list[int]()
        last = dict(zip(causes, range(len(causes)), strict=True))
        slot: list[int] = [NONE] * len(self.ends)
        steps: list[Step] = []
        number = slots = 0
        for end, count in zip(*(column.tolist() for column in np.unique(self.point, return_counts=True)), strict=True):
            starts, fresh = causes[number : number + count], list[int]()
            for point in (*starts, end):
                if slot[point] == NONE:
                    if unused:
                        slot[point] = unused.pop()
                    else:
                        slot[point], slots = slots, slots + 1
                    if point != end:
                        fresh.append(slot[point])
            steps.append(Step(end, slot[end], number, [slot[start] for start in starts], fresh))
            for chain, start in enumerate(starts, number):
                if last[start] == chain:
                    unused.append(slot[start])
            number += count
        return steps, slots


def _numbered(cause: Column, point: Column) -> tuple[Column, Column, Column]:
    """The points of some edges, in order, and the ends of the edges by their numbers among these."""
    points, numbers = np.unique(np.concatenate([cause, point]), return_inverse=True)
    return points, numbers[: len(cause)], numbers[len(cause) :]


POINTS = 2**12  # at once


@dataclass(frozen=True)
class Slack:
    """The slack of all points.

    Attributes:
        graph: the causes of the run.
        total: how much later each point may be without making the run longer.
    """

    graph: Graph
    total: Column

    @classmethod
    def of(cls, graph: Graph) -> Slack:
        """Compute the slack of all points, in one pass from the end."""
        total = graph.duration - graph.time
        _lower(graph, total)
        return cls(graph, total)

    @cached_property
    def _free(self) -> tuple[Column, Column]:
        """How much later the ends of ops, and messages, may be before anything else starts later."""
        graph, edges = self.graph, self.graph.edges
        free = self.total.copy()
        for some in edges.blocks:
            others = some.start + np.flatnonzero(~_passed_on(graph, some))
            np.minimum.at(free, edges.cause[others], graph.slack(others))
        _lower(graph, free, passed_on=True)
        return free[graph.at_op[1]], free[graph.places.delivered]

    @cached_property
    def of_ops(self) -> Column:
        """The total float of each op row: of its first piece, or of its point if it takes no time."""
        total = self.total[self.graph.at_op[1]]
        rows = self.graph.edges.rows
        np.minimum.at(total, rows.value, self.total[self.graph.edges.point[rows.edges]])
        return total

    @property
    def of_messages(self) -> Column:
        """The total float of each message."""
        return self.total[self.graph.head]

    @cached_property
    def free_of_ops(self) -> Column:
        """The free float of each op row."""
        return np.minimum(self._free[0], self.of_ops)

    @cached_property
    def free_of_messages(self) -> Column:
        """The free float of each message: until its receiver or the message behind it on any link would be delayed."""
        graph, edges = self.graph, self.graph.edges
        free = self._free[1].copy()
        for some in edges.blocks:
            behind = some.start + np.flatnonzero(edges.kind(some) == LINK)
            np.minimum.at(free, edges.message(behind), graph.slack(behind))
        return np.minimum(free, self.of_messages)

    @cached_property
    def critical(self) -> Column:
        """The edges of all critical paths."""
        graph, edges, on = self.graph, self.graph.edges, self.total == 0
        parts = [np.empty(0, dtype=np.int32)]
        for some in edges.blocks:
            both = np.flatnonzero(on[edges.point[some]] & on[edges.cause[some]]) + some.start
            parts.append(both[graph.slack(both) == 0].astype(np.int32))
        return np.concatenate(parts)

    @cached_property
    def chains(self) -> Chains:
        """The critical edges, merged to chains."""
        return self._merged(np.empty(0, dtype=np.int64))

    @cached_property
    def met(self) -> Chains:
        """The same; chains end where ranks meet."""
        return self._merged(np.flatnonzero(self.graph.meets != NONE))

    def _merged(self, kept: Column) -> Chains:
        return Chains.of_edges(self.graph.edges.cause[self.critical], self.graph.edges.point[self.critical], kept)

    @cached_property
    def drag_of_ops(self) -> Column:
        """The drag of each op row; for ops of several pieces, the largest drag of a piece.

        In a folded run it is 0: an image of a critical path, which is as long, leads through an image of the op.
        """
        graph = self.graph
        drag = np.zeros(len(graph.timeline.ops["step"]), dtype=np.int64)
        if graph.images.order > 1:
            return drag
        edges, rows = graph.edges.rows
        point = graph.edges.point[edges]
        on = (self.total[point] == 0) & (graph.slack(edges) == 0)
        lag, without = graph.edges.lag(edges[on]), self._longest_beside(point[on])
        np.maximum.at(drag, rows[on], np.minimum(lag, graph.duration - without))
        return drag

    def _longest_beside(self, points: Column) -> Column:
        """The length of the longest path that bypasses each of some points, which have one edge each.

        In the order of points, every path crosses the place of a point once; a path that bypasses the point does so on
        an edge from before it to after it, and the longest path over such an edge is known. So this is the maximum of
        the intervals over a place: each is entered as two blocks of the largest power of two that fits, which are then
        halved down to single places.
        """
        graph, edges = self.graph, self.graph.edges
        places, back = np.unique(points, return_inverse=True)
        into = np.zeros(len(graph.time), dtype=np.bool_)
        into[places] = True
        until = np.cumsum(into, dtype=np.int32)  # places up to a point
        over = []
        for some in edges.blocks:
            low = until[edges.cause[some]]  # the first place after the cause
            high = until[edges.point[some]] - into[edges.point[some]]  # the first place not before the point
            over.append(some.start + np.flatnonzero(high > low))
        chosen = np.concatenate(over)
        cause, point = edges.cause[chosen], edges.point[chosen]
        low, high = until[cause], until[point] - into[point]
        longest = graph.time[cause] + edges.lag(chosen) + graph.duration - graph.time[point] - self.total[point]
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


def _lower(graph: Graph, values: Column, *, passed_on: bool = False) -> None:
    """Lower the values of causes to those of what their edges lead to, and the slack of these: one pass from the end.

    Only edges within some points in a row need their order.

    Args:
        graph: the causes of the run.
        values: a value of each point.
        passed_on: whether only edges count that pass on a delay.
    """
    edges = graph.edges
    points = np.arange(0, len(values), POINTS)
    begins = np.searchsorted(edges.point, points).tolist()
    for first, begin, end in zip(points.tolist()[::-1], begins[::-1], [len(edges), *begins[:0:-1]], strict=True):
        some = slice(begin, end)
        cause, point, slack = edges.cause[some], edges.point[some], graph.slack(some)
        if passed_on:
            passed = _passed_on(graph, some)
            cause, point, slack = cause[passed], point[passed], slack[passed]
        inside, here = cause >= first, values[first : first + POINTS].tolist()
        columns = (cause[inside] - first, point[inside] - first, slack[inside])
        for before, after, more in zip(*(column[::-1].tolist() for column in columns), strict=True):
            if (value := here[after] + more) < here[before]:
                here[before] = value
        values[first : first + POINTS] = here
        np.minimum.at(values, cause[~inside], values[point[~inside]] + slack[~inside])


def _passed_on(graph: Graph, some: Some) -> NDArray[np.bool_]:
    """Whether an edge passes on a delay without itself starting anything later.

    True where a process merely continues to wait; not where it computes, sends a message, or ends the run.
    """
    waits: NDArray[np.bool_] = (graph.edges.activity(some) == NONE) & (graph.edges.point[some] != graph.end)
    return waits
