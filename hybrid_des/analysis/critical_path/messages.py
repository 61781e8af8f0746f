"""Messages in the graph of causes: their points at each link of their routes, and the edges between these.

    A  a head arrives at a link        S  the link serves it        D  the message is delivered

    S = max(A, S of the message before + its service time)
    next A = max(S + t − slowest, A + slowest before − slowest) + latency
    D = max(S + t, A + slowest before) + latency                                      (see `cluster.sharing.fifo`)

Before its first link, a message of a paced flow has been as slow as its sender.

Under `fair` a message occupies all links of its route together: it has one A, S and D.

`Services` are what messages take at each link of their routes: the lags of their edges, in parts.

An edge of a message is of one of three sorts at each link, numbered by `sort_of`:

    SERVED   from S to the next point: the message has left the link
    PASSED   from A to the next point: slower links before hold it back
    TURN     from S to S of the message behind it

Messages that take the same have one row here, so a run with few routes and sizes has few rows.

`Places` are where points stand in the graph, causes before effects: in the order in which they and the rows of messages
were recorded. The points of a row follow each other: A and S of `messages` and, of a message's last row, D. So no point
has to be sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.images import Images, LinkImages
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rate import rate_of
from hybrid_des.planning.program_table import NONE, Column, Columns
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.timeline import Timeline, in_order

DATA, PROGRAM, LINK, BARRIER = range(4)  # kinds of edges; of several binding ones, the first kind is shown


OF_MESSAGES = 4  # the sorts of edges before it are the kinds of those that take no part of a message's time


SERVED, PASSED, TURN = range(3)


def sort_of(hop: Column | int, what: int) -> Column:
    """The sort of a message's edge at a link of its route."""
    return np.asarray(OF_MESSAGES + 3 * np.asarray(hop) + what)


@dataclass(frozen=True, eq=False)
class Services:
    """The times of messages, a row for those that take the same.

    Attributes:
        latency: row × link: picoseconds after each link; 0 where the route is shorter.
        own: row × link: picoseconds that a message occupies each link if nothing else uses it.
        paced: the least picoseconds that its sender takes, if it is slower than links.
        links: number of links of the route.
        took: under `fair`, picoseconds from the start to the end of its service; None under `fifo`.
        theirs: the most that it can lose to messages of other jobs.
    """

    latency: Column
    own: Column
    paced: Column
    links: Column
    took: Column | None = None
    theirs: Column | None = None

    @property
    def sorts(self) -> int:
        """Number of sorts of edges."""
        return OF_MESSAGES + 3 * (self.own.shape[1] if self.took is None else 1)

    @cached_property
    def slowest(self) -> Column:
        """Row × link: the longest service time so far."""
        return np.maximum(np.maximum.accumulate(self.own, axis=1), self.paced[:, None])

    @cached_property
    def slow_hop(self) -> Column:
        """Row × link: the link of the longest service time so far, by its place in the route; the first such link."""
        hops = np.tile(np.arange(self.own.shape[1]), (len(self.own), 1))
        for hop in range(1, hops.shape[1]):
            same = self.own[:, hop] <= self.slowest[:, hop - 1]
            hops[same, hop] = hops[same, hop - 1]
        return hops

    @cached_property
    def lost(self) -> Column:
        """Under `fair`, how much longer each message takes than it would alone."""
        assert self.took is not None
        longer: Column = np.maximum(self.took - self.slowest[:, -1], 0)
        return longer

    @cached_property
    def parts(self) -> dict[str, Column]:
        """Row × sort: latency, transfer, queue, and what is lost to others, of an edge's lag; 0 for other edges."""
        empty = np.zeros((len(self.own), self.sorts), dtype=np.int64)
        parts = {name: empty.copy() for name in ("latency", "transfer", "queue")}
        if self.took is None:
            self._one_by_one(parts)
        else:  # all links together
            parts["latency"][:, sort_of(0, SERVED)] = self.latency.sum(axis=1)
            parts["transfer"][:, sort_of(0, SERVED)] = self.took - self.lost
            parts["queue"][:, sort_of(0, SERVED)] = self.lost
            parts["queue"][:, sort_of(0, TURN)] = self.took
        others = empty if self.theirs is None else np.minimum(parts["queue"], self.theirs[:, None])
        return {**parts, "queue": parts["queue"] - others, "others": others}

    def _one_by_one(self, parts: dict[str, Column]) -> None:
        """Write the parts under `fifo`, where a message is served by one link after the other."""
        for hop in range(self.own.shape[1]):
            last = self.links == hop + 1
            onward = np.where(last, 0, self.slowest[:, hop])  # the tail has to arrive, at further links the head
            before = self.slowest[:, hop - 1] if hop else self.paced
            for what, service in ((SERVED, self.own[:, hop]), (PASSED, before)):
                parts["latency"][:, sort_of(hop, what)] = self.latency[:, hop]
                parts["transfer"][:, sort_of(hop, what)] = service - onward
            parts["queue"][:, sort_of(hop, TURN)] = self.own[:, hop]

    @cached_property
    def lag(self) -> Column:
        """Row × sort: the lag of an edge."""
        return np.asarray(sum(self.parts.values()))

    @cached_property
    def hop(self) -> Column:
        """Row × sort: the link to which an edge's transfer or queue belongs, by its place in the route."""
        hops = np.zeros((len(self.own), self.sorts), dtype=np.int64)
        for hop in range((self.sorts - OF_MESSAGES) // 3):
            hops[:, sort_of(hop, SERVED)] = hops[:, sort_of(hop, TURN)] = hop
            hops[:, sort_of(hop, PASSED)] = self.slow_hop[:, max(hop - 1, 0)]
        if self.took is not None:
            hops[:, sort_of(0, SERVED)] = self.slow_hop[:, -1]
        return hops

    def over(self, rows: Column, own: Column, latency: Column) -> Services:
        """The messages of some rows over links that take other times, which sharing makes longer in proportion."""
        took, slower = self.took, own.max(axis=1, initial=0) / np.maximum(self.slowest[rows, -1], 1)
        if took is not None:
            took = np.rint(took[rows] * slower).astype(np.int64)
        return Services(latency, own, self.paced[rows], self.links[rows], took)


@dataclass(frozen=True, eq=False)
class Places:
    """The numbers of points.

    Attributes:
        process: of each point of a process.
        asked: message × link: of the point A; −1 where the route is shorter. S follows it.
        delivered: of each message, of the point D.
        end: of the last point.
    """

    process: Column
    asked: Column
    delivered: Column
    end: int

    @classmethod
    def of(cls, row: Column, rows: Column, hops: Column, count: int) -> Places:
        """Find the places of all points.

        Args:
            row: for each point of a process, the number of rows that were recorded before it; in order.
            rows: message × link: its rows.
            hops: the number of links at which each message has points.
            count: number of all rows.
        """
        sizes, last = np.zeros(count + 1, dtype="int32"), rows[np.arange(len(rows)), hops - 1]
        there = np.arange(max(int(hops.max(initial=0)), 1)) < hops[:, None]
        mine = rows[:, : there.shape[1]]
        sizes[mine[there]] = 2
        sizes[last] = 3
        before = np.cumsum(sizes, dtype="int32")
        before -= sizes
        end, process = len(row) + int(sizes.sum()), np.arange(len(row), dtype="int32") + before[row]
        before += np.cumsum(np.bincount(row, minlength=count + 1), dtype="int32")  # and processes
        asked = np.where(there, before[mine], NONE).astype("int32")
        return cls(process, asked, (before[last] + 2).astype("int32"), end)

    def column(self, processes: Column, asked: Column, start: Column, arrival: Column, end: int) -> Column:
        """A column of all points.

        Args:
            processes: its values at the points of processes.
            asked: message × link, or of all links of a message: its values at A.
            start: the same at S.
            arrival: its values at D.
            end: its value at the end.
        """
        column = np.empty(self.end + 1, dtype=processes.dtype)
        column[self.process] = processes
        for more, values in ((0, asked), (1, start)):
            for hop, mine in self.each:
                column[self.asked[mine, hop] + more] = values[mine, hop] if values.ndim > 1 else values[mine]
        column[self.delivered] = arrival
        column[self.end] = end
        return column

    @property
    def each(self) -> Iterator[tuple[int, Column]]:
        """Each link of routes, and the messages that have points there."""
        return ((hop, np.flatnonzero(self.asked[:, hop] != NONE)) for hop in range(self.asked.shape[1]))


AT_ONCE = 2**15  # messages
MOST_CODES = 2**62


class Block(NamedTuple):
    """Some edges: their numbers, where they begin, their sorts, and the elements that map their causes (`turn`)."""

    slots: Column
    cause: Column
    sort: Column | int
    turn: Column | int = 0


@dataclass(frozen=True)
class Messages:
    """All messages of a run, in the order in which they were sent.

    Attributes:
        timeline: the timeline of the run.
        flow: flow of each message.
        rows: message × link: its rows in `timeline.messages`; −1 where its route is shorter.
        links: the names of the links.
        link: flow × link: numbers of the links; −1 where the route is shorter.
        over: the links, with what they are images of.
        arrives: by flow, numbers of the elements that map a message to the one that its receiver's representative
            receives.
        services: what messages take on their links.
        alike: the row of each message in `services`.
        took: picoseconds from the start to the end of each message's service at its first link.
    """

    timeline: Timeline
    flow: Column
    rows: Column
    links: Sequence[str]
    link: Column
    over: LinkImages
    arrives: Column
    services: Services
    alike: Column
    took: Column

    @property
    def fair(self) -> bool:
        """Whether messages share links."""
        return self.timeline.fair

    @property
    def hops(self) -> Column:
        """Number of links at which each message has points."""
        return np.ones(len(self.flow), dtype=np.int64) if self.fair else self.services.links[self.alike]

    def beside(self, beside: Column) -> Messages:
        """The same beside other jobs, whose messages are on the links of each row for so long.

        Under `fair`, a message loses to theirs at most as long as they are there, and no more than it loses at all.
        """
        if not self.fair:
            return self
        longest = np.where(self.rows >= 0, beside[self.rows], 0).max(axis=1, initial=0)
        return replace(self, services=replace(self.services, theirs=np.minimum(self.services.lost, longest)))

    def over_links(self, some: Column, fabric: Fabric, latency: Column) -> Messages:
        """The same over links of a fabric, of which only some messages are asked for.

        Args:
            some: these messages.
            fabric: its links have the names of those that messages are on.
            latency: flow × link: picoseconds after each.
        """
        flow, size = self.flow[some], self.sizes[some]
        chosen, alike = (np.arange(len(some)),) * 2 if self.fair else distinct([flow, size])
        link, sizes = self.link[flow[chosen]], size[chosen]
        own = np.zeros(link.shape, dtype=np.int64)
        own[link != NONE] = service_alone(
            fabric, self.links, link[link != NONE], np.broadcast_to(sizes[:, None], link.shape)[link != NONE]
        )
        every = np.zeros_like(self.alike)
        every[some] = alike
        services = self.services.over(self.alike[some[chosen]], own, latency[flow[chosen]])
        return replace(self, services=services, alike=every)

    @property
    def sizes(self) -> Column:
        """Bytes of each message."""
        return self._column("bytes", 0)

    @cached_property
    def arrival(self) -> Column:
        """When each message is delivered."""
        assert self.timeline.messages is not None
        some = (self.rows[begin : begin + AT_ONCE] for begin in range(0, max(len(self.rows), 1), AT_ONCE))
        return np.concatenate([self.timeline.arrival(self.timeline.messages, rows) for rows in some])

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
        return self._end("sender")

    @cached_property
    def receiver(self) -> Column:
        """The global rank that receives each message."""
        return self._end("receiver")

    def _end(self, name: str) -> Column:
        """Of each message, what its flow has; few rows are looked at, which may be in a file."""
        if not len(self.flow):
            return self.flow
        assert self.timeline.messages is not None
        channel = self.timeline.messages["channel"][self.rows[self.first_of_flow, 0]]
        ends: Column = self.timeline.of_channel[name].astype("int32")[channel]
        return ends[self.flow]

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
        return bool(self.services.paced.any())

    @cached_property
    def before(self) -> Column:
        """Message × link: the one before on its link or, under `fair`, in its flow, as message · links + link."""
        links = self.rows.shape[1]
        link = self.link[self.flow]
        used = (self.rows >= 0) & (self.over.limited[link] > 0)
        if self.fair:
            used = np.arange(links) == np.zeros((len(self.flow), 1))
        assert self.timeline.messages is not None
        by_row = np.full(len(self.timeline.messages["channel"]), NONE, dtype="int32")
        by_row[self.rows[used]] = np.flatnonzero(used)
        by_row = by_row[by_row != NONE]
        lane = self.flow[by_row // links] if self.fair else self.over.lane[link.reshape(-1)[by_row]]
        order = in_order(lane)
        ordered, lane = by_row[order], lane[order]
        same = lane[1:] == lane[:-1]
        before: Column = np.full(self.rows.size, NONE, dtype="int32")
        before[ordered[1:][same]] = ordered[:-1][same]
        return before.reshape(self.rows.shape)

    def edges(self, some: slice, sent: Column, places: Places, first: Column) -> Iterator[Block]:
        """All edges that end at points of some messages.

        Args:
            some: the messages.
            sent: the point at which each message is sent.
            places: where points are.
            first: the first edge into each point.
        """
        at, hops, number = places.asked[some], self.hops[some], np.arange(some.start, some.start + len(sent[some]))
        yield Block(first[at[:, 0]], sent[some], DATA)
        for hop in range(at.shape[1]):
            having = np.flatnonzero(at[:, hop] != NONE)
            here = at[having, hop]
            yield Block(first[here + 1], here, DATA)
            on = hops[having] > hop + 1
            there = first[np.where(on, at[having, min(hop + 1, at.shape[1] - 1)], here + 2)]
            yield Block(there, here + 1, int(sort_of(hop, SERVED)))
            if not self.fair and (hop or self.is_paced):
                yield Block(there + 1, here, int(sort_of(hop, PASSED)))
            behind = np.flatnonzero(self.before[number[having], hop] != NONE)
            yield self._turns(hop, number[having[behind]], first[here[behind] + 1] + 1, places)

    def _turns(self, hop: int, behind: Column, slots: Column, places: Places) -> Block:
        """Edges to messages from the one before on their link or, under `fair`, in their flow."""
        before, its_hop = np.divmod(self.before[behind, hop], self.rows.shape[1])
        cause, sort = places.asked[before, its_hop] + 1, sort_of(its_hop, TURN)
        images = self.over.folded
        if self.fair or images.order == 1:
            return Block(slots, cause, sort)
        mine, its = self.link[self.flow[behind], hop], self.link[self.flow[before], its_hop]  # one link
        return Block(slots, cause, sort, images.combined(self.over.turned[mine], images.inverse(self.over.turned[its])))

    @cached_property
    def first_of_flow(self) -> Column:
        """By flow: its first message; −1 for flows without messages."""
        return _first_of_flow(self.flow)


def messages_of(run: Run, sends: Columns, images: Images) -> Messages:
    """Find the rows of each message in the order in which they were sent."""
    timeline, rows = run.timeline, run.timeline.messages
    assert rows is not None and run.trace is not None and run.fabric is not None
    table = np.empty((len(sends["flow"]), int(timeline.of_channel["hop"].max(initial=0)) + 1), dtype="int32")
    table[in_order(sends["flow"])] = timeline.routed(rows)  # flow by flow
    flow = sends["flow"].astype("int32")
    first = _first_of_flow(flow)
    there, channel = table[first] >= 0, rows["channel"][table[first]]
    there[first == NONE] = False
    took = (rows["end"] - rows["start"])[table[:, 0]]
    services, alike = _services(run, flow, table, np.where(there, timeline.of_channel["latency"][channel], 0), took)
    return Messages(
        timeline,
        flow,
        table,
        timeline.links,
        np.where(there, timeline.of_channel["link"][channel], NONE),
        LinkImages.of(timeline, run.trace, run.fabric, images),
        _arrives(timeline, images)[channel[:, 0]],
        services,
        alike,
        took,
    )


def _services(run: Run, flow: Column, table: Column, latency: Column, took: Column) -> tuple[Services, Column]:
    """What messages take, given the latencies of flows, and the row of each."""
    timeline, rows = run.timeline, run.timeline.messages
    assert rows is not None
    paced, links = timeline.paced(rows, table[:, 0]), (table >= 0).sum(axis=1)
    if timeline.fair:  # what sharing makes of a message is its own
        link = timeline.of_channel["link"][rows["channel"]]
        alone = service_alone(run.fabric, timeline.links, link, rows["bytes"])
        own = np.where(table >= 0, alone[table], 0)
        return Services(latency[flow], own, paced, links, took), np.arange(len(flow), dtype="int32")
    took_there = rows["end"] - rows["start"]
    own_times = [np.where(table[:, hop] >= 0, took_there[table[:, hop]], 0) for hop in range(table.shape[1])]
    routes = np.unique(latency, axis=0, return_inverse=True)[1].reshape(-1)
    chosen, alike = distinct([routes[flow], links, paced, *own_times])
    own = np.stack([times[chosen] for times in own_times], axis=1)
    return Services(latency[flow[chosen]], own, paced[chosen], links[chosen]), alike


def distinct(columns: Sequence[Column]) -> tuple[Column, Column]:
    """One row of each sort of equal rows of some columns, and the sort of every row."""
    code: Column = np.zeros(len(columns[0]), dtype=np.int64)
    count = 1
    for column in columns:
        values = np.unique(column)
        if count * len(values) >= MOST_CODES:
            numbered = np.unique(code, return_inverse=True)
            code, count = numbered[1].reshape(-1), len(numbered[0])
        code, count = code * len(values) + np.searchsorted(values, column), count * len(values)
    _, chosen, number = np.unique(code, return_index=True, return_inverse=True)
    return chosen, number.reshape(-1).astype("int32")


def _first_of_flow(flow: Column) -> Column:
    first = np.full(int(flow.max(initial=NONE)) + 1, NONE)
    first[flow[::-1]] = np.arange(len(flow))[::-1]
    return first


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
