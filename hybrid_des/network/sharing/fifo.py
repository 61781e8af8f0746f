"""First in, first out: a link takes messages in the order in which their heads arrive, one at a time.

    head arrives ──► start = max(head, free) ──► free = start + bytes/bandwidth
    leaves at end = max(free, tail's arrival);  the head is at the next link at end − slowest so far + latency

so a message over equal links is cut through (bytes/bandwidth counted once), and a faster link further on is not
held by a slow sender. Cost: no event at the first link, one at each further link, one per waiting receiver.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error
from typing import Any

from hybrid_des.engine.clock import MOMENT, USUAL, Environment
from hybrid_des.engine.events import Booking
from hybrid_des.engine.recorder import Rows, out_of_range
from hybrid_des.network.fabric import LinkSpec
from hybrid_des.network.link import Hop, Link
from hybrid_des.network.message import Message
from hybrid_des.network.rate import Rate
from hybrid_des.network.sharing import Flow, Put, sharing


class Head(Booking):
    """The head of a message on its way to a further link.

    Attributes:
        flow: the flow of the message.
        hop: the place of that link on the route.
        slowest: the longest service time so far; the tail is that far behind the head.
    """

    __slots__ = ("flow", "hop", "message", "slowest", "tag")

    flow: FifoFlow
    hop: int
    message: Message
    slowest: int
    tag: int


class FifoFlow(Flow):
    """One flow under `fifo`.

    Attributes:
        link, latency, channel: its first hop.
        direct: whether that is its only hop.
        on_head: callbacks for a head that reaches a further link; all flows of a class share them.
    """

    __slots__ = ("channel", "direct", "env", "latency", "link", "on_head")

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(hops, put, rows)
        self.env = env
        self.link, self.latency, self.channel = hops[0]
        self.direct = len(hops) == 1
        self.on_head = ARRIVE

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        if tag is None:
            tag = self.label
        size = message.size
        self.messages += 1
        self.bytes += size
        self.scales += message.scales
        link, latency = self.link, self.latency
        now = self.env.now
        start = link.free
        if start < now:
            start = now
        time = link.rate[size]
        end = link.free = start + time
        if (rows := self.rows) is not None:
            try:
                rows.write(rows.pack(self.channel, tag, now, start, end, size))
            except error as refusal:
                raise out_of_range(refusal, end) from None
        if self.direct:
            self.put(message, tag, end + latency)
        else:
            self._forward(1, start + latency, time, message, tag)

    @staticmethod
    def arrive(head: Head) -> None:
        """Serve a head at a further link, and send it on or hand the message over."""
        flow, message, tag, slowest = head.flow, head.message, head.tag, head.slowest
        link, latency, channel = flow.hops[head.hop]
        now = flow.env.now
        start = link.free
        if start < now:
            start = now
        time = link.rate[message.size]
        end = link.free = start + time
        if (rows := flow.rows) is not None:
            try:
                rows.write(rows.pack(channel, tag, now, start, end, message.size))
            except error as refusal:
                raise out_of_range(refusal, end) from None
        tail = now + slowest
        if end < tail:
            end = tail
        hop = head.hop + 1
        if hop == len(flow.hops):
            flow.put(message, tag, end + latency)
        else:
            if slowest < time:
                slowest = time
            flow._forward(hop, end - slowest + latency, slowest, message, tag)

    def _forward(self, hop: int, at: int, slowest: int, message: Message, tag: int) -> None:
        """Book the arrival of a head at a further link."""
        head = Head()  # filled in here: a constructor would take as long as the rest
        head.callbacks, head.flow = self.on_head, self
        head.message, head.tag = message, tag
        head.hop, head.slowest = hop, slowest
        self.env.agenda[at << MOMENT | USUAL].append(head)


ARRIVE: tuple[Callable[[Any], None], ...] = (FifoFlow.arrive,)


@sharing("fifo")
class Fifo:
    """Links serve one message at a time, in order."""

    def __init__(self, env: Environment, rows: Rows | None) -> None:
        self._env = env
        self._rows = rows

    def link(self, spec: LinkSpec, rate: Rate) -> Link:
        """Make a link."""
        return Link(self._env, spec, rate)

    def flow(self, hops: tuple[Hop, ...], put: Put) -> Flow:
        """Open a flow over these hops."""
        return FifoFlow(self._env, hops, put, self._rows)
