"""Whether messages reach every link in the order in which they did, if points take other times.

    earlier at a link     whose time is earlier
    at the same time      whose event was booked earlier; booked at the same time: whose parent was first, and so on,
                          until times differ or both descend from one event, whose process says which is first

An event is booked by the one that knows its time (`engine.lineage`):

    head at a further link   by its arrival at the link before
    end of a computation     by the event in which it began
    message received         by the later of both: the event in which it was asked for, and that in which its last link
                             served it; if it has arrived before, the receiver goes on without an event

What is not certain, such as which of the two was later if both happened at the same time, counts as another order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.retimed import NEVER
from hybrid_des.engine.causes import COMPUTED, MET, START, WAITED, Causes
from hybrid_des.simulation.timeline import NONE, Column

SENT, ARRIVED, STARTED, COMPUTES, RECEIVES, OPEN = range(6)  # how a point's event is booked; OPEN: not known

Times = Callable[[Column, Column], Column]  # times of points in changes


class Arrivals(NamedTuple):
    """Arrivals of messages at links, link by link in recorded order.

    Attributes:
        lane: the simulated link.
        point: the point at which the message arrives; the next one is that at which it is served.
        service: picoseconds that the link takes.
        flow, hop: the flow of the message, and the place of the link on its route.
        turned: the element of the fold that maps the simulated link to its own.
    """

    lane: Column
    point: Column
    service: Column
    flow: Column
    hop: Column
    turned: Column


@dataclass
class Walk:
    """One side of pairs of messages: the event at which it is, on the way back from a link.

    Attributes:
        point: the point of the event.
        image: the element of the fold that maps the simulated point to it.
        action: the point of that event at which what the side descends from was booked or sent.
        number: the message that was sent there; −1 if it was no message.
    """

    point: Column
    image: Column
    action: Column
    number: Column

    def kept(self, some: Column) -> Walk:
        """Some pairs only."""
        return Walk(*(column[some] for column in vars(self).values()))


class SameOrder:
    """The order of a run's messages at links.

    Args:
        graph: the causes of the run.
        trace: the tables that it was made from.
    """

    def __init__(self, graph: Graph, trace: Causes) -> None:
        self._graph, self._images = graph, graph.images
        tables = trace.columns()
        self._points, self._sent = tables["points"], graph.places.process[tables["sends"]["point"]]
        self._waits, self._meetings = tables["edges"], tables["meetings"]["point"]

    @cached_property
    def arrivals(self) -> Arrivals:
        """All arrivals at links that serve one message after the other, in recorded order."""
        graph, messages = self._graph, self._graph.messages
        used = (messages.rows >= 0) & (messages.over.limited[messages.link[messages.flow]] > 0)
        message, hop = np.nonzero(used)
        link = messages.link[messages.flow[message], hop]
        lane, row = messages.over.lane[link], messages.rows[message, hop]
        order = np.lexsort((row, lane))
        message, hop, link, lane = (column[order] for column in (message, hop, link, lane))
        service = messages.services.own[messages.alike[message], hop]
        turned = messages.over.turned[link]
        return Arrivals(lane, graph.places.asked[message, hop], service, messages.flow[message], hop, turned)

    @cached_property
    def alone(self) -> Column:
        """The points at which messages are served that are first at links with others."""
        lane = self.arrivals.lane
        first = np.append(True, lane[1:] != lane[:-1])[: len(lane)]
        others = np.append(lane[1:] == lane[:-1], False)[: len(lane)]
        served: Column = self.arrivals.point[first & others] + 1
        return served

    @cached_property
    def of_flows(self) -> tuple[Column, Column]:
        """Neighbours in flows, at each link: the points at which they arrive, the later first."""
        asked, order = self._graph.places.asked, np.argsort(self._graph.messages.flow, kind="stable")
        flow = self._graph.messages.flow[order]
        same = np.flatnonzero(flow[1:] == flow[:-1])
        later, earlier = asked[order[same + 1]], asked[order[same]]
        there = later != NONE
        return later[there], earlier[there]

    @cached_property
    def strangers(self) -> tuple[Column, Column]:
        """Neighbours in flows that different processes send or ask for: the points of these, the later first."""
        messages, thread = self._graph.messages, self._points["thread"]
        order = np.argsort(messages.flow, kind="stable")
        same = np.flatnonzero(messages.flow[order][1:] == messages.flow[order][:-1])
        index = np.searchsorted(self._graph.places.process, self._sent)
        of_message = self._waits["cause"] < NONE
        asks = np.full(len(messages.flow), NONE)
        asks[-2 - self._waits["cause"][of_message]] = self._points["before"][self._waits["point"][of_message]]
        pairs = []
        for process in (index, asks):
            later, earlier = process[order[same + 1]], process[order[same]]
            known = (later != NONE) & (earlier != NONE) & (thread[later] != thread[earlier])
            pairs.append((self._graph.places.process[later[known]], self._graph.places.process[earlier[known]]))
        return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])

    @cached_property
    def _booked(self) -> tuple[Column, Column, Column, Column, Column]:
        """By point: how its event is booked, what came before, what put the message, its delivery, and its turn."""
        graph, places = self._graph, self._graph.places
        size, messages = len(graph.time), graph.messages
        how, before, put, delivered = (np.full(size, value, dtype="int32") for value in (OPEN, NONE, NONE, NONE))
        turn = np.zeros(size, dtype=graph.edges.turn.dtype)
        for hop, there in places.each:
            how[places.asked[there, hop]] = ARRIVED if hop else SENT
            before[places.asked[there, hop]] = places.asked[there, hop - 1] if hop else self._sent[there]
        kind, earlier = self._points["kind"], self._points["before"]
        held = np.flatnonzero(earlier != NONE)
        before[places.process[held]] = places.process[earlier[held]]
        how[places.process[kind == START]] = STARTED
        how[places.process[kind == COMPUTED]] = COMPUTES
        cause, point = self._waits["cause"], self._waits["point"]
        waits = np.bincount(point, minlength=len(kind))
        alone = waits[point] == 1
        waited, paused = alone & (kind[point] == WAITED), alone & (kind[point] == MET) & ~np.isin(point, self._meetings)
        mine = np.flatnonzero(waited & (cause < NONE))
        number, at = -2 - cause[mine], places.process[point[mine]]
        put[at] = places.asked[number, messages.hops[number] - 1]
        delivered[at] = places.delivered[number]
        turn[at] = messages.arrives[messages.flow[number]]
        mine = np.flatnonzero(waited & (cause >= 0))
        put[places.process[point[mine]]] = delivered[places.process[point[mine]]] = places.process[cause[mine]]
        how[places.process[point[waited]]] = RECEIVES
        how[places.process[point[paused]]] = COMPUTES
        before[places.process[point[paused]]] = places.process[cause[paused]]
        return how, before, put, delivered, turn

    def changed(self, at: Times, change: int) -> tuple[Column, Column] | None:
        """Which messages wait for others than they did, and how long; None if not all of their order is certain.

        Args:
            at: the times of points in changes: (points, changes) → picoseconds.
            change: the change.

        Returns:
            The points at which they are served, and how long they wait for the message before them; both are empty if
            all times are as these orders make them.
        """
        if not self._flows_stay(at, change):
            return None
        come, lane = self.arrivals, self.arrivals.lane
        arrived, served = self._at(come.point, at, change), self._at(come.point + 1, at, change)
        order = np.arange(len(lane))
        behind = lane[1:] == lane[:-1]
        if (arrived[1:] < arrived[:-1])[behind].any():
            order = np.lexsort((order, arrived, lane))
        before, after = order[:-1][behind], order[1:][behind]
        free = np.full(len(lane), NEVER)
        free[after] = served[before] + come.service[before]
        if (served == np.maximum(arrived, free)).all():
            other_flow = (come.flow[before] != come.flow[after]) | (come.hop[before] != come.hop[after])
            tied = np.flatnonzero((arrived[before] == arrived[after]) & other_flow)
            return (tied[:0], tied[:0]) if self._first(before[tied], after[tied], at, change) else None
        previous = np.full(len(lane), NONE)
        previous[after] = before
        recorded = np.arange(len(lane)) - 1
        recorded[np.append(True, ~behind)[: len(lane)]] = NONE
        moved = np.flatnonzero(previous != recorded)
        return come.point[moved] + 1, np.maximum(free[moved] - arrived[moved], 0)

    def _flows_stay(self, at: Times, change: int) -> bool:
        """Whether messages of a flow stay in their order."""
        further, former = self.of_flows
        some, others = self.strangers
        order = self._at(former, at, change) <= self._at(further, at, change)
        return bool(order.all() and (self._at(others, at, change) < self._at(some, at, change)).all())

    @staticmethod
    def _at(points: Column, at: Times, change: int) -> Column:
        return at(points, np.broadcast_to(change, len(points)))

    def _first(self, earlier: Column, later: Column, at: Times, change: int) -> bool:
        """Whether of pairs of arrivals at one time, those that were first in the run are first."""
        come, images, size = self.arrivals, self._images, len(later)
        image = images.combined(come.turned[later], images.inverse(come.turned[earlier]))
        early, late = (
            Walk(point.copy(), turned.astype(np.int64), point.copy(), np.full(size, NONE))
            for point, turned in ((come.point[earlier], image), (come.point[later], np.zeros(size)))
        )
        before = self._booked[1]
        for side in (early, late):
            self._send(side)
        while len(early.point):
            same = self._decided(early, late)
            early, late = early.kept(~same), late.kept(~same)
            for side in (early, late):
                if not self._settle(side, at, change):
                    return False
            same = early.point == late.point
            if (same & (early.image != late.image)).any() or not self._by_program(early.kept(same), late.kept(same)):
                return False
            early, late = early.kept(~same), late.kept(~same)
            ends = [before[side.point] == NONE for side in (early, late)]
            started = ends[0] & ends[1]
            if (ends[0] != ends[1]).any() or (started & ((early.point > late.point) | (self._images.order > 1))).any():
                return False  # processes that start with the run do so in their order, all ranks of it
            early, late = early.kept(~started), late.kept(~started)
            early, late = self._parents(early, at, change), self._parents(late, at, change)
            first, second = (at(side.point, np.broadcast_to(change, len(side.point))) for side in (early, late))
            if (first > second).any():
                return False
            early, late = early.kept(first == second), late.kept(first == second)
        return True

    def _send(self, side: Walk) -> None:
        """Go back from a message's first link to the point at which it is sent."""
        how, before, *_ = self._booked
        sends = np.flatnonzero(how[side.point] == SENT)
        side.number[sends] = self._graph.edges.owner[side.point[sends]]
        side.point[sends] = side.action[sends] = before[side.point[sends]]

    def _decided(self, early: Walk, late: Walk) -> Column:
        """Pairs of messages that one process sends in a row, the first of them first."""
        same = (early.point == late.point) & (early.image == late.image)
        decided: Column = same & (early.number != NONE) & (late.number != NONE) & (early.number < late.number)
        return decided

    def _settle(self, side: Walk, at: Times, change: int) -> bool:
        """Go back to the first point of each event; False if one is not known."""
        how, before, put, delivered, _ = self._booked
        left = np.arange(len(side.point))
        while len(left):
            point = side.point[left]
            sort, ask, came, arrival = how[point], before[point], put[point], delivered[point]
            if (sort == OPEN).any():
                return False
            receives = np.flatnonzero(sort == RECEIVES)
            here = np.zeros(len(left), dtype=bool)
            times = [at(of[receives], np.broadcast_to(change, len(receives))) for of in (ask, came, arrival)]
            if (times[0] == times[1]).any():
                return False
            here[receives] = times[2] <= times[0]
            on = here | ((sort == STARTED) & (ask != NONE))
            side.point[left[on]] = ask[on]
            left = left[on]
        return True

    def _by_program(self, early: Walk, late: Walk) -> bool:
        """Whether in one event the actions of one side come first.

        The process that the event resumes is first, then those that it starts, in their order, as they start others. Of
        one process, it sends in the order of messages and waits last.
        """
        its, others = self._turn_in_event(early), self._turn_in_event(late)
        sends = (early.number != NONE) & ((late.number == NONE) | (early.number < late.number))
        known = (its >= 0) & (others >= 0)
        return bool((known & ((its < others) | ((its == others) & sends))).all())

    def _turn_in_event(self, side: Walk) -> Column:
        """When the process of an action has its turn in an event; −1 for actions of no process."""
        places, thread = self._graph.places.process, self._points["thread"]
        process = np.searchsorted(places, side.action) % max(len(places), 1)
        resumed = np.searchsorted(places, side.point) % max(len(places), 1)
        turn = np.where(thread[process] == thread[resumed], 0, 1 + self._starts[thread[process]])
        of_processes = (places[process] == side.action) & (places[resumed] == side.point)
        return np.where(of_processes, turn, NONE)

    @cached_property
    def _starts(self) -> Column:
        """By thread: the point of its start, in their order."""
        starts = np.flatnonzero(self._points["kind"] == START)
        of_thread = np.zeros(len(starts), dtype=np.int64)
        of_thread[self._points["thread"][starts]] = starts
        return of_thread

    def _parents(self, side: Walk, at: Times, change: int) -> Walk:
        """The events that booked those of one side."""
        how, before, put, _, turn = self._booked
        point, image = before[side.point], side.image
        receives = np.flatnonzero(how[side.point] == RECEIVES)
        here = side.point[receives]
        asked, came = (at(of[here], np.broadcast_to(change, len(here))) for of in (before, put))
        late = receives[came > asked]
        point[late] = put[side.point[late]]
        image[late] = self._images.combined(image[late], turn[side.point[late]])
        parents = Walk(point, image, point.copy(), np.full(len(point), NONE))
        self._send(parents)
        return parents
