"""Messages in the graph of causes: their points at each link of their routes, and the edges between these.

    A  a head arrives at a link        S  the link serves it        D  the message is delivered

    S = max(A, S of the message before + its service time)
    next A = max(S + t − slowest, A + slowest before − slowest) + latency
    D = max(S + t, A + slowest before) + latency                                      (see `cluster.sharing.fifo`)

Before its first link, a message of a paced flow has been as slow as its sender.

Under `fair` a message occupies all links of its route together: it has one A, S and D.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.link_images import LinkImages
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rate import rate_of
from hybrid_des.simulation.run import Run
from hybrid_des.simulation.timeline import NONE, Column, Columns, Timeline

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
    def base(self) -> Column:
        """The first point of each message, then the total number of points: A and S per link, then D."""
        return np.concatenate([[0], np.cumsum(2 * self.hops + 1)])

    @property
    def heads(self) -> Column:
        """The point at which each message is sent."""
        return self.base[:-1]

    @property
    def deliveries(self) -> Column:
        """The point at which each message has arrived."""
        return self.base[1:] - 1

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
        sizes: Column = self._column("bytes")[:, 0]
        return sizes

    @cached_property
    def arrival(self) -> Column:
        """When each message is delivered."""
        assert self.timeline.messages is not None
        return self.timeline.arrival(self.timeline.messages, self.rows)

    def _column(self, name: str) -> Column:
        assert self.timeline.messages is not None
        column = self.timeline.messages[name]
        chosen: Column = column[self.rows] if len(column) else self.rows
        return chosen

    @cached_property
    def _each(self) -> list[tuple[int, Column]]:
        """Each hop of routes, and the messages that have a link there."""
        return [(hop, np.flatnonzero(self.hops > hop)) for hop in range(int(self.hops.max(initial=0)))]

    @cached_property
    def times(self) -> Column:
        """The times of all points."""
        times = np.zeros(int(self.base[-1]), dtype=np.int64)
        asked, start = self._column("asked"), self._column("start")
        for hop, having in self._each:
            times[self.base[having] + 2 * hop] = asked[having, hop]
            times[self.base[having] + 2 * hop + 1] = start[having, hop]
        times[self.deliveries] = self.arrival
        return times

    @cached_property
    def order(self) -> Column:
        """A sort key for each point that places it after everything recorded before its row."""
        order = np.zeros(int(self.base[-1]), dtype=np.int64)
        for hop, having in self._each:
            for more in (0, 1, 2):  # D follows the last link; a further link overwrites it
                order[self.base[having] + 2 * hop + more] = 2 * self.rows[having, hop] + 1
        return order

    @cached_property
    def sender(self) -> Column:
        """The global rank that sends each message."""
        return self.timeline.of_channel["sender"][self._column("channel")[:, 0]]

    @cached_property
    def receiver(self) -> Column:
        """The global rank that receives each message."""
        return self.timeline.of_channel["receiver"][self._column("channel")[:, 0]]

    def edges(self, sends: Columns, points: int, images: Images) -> Iterator[Columns]:
        """All edges that end at points of messages, which are numbered after `points` of processes."""
        first = points + self.base
        yield self._edge(np.arange(len(self.flow)), sends["point"], points + self.heads)
        for hop, having in self._each:
            at = first[having] + 2 * hop
            yield self._edge(having, at, at + 1)
            yield from self._shared(having, at) if self.fair else self._onwards(hop, having, at)
        yield self._turns(first, images)

    def _onwards(self, hop: int, having: Column, at: Column) -> Iterator[Columns]:
        """Edges from a link to the next, or to the receiver."""
        latency, service = self.latency[having, hop], self.service[having, hop]
        on = self.hops[having] > hop + 1
        # the remaining wait: nothing before a further link, the tail before the receiver
        slowest = np.where(on, self.slowest[having, hop], 0)
        link = self.link[having, hop]
        yield self._edge(having, at + 1, at + 2, latency=latency, transfer=service - slowest, link=link)
        if hop or self.paced.any():
            before = self.slowest[having, hop - 1] if hop else self.paced[having]
            link = self.slow_link[having, max(hop - 1, 0)]
            yield self._edge(having, at, at + 2, latency=latency, transfer=before - slowest, link=link)

    def _shared(self, having: Column, at: Column) -> Iterator[Columns]:
        """Edges from all links together to the receiver."""
        latency = self.latency[having].sum(axis=1)  # of the route
        parts = {"latency": latency, "queue": self.lost[having], "link": self.slow_link[having, -1]}
        yield self._edge(having, at + 1, at + 2, transfer=self.took[having] - self.lost[having], **parts)

    def _turns(self, first: Column, images: Images) -> Columns:
        """Edges from each message to the next on its link or, under `fair`, in its flow."""
        message, hop = np.nonzero((self.rows >= 0) & (self.over.limited[self.link] > 0))
        if self.fair:
            message, hop = np.arange(len(self.flow)), np.zeros(len(self.flow), dtype=np.int64)
        lane = self.flow[message] if self.fair else self.over.lane[self.link[message, hop]]
        order = np.lexsort((self.rows[message, hop], lane))
        message, hop, lane = message[order], hop[order], lane[order]
        same = lane[1:] == lane[:-1]
        before, at, behind, there = message[:-1][same], hop[:-1][same], message[1:][same], hop[1:][same]
        points = first[before] + 2 * at + 1, first[behind] + 2 * there + 1
        parts = {"queue": self.service[before, at], "link": self.link[before, at]}
        if not self.fair:  # both are on the link of the one behind
            mine, first = (self.over.turned[self.link[one]] for one in ((behind, there), (before, at)))
            parts["turn"] = images.combined(mine, images.inverse(first))
        return self._edge(before, *points, LINK, **parts)

    def _edge(self, message: Column, cause: Column, point: Column, kind: int = DATA, **parts: Column) -> Columns:
        return edges_of(cause, point, kind, activity=len(self.timeline.ops["step"]) + message, **parts)


def edges_of(cause: Column, point: Column, kind: int | Column, **more: Column) -> Columns:
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
    sent = np.argsort(sends["flow"], kind="stable")  # message numbers, flow by flow
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
    return images.inverse(images.numbered([images.fold.representative(one.receiver)[1] for one in timeline.channels]))


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
