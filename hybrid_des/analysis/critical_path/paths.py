"""Critical paths: the pieces of one, which tile the run, and the number of paths.

A path is a sequence of ops, messages and meetings. A message's points and links are several ways through one activity,
which count as one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from operator import add
from typing import NamedTuple
from weakref import WeakKeyDictionary, proxy

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.services import BARRIER, LINK, OF_MESSAGES
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.idle import LATENCY, OTHERS, QUEUEING
from hybrid_des.simulation.timeline import NONE, Column

State = tuple[int, tuple[int, ...]]


Place = tuple[int, int]  # a point and the number of its image


MOST_EDGES = 400_000


NAMED = {"compute": "compute", "transfer": "transfer", "latency": LATENCY, "queue": QUEUEING, "others": OTHERS}


PARTS = "transfer", "latency", "queue", "others"  # of a message's edge


ROOT = -2  # no activity, before all others


EVERY = -1  # image of a place: all of them


class Piece(NamedTuple):
    """A part of a path or of a chain of causes.

    Attributes:
        activity: an op row or, numbered after these, a message, or an image of one (`Graph.activities`); −1 for a
            meeting.
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


class Walks:
    """The chains of causes of a graph, whose columns are memory views here: walks take one edge at a time."""

    def __init__(self, graph: Graph) -> None:
        edges, services = graph.edges, graph.messages.services
        columns = graph.time, graph.released, edges.cause, edges.sort, edges.turn, edges.owner, graph.meets
        views = (column.data for column in columns)
        self._time, self._released, self._cause, self._sort, self._turn, self._owner, self._meets = views
        self._is_turn = (edges.kinds == LINK).tolist()
        self._alike, self._parts = graph.messages.alike.data, [services.parts[name].data for name in PARTS]
        self._ops, self._others = edges.ops, edges.part == "others"
        self._rows, self._more = ([column.data for column in sparse] for sparse in (edges.rows, edges.more))
        self._keeping = [keeping.data for keeping in graph.keeping]
        self._images, self._activities = graph.images, graph.activities
        self._apart = frozenset(edges.point[graph.told_apart].tolist())
        here: Graph = proxy(graph)  # which would never be freed if its walks held it
        self._released_in = cache(lambda image: here.released_in(image))

    def chain(self, point: int, until: int, image: int = 0) -> list[Piece]:
        """The pieces that lead to an image of a point, in order, back to the first that begins at or before `until`.

        Edges of one activity in a row are one piece.
        """
        causes, time, released, turns = self._cause, self._time, self._released, self._turn
        pieces: list[Piece] = []
        now = ROOT
        while (edge := released[point]) != NONE and (here := time[point]) > until:
            if (group := self._meets[point]) != NONE:
                image = self._keeping[group][image]
            elif point in self._apart:
                edge = self._released_in(image)[point]
            if turn := turns[edge]:
                image = self._images.plus(image, turn)
            cause = causes[edge]
            if lag := here - time[cause]:  # as the edge releases the point
                activity, parts = self._taken(edge, cause, point, lag)
                if image and activity != NONE:
                    activity += image * self._activities
                if activity != now:
                    now = activity
                    pieces.append(Piece(now, here - lag, here, *parts))
                else:
                    _, start, end, *before = pieces[-1]
                    summed = map(add, before, parts)
                    pieces[-1] = Piece(now, min(start, here - lag), max(end, here), *summed)
            point = cause
        return pieces[::-1]

    def _taken(self, edge: int, cause: int, point: int, lag: int) -> tuple[int, tuple[int, ...]]:
        """The activity that takes the lag of an edge that releases its point, and the parts of it."""
        sort, more = self._sort[edge], _of_edge(self._more, edge)
        message = self._owner[cause if self._is_turn[sort] else point]
        if message < 0 and (row := _of_edge(self._rows, edge, NONE)) != NONE:
            return row, (lag, 0, 0, 0, 0)
        transfer, latency, queue, others = 0, 0, 0, 0
        if sort >= OF_MESSAGES:
            alike = self._alike[message]
            transfer, latency, queue, others = (part[alike, sort] for part in self._parts)
        elif sort == BARRIER:
            transfer = lag - more
        if more and self._others:
            others += more
        else:
            transfer += more
        return (NONE if message < 0 else self._ops + message), (0, transfer, latency, queue, others)


def _of_edge(columns: Sequence[memoryview], edge: int, other: int = 0) -> int:
    """What an edge has, if it is one of few edges that have anything."""
    edges, values = columns
    index = bisect_left(edges, edge)
    return int(values[index]) if index < len(edges) and edges[index] == edge else other


_WALKS: WeakKeyDictionary[Graph, Walks] = WeakKeyDictionary()


def walks_on(graph: Graph) -> Walks:
    """The walks along causes of a graph, which are kept as long as the graph is."""
    if graph not in _WALKS:
        _WALKS[graph] = Walks(graph)
    return _WALKS[graph]


def critical_path(graph: Graph) -> list[Piece]:
    """The pieces of the critical path that is shown, from 0 to the end of the run."""
    return walks_on(graph).chain(graph.end, -1)


def time_by_part(path: Sequence[Piece]) -> dict[str, int]:
    """The parts of a path, in picoseconds that sum to it."""
    return {name: sum(getattr(piece, part) for piece in path) for part, name in NAMED.items()}


def count_paths(slack: Slack) -> int | None:
    """Number of critical paths, as sequences of ops and messages that take time; None for very large graphs.

    A state is an activity and the set of its points at which a sequence enters it; states are taken in the order of
    their first points. So each sequence counts once, however many ways lead through an activity. As many sequences lead
    to each image of a state.
    """
    graph = slack.graph
    order = graph.images.order
    if len(slack.critical) * order > MOST_EDGES:
        return None
    ways = _Ways(slack)
    roots = np.flatnonzero((graph.released == NONE) & (slack.total == 0)).tolist()
    counts: dict[State, int] = {}
    todo: list[tuple[int, State]] = []
    total = 0

    def leave(activity: int, inside: set[Place], count: int) -> int:
        ended, entered = ways.beyond(activity, inside)
        for (other, _), entries in entered.items():
            state = other, tuple(sorted(entries))
            if state not in counts:
                heappush(todo, (state[1][0], state))
            counts[state] = counts.get(state, 0) + count
        return count if ended else 0

    total += leave(ROOT, {(root, EVERY) for root in roots}, 1)
    while todo:
        _, state = heappop(todo)
        total += order * leave(state[0], ways.inside(*state), counts.pop(state))
    return total


class _Ways:
    """The critical edges of a graph, by the points where they begin.

    A place is a point with the number of its image; `EVERY` where all images are meant.
    """

    def __init__(self, slack: Slack) -> None:
        graph, edges = slack.graph, slack.critical
        self._images, self._meets, self._keeping = graph.images, graph.meets, graph.keeping
        self._end = graph.end
        self._from: dict[int, list[tuple[int, int, int, int]]] = {}
        of = graph.edges
        columns = (of.activity(edges), of.cause[edges], of.point[edges], of.lag(edges))
        back = graph.images.inverse(of.turn[edges]).tolist()
        for activity, cause, *ends in zip(*(column.tolist() for column in columns), back, strict=True):
            self._from.setdefault(cause, []).append((activity, *ends))
        self._alike = [_cosets(keeping) for keeping in graph.keeping]

    def _place(self, point: int, image: int) -> Place:
        group = self._meets[point]
        return point, int(self._keeping[group][image]) if group != NONE and image != EVERY else image

    def _edges(self, begin: Place) -> Iterator[tuple[int, int, Place, int]]:
        """The edges from a place: the image in which each begins, its activity, the place it leads to, and its lag."""
        point, image = begin
        if (edges := self._from.get(point)) is None:
            return
        group = self._meets[point]
        for here in (image,) if group == NONE or image == EVERY else self._alike[group][image]:
            for activity, there, lag, turn in edges:
                yield here, activity, self._place(there, here if here == EVERY else self._images.plus(here, turn)), lag

    def inside(self, activity: int, entries: tuple[int, ...]) -> set[Place]:
        """The places that an activity reaches after it has taken time, from some of its points."""
        reached: set[Place] = set()
        edges = (edge for at in entries for edge in self._edges((at, 0)))
        stack = [there for image, other, there, lag in edges if other == activity and lag and not image]
        while stack:
            at = stack.pop()
            if at not in reached:
                reached.add(at)
                stack += [there for image, other, there, _ in self._edges(at) if other == activity and not image]
        return reached

    def beyond(self, activity: int, inside: set[Place]) -> tuple[bool, dict[tuple[int, int], set[int]]]:
        """Whether the end follows an activity without delay, and the points at which others begin after it.

        Activities have the number of their image; points are those of the simulated activity.
        """
        entered: dict[tuple[int, int], set[int]] = {}
        seen, stack = set(inside), list(inside)
        while stack:
            at = stack.pop()
            for image, other, there, lag in self._edges(at):
                if other == activity and not image and at in inside:
                    continue
                if lag and other != NONE:
                    entered.setdefault((other, image), set()).add(at[0])
                elif there not in seen:
                    seen.add(there)
                    stack.append(there)
        return not seen.isdisjoint({(self._end, 0), (self._end, EVERY)}), entered


def _cosets(keeping: Column) -> dict[int, list[int]]:
    """The elements that each one stands for."""
    cosets: dict[int, list[int]] = {}
    for element, standing in enumerate(keeping.tolist()):
        cosets.setdefault(standing, []).append(element)
    return cosets
