"""What messages take at each link of their routes: the lags of their edges, in parts.

An edge of a message is of one of three sorts at each link, numbered by `sort_of`:

    SERVED   from S to the next point: the message has left the link
    PASSED   from A to the next point: slower links before hold it back
    TURN     from S to S of the message behind it

Messages that take the same have one row here, so a run with few routes and sizes has few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybrid_des.planning.program_table import Column

DATA, PROGRAM, LINK, BARRIER = range(4)  # kinds of edges; of several binding ones, the first kind is shown


OF_MESSAGES = 4  # the sorts of edges before it are the kinds of those that take no part of a message's time


SERVED, PASSED, TURN = range(3)


def sort_of(hop: Column | int, what: int) -> Column:
    """The sort of a message's edge at a link of its route."""
    return np.asarray(OF_MESSAGES + 3 * np.asarray(hop) + what)


def kinds(sorts: int) -> Column:
    """The kind of each sort of edge."""
    sort = np.arange(sorts)
    return np.where(sort < OF_MESSAGES, sort, np.where((sort - OF_MESSAGES) % 3 == TURN, LINK, DATA)).astype(np.int8)


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
