"""Critical paths: the pieces of one, which tile the run, and the number of paths.

A path is a sequence of ops, messages and meetings. A message's points and links are several ways through one activity,
which count as one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary, proxy

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.idle import LATENCY, OTHERS, QUEUEING
from hybrid_des.planning.program_table import NONE, Column, Columns
from hybrid_des.units import collected

State = tuple[int, tuple[int, ...]]


Place = tuple[int, int]  # a point and the number of its image


MOST_EDGES = 400_000


NAMED = {"compute": "compute", "transfer": "transfer", "latency": LATENCY, "queue": QUEUEING, "others": OTHERS}


ROOT = -2  # no activity, before all others


EVERY = -1  # image of a place: all of them


TOGETHER = 1024  # chains whose edges are made pieces together


END = "point", "until", "image"  # of a chain: where it ends, when it begins at the latest, and in which image it ends


class Piece(NamedTuple):
    """A part of a path or of a chain of causes.

    Attributes:
        activity: an op row or, numbered after these, a message, or an image of one (`Graph.activities`); −1 for a
            meeting.
        start, end: picoseconds.
        compute, transfer, latency, queue: parts of its time. `latency`: of links, and of launching a collective.
            `queue`: the path moves from a message to one queued behind it on a link, or a message loses time to others
            that share its links.
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
    """The chains of causes of a graph, from their ends."""

    def __init__(self, graph: Graph) -> None:
        edges = graph.edges
        columns = graph.time, graph.released, edges.cause, edges.turn, graph.meets
        self._time, self._released, self._cause, self._turn, self._meets = (column.data for column in columns)
        self._keeping = [keeping.data for keeping in graph.keeping]
        self._images = graph.images
        self._apart = frozenset(edges.point[graph.told_apart].tolist())
        here: Graph = proxy(graph)  # which would never be freed if its walks held it
        self._released_in, self._graph = cache(lambda image: here.released_in(image)), here

    def chains(self, ends: Columns) -> Iterator[list[Piece]]:
        """The pieces of each chain, in order.

        Args:
            ends: of each chain, the `point` where it ends, the `image` of that, and `until`: it leads back to the first
                cause at or before these picoseconds.
        """
        count = len(ends["point"])
        for first in range(0, count, TOGETHER):
            columns = self._pieces(first, {name: column[first : first + TOGETHER] for name, column in ends.items()})
            pieces = [Piece(*row) for row in zip(*(columns[name].tolist() for name in Piece._fields), strict=True)]
            last = min(first + TOGETHER, count)
            bounds = np.searchsorted(columns["chain"], np.arange(first, last + 1)).tolist()
            yield from (pieces[here:there][::-1] for here, there in pairwise(bounds))

    def _back(self, ends: Columns) -> tuple[Column, Column, Column]:
        """The edges of chains, those of one in their order back, their chains, and the images in which they begin."""
        walked = [self._one_back(*end) for end in zip(*(ends[name].tolist() for name in END), strict=True)]
        edges, images = (np.concatenate(columns).astype(np.int64) for columns in zip(*walked, strict=True))
        return edges, np.repeat(np.arange(len(walked)), [len(one) for one, _ in walked]), images

    def _one_back(self, point: int, until: int, image: int) -> tuple[array[int], array[int]]:
        """The edges of one chain, and the images in which they begin."""
        causes, time, released, turns, meets = self._cause, self._time, self._released, self._turn, self._meets
        edges, images = array("q"), array("q")
        while (edge := released[point]) != NONE and time[point] > until:
            if (group := meets[point]) != NONE:
                image = self._keeping[group][image]
            elif point in self._apart:
                edge = self._released_in(image)[point]
            if turn := turns[edge]:
                image = self._images.plus(image, turn)
            edges.append(edge)
            images.append(image)
            point = causes[edge]
        return edges, images

    def _pieces(self, before: int, ends: Columns) -> Columns:
        """The pieces of some chains, numbered from a number on: edges of one activity in a row are one piece."""
        graph, edges = self._graph, self._graph.edges
        edge, chain, image = self._back(ends)
        here = graph.time[edges.point[edge]]
        lag = here - graph.time[edges.cause[edge]]  # as an edge releases its point
        took = np.flatnonzero(lag)
        edge, chain, image, here, lag = (column[took] for column in (edge, chain, image, here, lag))
        activity = edges.activity(edge)
        activity = np.where(activity == NONE, NONE, activity + image * graph.activities)
        columns = edges.parts(edge)
        order = np.argsort(chain.astype(np.int16), kind="stable")
        chain, activity = chain[order], activity[order]
        first = np.flatnonzero((np.diff(activity, prepend=ROOT) != 0) | (np.diff(chain, prepend=NONE) != 0))
        parts = {name: np.add.reduceat(column[order], first) for name, column in columns.items()}
        early = np.minimum(parts["transfer"], 0)  # its head went on to the link at which the path leaves it in a queue
        parts["transfer"] -= early
        parts["queue"] += early
        return {
            "chain": before + chain[first],
            "activity": activity[first],
            "start": (here - lag)[order[np.append(first, len(order))[1:] - 1]],  # of the edge furthest back
            "end": here[order[first]],
            **parts,
        }


_WALKS: WeakKeyDictionary[Graph, Walks] = WeakKeyDictionary()


def walks_on(graph: Graph) -> Walks:
    """The walks along causes of a graph, which are kept as long as the graph is."""
    if graph not in _WALKS:
        _WALKS[graph] = Walks(graph)
    return _WALKS[graph]


def critical_path(graph: Graph) -> list[Piece]:
    """The pieces of the critical path that is shown, from 0 to the end of the run."""
    ends = {"point": graph.end, "until": -1, "image": 0}
    return next(walks_on(graph).chains({name: np.array([value]) for name, value in ends.items()}))


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
    edges = _CriticalEdges(slack)
    roots = np.flatnonzero((graph.released == NONE) & (slack.total == 0)).tolist()
    counts: dict[State, int] = {}
    todo: list[tuple[int, State]] = []
    total = 0

    def leave(activity: int, inside: set[Place], count: int) -> int:
        ended, entered = edges.beyond(activity, inside)
        for (other, _), entries in entered.items():
            state = other, tuple(sorted(entries))
            if state not in counts:
                heappush(todo, (state[1][0], state))
            counts[state] = counts.get(state, 0) + count
        return count if ended else 0

    total += leave(ROOT, {(root, EVERY) for root in roots}, 1)
    while todo:
        _, state = heappop(todo)
        total += order * leave(state[0], edges.inside(*state), counts.pop(state))
    return total


class _CriticalEdges:
    """The critical edges of a graph, by the points where they begin.

    A place is a point with the number of its image; `EVERY` where all images are meant.
    """

    def __init__(self, slack: Slack) -> None:
        graph, edges = slack.graph, slack.critical
        self._images, self._meets, self._keeping = graph.images, graph.meets, graph.keeping
        self._end = graph.end
        of = graph.edges
        columns = (of.activity(edges), of.cause[edges], of.point[edges], of.lag(edges))
        back = graph.images.inverse(of.turn[edges]).tolist()
        every = zip(*(column.tolist() for column in columns), back, strict=True)
        self._from = collected((cause, (activity, point, lag, turn)) for activity, cause, point, lag, turn in every)
        every_keeping = (enumerate(keeping.tolist()) for keeping in graph.keeping)
        self._alike = [collected((standing, element) for element, standing in one) for one in every_keeping]

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
