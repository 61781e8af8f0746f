"""Critical paths: the pieces of one, which tile the run, and the number of paths.

A path is a sequence of ops, messages and meetings. A message's points and links are several ways through one activity,
which count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import add
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.idle import LATENCY, OTHERS, QUEUEING
from hybrid_des.simulation.timeline import NONE

State = tuple[int, tuple[int, ...]]


MOST_EDGES = 400_000


NAMED = {"compute": "compute", "transfer": "transfer", "latency": LATENCY, "queue": QUEUEING, "others": OTHERS}


ROOT = -2  # no activity, before all others


class Piece(NamedTuple):
    """A part of a path or of a chain of causes.

    Attributes:
        activity: an op row or, numbered after these, a message; −1 for a meeting.
        start, end: picoseconds.
        compute, transfer, latency, queue: parts of its time. `queue`: the path moves from a message to one queued
            behind it on a link, or a message loses time to others that share its links.
        others: the part of its time lost to messages of other jobs.
    """

    activity: int
    start: int
    end: int
    compute: int = 0
    transfer: int = 0
    latency: int = 0
    queue: int = 0
    others: int = 0


class Chains:
    """The chains of causes of a graph, whose columns are memory views here: walks take one edge at a time."""

    def __init__(self, graph: Graph) -> None:
        self._time, self._released = graph.time.data, graph.released.data
        computes = (graph.activity >= 0) & (graph.activity < len(graph.timeline.ops["step"]))
        parts = [np.where(computes, graph.lag, 0)]
        parts += [np.where(computes, 0, part) for part in (graph.transfer, graph.latency, graph.queue, graph.others)]
        columns = graph.cause, graph.activity, graph.lag
        self._cause, self._activity, self._lag = (column.data for column in columns)
        self._parts = [part.data for part in parts]

    def chain(self, point: int, until: int) -> list[Piece]:
        """The pieces that lead to a point, in order, back to the first that begins at or before `until`.

        Edges of one activity in a row are one piece.
        """
        cause, lag, time, released = self._cause, self._lag, self._time, self._released
        pieces: list[Piece] = []
        now = ROOT
        while (edge := released[point]) != NONE and time[point] > until:
            if lag[edge]:
                activity, here, parts = self._activity[edge], time[point], [part[edge] for part in self._parts]
                if activity != now:
                    now = activity
                    pieces.append(Piece(now, here - lag[edge], here, *parts))
                else:
                    _, start, end, *before = pieces[-1]
                    summed = map(add, before, parts)
                    pieces[-1] = Piece(now, min(start, here - lag[edge]), max(end, here), *summed)
            point = cause[edge]
        return pieces[::-1]


_CHAINS: WeakKeyDictionary[Graph, Chains] = WeakKeyDictionary()


def chains_of(graph: Graph) -> Chains:
    """The chains of causes of a graph, which are kept as long as the graph is."""
    if graph not in _CHAINS:
        _CHAINS[graph] = Chains(graph)
    return _CHAINS[graph]


def critical_path(graph: Graph) -> list[Piece]:
    """The pieces of the critical path that is shown, from 0 to the end of the run."""
    return chains_of(graph).chain(graph.end, -1)


def time_by_part(path: Sequence[Piece]) -> dict[str, int]:
    """The parts of a path, in picoseconds that sum to it."""
    return {name: sum(getattr(piece, part) for piece in path) for part, name in NAMED.items()}


def count_paths(slack: Slack) -> int | None:
    """Number of critical paths, as sequences of ops and messages that take time; None for very large graphs.

    A state is an activity and the set of its points at which a sequence enters it; states are taken in the order of
    their first points. So each sequence counts once, however many ways lead through an activity.
    """
    if len(slack.critical) > MOST_EDGES:
        return None
    graph = slack.graph
    ways = _Ways(slack)
    roots = np.flatnonzero((graph.released == NONE) & (slack.total == 0)).tolist()
    counts: dict[State, int] = {}
    todo: list[tuple[int, State]] = []
    total = 0

    def leave(activity: int, inside: set[int], count: int) -> int:
        ended, entered = ways.beyond(activity, inside)
        for other, entries in entered.items():
            state = other, tuple(sorted(entries))
            if state not in counts:
                heappush(todo, (state[1][0], state))
            counts[state] = counts.get(state, 0) + count
        return count if ended else 0

    total += leave(ROOT, set(roots), 1)
    while todo:
        _, state = heappop(todo)
        total += leave(state[0], ways.inside(*state), counts.pop(state))
    return total


class _Ways:
    """The critical edges of a graph, by the points where they begin."""

    def __init__(self, slack: Slack) -> None:
        graph, edges = slack.graph, slack.critical
        self._end = graph.end
        self._from: dict[int, list[tuple[int, int, int]]] = {}
        columns = (graph.activity, graph.cause, graph.point, graph.lag)
        for activity, cause, point, lag in zip(*(column[edges].tolist() for column in columns), strict=True):
            self._from.setdefault(cause, []).append((activity, point, lag))

    def inside(self, activity: int, entries: tuple[int, ...]) -> set[int]:
        """The points that an activity reaches after it has taken time, from some of its points."""
        reached: set[int] = set()
        stack = [point for at in entries for other, point, lag in self._from[at] if other == activity and lag]
        while stack:
            at = stack.pop()
            if at not in reached:
                reached.add(at)
                stack += [point for other, point, _ in self._from.get(at, ()) if other == activity]
        return reached

    def beyond(self, activity: int, inside: set[int]) -> tuple[bool, dict[int, set[int]]]:
        """Whether the end follows an activity without delay, and the points at which others begin after it."""
        entered: dict[int, set[int]] = {}
        seen, stack = set(inside), list(inside)
        while stack:
            at = stack.pop()
            for other, point, lag in self._from.get(at, ()):
                if other == activity and at in inside:
                    continue
                if lag and other != NONE:
                    entered.setdefault(other, set()).add(at)
                elif point not in seen:
                    seen.add(point)
                    stack.append(point)
        return self._end in seen, entered
