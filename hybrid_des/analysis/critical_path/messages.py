"""Messages in the graph of causes: their points at each link of their routes, and the edges between these.

    A  a head arrives at a link        S  the link serves it        D  the message is delivered

    S = max(A, S of the message before + its service time)
    next A = max(S + t − slowest, A + slowest before − slowest) + latency
    D = max(S + t, A + slowest before) + latency                                      (see `cluster.sharing.fifo`)

Before its first link, a message of a paced flow has been as slow as its sender.

Under `fair` a message occupies all links of its route together: it has one A, S and D.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.link_images import LinkImages
from hybrid_des.analysis.critical_path.places import Places
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rate import rate_of
from hybrid_des.simulation.run import Run
from hybrid_des.simulation.timeline import NONE, Column, Columns, Timeline, in_order

PARTS = ("latency", "transfer", "queue")  # of a lag
UNLESS_GIVEN = {"activity": NONE, "link": NONE, "turn": 0, **dict.fromkeys(PARTS, 0)}  # columns of edges


DATA, PROGRAM, LINK, BARRIER = range(4)  # kinds of edges; of several binding ones, the first kind is shown


@dataclass(frozen=True)
class Messages:
    """All messages of a run, in the order in which they were sent.

    Attributes:
        timeline: the timeline of the run.
        flow: flow of each message.
        rows: message × link: its rows in `timeline.messages`; −1 where its route is shorter.
        latency: message × link: picoseconds after each link; 0 where the route is shorter.
        links: the names of the links.
        link: message × link: numbers of the links.
        over: the links, with what they are images of.
        arrives: numbers of the elements that map a message to the one that its receiver's representative receives.
        own: message × link: picoseconds that it occupies each link if nothing else uses it.
        took: picoseconds from the start to the end of each message's service at its first link.
        paced: the least picoseconds that its sender takes, if it is slower than links.
    """

    timeline: Timeline
    flow: Column
    rows: Column
    latency: Column
    links: Sequence[str]
    link: Column
    over: LinkImages
    arrives: Column
    own: Column
    took: Column
    paced: Column

    @property
    def fair(self) -> bool:
        """Whether messages share links."""
        return self.timeline.fair

    @cached_property
    def hops(self) -> Column:
        """Number of links at which each message has points."""
        return np.ones(len(self.flow), dtype=np.int64) if self.fair else (self.rows >= 0).sum(axis=1)

    @cached_property
    def service(self) -> Column:
        """Message × link: picoseconds on the link, shared or not; 0 where the route is shorter."""
        return np.where(self.rows >= 0, self.took[:, None], 0) if self.fair else self.own

    @cached_property
    def slowest(self) -> Column:
        """Message × link: the longest service time so far."""
        return np.maximum(np.maximum.accumulate(self.own, axis=1), self.paced[:, None])

    @cached_property
    def lost(self) -> Column:
        """Under `fair`, how much longer each message takes than it would alone."""
        longer: Column = np.maximum(self.took - self.slowest[:, -1], 0)
        return longer

    @cached_property
    def slow_link(self) -> Column:
        """Message × link: the link of the longest service time so far; the first such link."""
        links = self.link.copy()
        for hop in range(1, links.shape[1]):
            same = self.own[:, hop] <= self.slowest[:, hop - 1]
            links[same, hop] = links[same, hop - 1]
        return links

    def lost_to(self, beside: Column) -> Column:
        """Under `fair`, the most that each message can lose to others that share its links for so long."""
        longest = np.where(self.rows >= 0, beside[self.rows], 0).max(axis=1, initial=0)
        column: Column = np.minimum(self.lost, longest)
        return column

    @property
    def sizes(self) -> Column:
        """Bytes of each message."""
        return self._column("bytes", 0)

    @cached_property
    def arrival(self) -> Column:
        """When each message is delivered."""
        assert self.timeline.messages is not None
        return self.timeline.arrival(self.timeline.messages, self.rows)

    def _column(self, name: str, hop: int | slice = slice(None)) -> Column:
        """A column of rows, message × link or at one link."""
        assert self.timeline.messages is not None
        column, rows = self.timeline.messages[name], self.rows[:, hop]
        chosen: Column = column[rows] if len(column) else rows
        return chosen

    def places(self, row: Column) -> Places:
        """Where points are, given the number of rows that were recorded before each point of a process."""
        assert self.timeline.messages is not None
        return Places.of(row, self.rows, self.hops, len(self.timeline.messages["channel"]))

    @property
    def times(self) -> tuple[Column, Column, Column]:
        """Message × link: when it asks for the link, and when its service starts; and when each has arrived."""
        return self._column("asked"), self._column("start"), self.arrival

    @cached_property
    def sender(self) -> Column:
        """The global rank that sends each message."""
        return self.timeline.of_channel["sender"][self._column("channel", 0)]

    @cached_property
    def receiver(self) -> Column:
        """The global rank that receives each message."""
        return self.timeline.of_channel["receiver"][self._column("channel", 0)]

    @property
    def longest(self) -> int:
        """No part of a lag is longer, in picoseconds."""
        latency = self.latency.sum(axis=1).max(initial=0)
        return int(max(latency, *(times.max(initial=0) for times in (self.own, self.took, self.paced))))

    @property
    def causes(self) -> tuple[Column, Column, Column]:
        """Number of edges into A and S of each link, and into D."""
        shorter = np.zeros((len(self.flow), self.rows.shape[1] + 1), dtype=np.int8)  # from A to the next point
        if not self.fair:
            shorter[:, 2:] = 1
            shorter[:, 1] = self.is_paced
        return 1 + shorter, 1 + (self.before != NONE), 1 + shorter[np.arange(len(self.flow)), self.hops]

    @cached_property
    def is_paced(self) -> bool:
        """Whether any sender is slower than links."""
        return bool(self.paced.any())

    @cached_property
    def before(self) -> Column:
        """Message × link: the one before on its link or, under `fair`, in its flow, as message · links + link."""
        links = self.rows.shape[1]
        used = (self.rows >= 0) & (self.over.limited[self.link] > 0)
        if self.fair:
            used = np.arange(links) == np.zeros((len(self.flow), 1))
        assert self.timeline.messages is not None
        by_row = np.full(len(self.timeline.messages["channel"]), NONE).astype("int32")
        by_row[self.rows[used]] = np.flatnonzero(used)
        by_row = by_row[by_row != NONE]
        lane = self.flow[by_row // links] if self.fair else self.over.lane[self.link.reshape(-1)[by_row]]
        order = in_order(lane)
        ordered, lane = by_row[order], lane[order]
        same = lane[1:] == lane[:-1]
        before = np.full(self.rows.size, NONE).astype("int32")
        before[ordered[1:][same]] = ordered[:-1][same]
        return before.reshape(self.rows.shape)

    def edges(self, some: slice, sent: Column, places: Places, images: Images) -> Iterator[dict[str, Column]]:
        """All edges that end at points of some messages.

        Args:
            some: the messages.
            sent: the point at which each message is sent.
            places: where points are.
            images: what the run was folded by.
        """
        at, mine = places.asked[some], self.at(some)
        yield self._edge(np.arange(len(at)) + some.start, sent[some], at[:, 0])
        for hop in range(at.shape[1]):
            having = np.flatnonzero(at[:, hop] != NONE)
            here, message = at[having, hop], having + some.start
            yield self._edge(message, here, here + 1)
            for cause, there, parts in mine.beyond(hop, having, at, self.is_paced):
                yield self._edge(message, cause, there, DATA, **parts)
            yield self._turns(hop, message, places, images)

    def beyond(
        self, hop: int, having: Column, at: Column, is_paced: bool
    ) -> Iterator[tuple[Column, Column, dict[str, Column]]]:
        """Cause, point and parts of the edges from a link to the next, or to the receiver."""
        here, on = at[having, hop], self.hops[having] > hop + 1
        there = np.where(on, at[having, min(hop + 1, at.shape[1] - 1)], here + 2)
        if self.fair:  # from all links together
            latency = self.latency[having].sum(axis=1)  # of the route
            parts = {"latency": latency, "queue": self.lost[having], "link": self.slow_link[having, -1]}
            yield here + 1, there, {**parts, "transfer": self.took[having] - self.lost[having]}
            return
        latency, transfer = self._onward(having, hop, served=True)
        yield here + 1, there, {"latency": latency, "transfer": transfer, "link": self.link[having, hop]}
        if hop or is_paced:
            latency, transfer = self._onward(having, hop, served=False)
            link = self.slow_link[having, max(hop - 1, 0)]
            yield here, there, {"latency": latency, "transfer": transfer, "link": link}

    def _onward(self, message: Column, hop: Column | int, *, served: Column | bool) -> tuple[Column, Column]:
        """The latency and the transfer from a link to the next point: from S if it is served, else from A."""
        last = np.asarray(self.hops[message] == np.asarray(hop) + 1)
        slower = self.slowest[message, np.maximum(np.asarray(hop) - 1, 0)]
        before = np.where(np.asarray(hop) > 0, slower, self.paced[message])
        slowest = np.where(last, 0, self.slowest[message, hop])  # the tail has to arrive, at further links the head
        return self.latency[message, hop], np.where(served, self.service[message, hop], before) - slowest

    def lags(self, message: Column, cause: Column, point: Column, kind: Column, asked: Column) -> Column:
        """The lags of edges of messages.

        Args:
            message: the message of each edge.
            cause: where each edge begins.
            point: where it ends.
            kind: the kind of each edge.
            asked: edge × link: the points A of its message.
        """
        hop = ((asked <= cause[:, None]) & (asked != NONE)).sum(axis=1) - 1  # NONE for its send
        here = asked[np.arange(len(hop)), hop]
        if self.fair:
            onward = self.latency[message].sum(axis=1) + self.took[message]
        else:
            onward = sum(self._onward(message, hop, served=cause > here))
        waits = (hop == NONE) | ((cause == here) & (point == here + 1))
        return np.where(kind == LINK, self.service[message, hop], np.where(waits, 0, onward))

    def at(self, chosen: Column | slice) -> Messages:
        """Some messages."""
        names = ("flow", "rows", "latency", "link", "arrives", "own", "took", "paced")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    @cached_property
    def first_of_flow(self) -> Column:
        """By flow: its first message; −1 for flows without messages."""
        first = np.full(int(self.flow.max(initial=NONE)) + 1, NONE)
        first[self.flow[::-1]] = np.arange(len(self.flow))[::-1]
        return first

    def _turns(self, hop: int, message: Column, places: Places, images: Images) -> dict[str, Column]:
        """Edges to messages from the one before on their link or, under `fair`, in their flow."""
        behind = message[self.before[message, hop] != NONE]
        before, first = np.divmod(self.before[behind, hop], self.rows.shape[1])
        points = places.asked[before, first] + 1, places.asked[behind, hop] + 1
        parts = {"queue": self.took[before] if self.fair else self.own[before, first], "link": self.link[before, first]}
        if not self.fair and images.order > 1:  # both are on the link of the one behind
            mine, its = self.over.turned[self.link[behind, hop]], self.over.turned[parts["link"]]
            parts["turn"] = images.combined(mine, images.inverse(its))
        return self._edge(before, *points, LINK, **parts)

    def _edge(
        self, message: Column, cause: Column, point: Column, kind: int = DATA, **parts: Column
    ) -> dict[str, Column]:
        return edges_of(cause, point, kind, activity=len(self.timeline.ops["step"]) + message, **parts)


def edges_of(cause: Column, point: Column, kind: int | Column, **more: Column) -> dict[str, Column]:
    """The columns of edges, without those that are the same for all (`UNLESS_GIVEN`).

    The lag is the sum of its parts, if it is not given.
    """
    parts = (more[name] for name in PARTS if name in more)
    lag = more["lag"] if "lag" in more else sum(parts, start=np.zeros(len(cause), dtype=np.int64))
    return {"cause": cause, "point": point, "kind": np.full(len(cause), kind, dtype=np.int8), **more, "lag": lag}


def messages_of(run: Run, sends: Columns, images: Images) -> Messages:
    """Find the rows of each message in the order in which they were sent."""
    timeline, rows = run.timeline, run.timeline.messages
    assert rows is not None and run.trace is not None and run.fabric is not None
    sent = in_order(sends["flow"])  # message numbers, flow by flow
    table = timeline.routed(rows)
    table[sent] = table.copy()
    there, channel = table >= 0, rows["channel"][table]
    link, latency = (timeline.of_channel[name][channel] for name in ("link", "latency"))
    took = alone = rows["end"] - rows["start"]
    if timeline.fair:
        alone = service_alone(run.fabric, timeline.links, timeline.of_channel["link"][rows["channel"]], rows["bytes"])
    return Messages(
        timeline,
        sends["flow"],
        table,
        np.where(there, latency, 0),
        timeline.links,
        np.where(there, link, NONE),
        LinkImages.of(timeline, run.trace, run.fabric, images),
        _arrives(timeline, images)[channel[:, 0]],
        np.where(there, alone[table], 0),
        took[table[:, 0]],
        timeline.paced(rows, table[:, 0]),
    )


def _arrives(timeline: Timeline, images: Images) -> Column:
    """`Messages.arrives` by channel."""
    if images.order == 1:
        return np.zeros(len(timeline.channels), dtype=np.int64)
    fold, endpoints = images.fold, images.endpoints
    own = (endpoints.is_switch(one.receiver) for one in timeline.channels)  # switches are in their own place
    elements = [
        fold.identity if switch else fold.representative(one.receiver)[1]
        for switch, one in zip(own, timeline.channels, strict=True)
    ]
    return images.inverse(images.numbered(elements))


def service_alone(fabric: Fabric | None, links: Sequence[str], link: Column, size: Column) -> Column:
    """Picoseconds that messages of these sizes take on these links if nothing else uses them."""
    assert fabric is not None
    sizes = np.unique(size)  # few, so that no pair of link and size is sorted
    key = link * np.int64(len(sizes)) + np.searchsorted(sizes, size)
    keys = np.unique(key)
    pairs = zip((keys // max(len(sizes), 1)).tolist(), sizes[keys % max(len(sizes), 1)].tolist(), strict=True)
    rates = {number: rate_of(fabric.links[links[number]].bandwidth) for number in np.unique(link).tolist()}
    times = np.array([rates[number][each] for number, each in pairs], dtype=np.int64)
    return times[np.searchsorted(keys, key)]
