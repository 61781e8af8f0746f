"""First in, first out: a link takes messages in the order in which their heads arrive, one at a time.

    head arrives ──► start = max(head, free) ──► free = start + bytes/bandwidth
    leaves at end = max(free, tail's arrival);  the head is at the next link at end − slowest so far + latency

so a message over equal links is cut through (bytes/bandwidth counted once), and a faster link further on is not
held by a slow sender. Cost: no event at the first link, one at each further link, one per waiting receiver.

Where a bandwidth varies, service time is integrated over its schedule: the head waits for the end of a flap, and a
message in service continues at the new bandwidth when it changes. Latency is that of the moment at which the head
leaves the link, and a head does not overtake earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error
from types import MappingProxyType
from typing import Any, ClassVar

from hybrid_des.engine.clock import MOMENT, USUAL, Environment
from hybrid_des.engine.events import Booking
from hybrid_des.engine.recorder import Rows, out_of_range
from hybrid_des.network.fabric import LinkSpec
from hybrid_des.network.link import Hop, Link, LinkSchedule
from hybrid_des.network.message import Message
from hybrid_des.network.rate import Rate
from hybrid_des.network.sharing import Flow, Put, Schedules, sharing


class Head(Booking):
    """The head of a message, from link to link.

    Attributes:
        flow: the flow of the message.
        hop: the place on the route of the link that it is at, or on its way to.
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
        on_head: callbacks for a head that reaches a further link; all flows of a class share them.
        head: the class of its heads.
    """

    __slots__ = ("env", "on_head")

    head: ClassVar[type[Head]] = Head

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(hops, put, rows)
        self.env = env
        self.on_head = ON_HEAD

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        self.messages += 1
        self.bytes += message.size
        self.scales += message.scales
        head = self.head()  # filled in here: a constructor would take as long as the rest
        head.flow, head.message = self, message
        head.tag = self.label if tag is None else tag
        head.hop = head.slowest = 0
        self.serve(head)

    @staticmethod
    def serve(head: Head) -> None:
        """Serve a head that reaches a link, and send it on or hand the message over."""
        flow, message, hop, slowest = head.flow, head.message, head.hop, head.slowest
        link, latency, channel = flow.hops[hop]
        now = flow.env.now
        start = link.free
        if start < now:
            start = now
        time = link.rate[message.size]
        end = link.free = start + time
        if (rows := flow.rows) is not None:
            try:
                rows.write(rows.pack(channel, head.tag, now, start, end, message.size))
            except error as refusal:
                raise out_of_range(refusal, end) from None
        tail = now + slowest
        if end < tail:
            end = tail
        head.hop = hop = hop + 1
        if hop == len(flow.hops):
            flow.put(message, head.tag, end + latency)
            return
        if slowest < time:
            head.slowest = slowest = time
        head.callbacks = flow.on_head
        flow.env.agenda[end - slowest + latency << MOMENT | USUAL].append(head)


ON_HEAD: tuple[Callable[[Any], None], ...] = (FifoFlow.serve,)


class VaryingLink(Link):
    """A link that serves in order, at a bandwidth that varies."""

    __slots__ = ("_schedule",)

    def __init__(self, env: Environment, spec: LinkSpec, rate: Rate, schedule: LinkSchedule) -> None:
        super().__init__(env, spec, rate)
        self._schedule = schedule

    def serve(self, size: int) -> tuple[int, int]:
        """Serve a message that arrives now, after all others; return the start and the end of its service."""
        bandwidth = self._schedule.bandwidth
        start = bandwidth.resumes(max(self.free, self.env.now))
        self.free = bandwidth.end(start, self.rate.exactly(size))
        return start, self.free

    def delay(self, at: int) -> int:
        """Additional latency in picoseconds for a message that leaves it at this time."""
        return self._schedule.delay(at)


class VaryingFifoFlow(FifoFlow):
    """One flow over links, some of which vary."""

    __slots__ = ("reached",)

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(env, hops, put, rows)
        self.on_head = (self.serve,)
        self.reached = [0] * len(hops)  # after each link: when the last message reached the next one or the receiver

    @staticmethod
    def serve(head: Head) -> None:
        """Serve a head that reaches a link, and send it on or hand the message over."""
        flow: Any = head.flow
        message, hop = head.message, head.hop
        link, latency, channel = flow.hops[hop]
        now = flow.env.now
        start, end = link.serve(message.size)
        if flow.rows is not None:
            flow.rows.add((channel, head.tag, now, start, end, message.size))
        end, slowest = max(end, now + head.slowest), max(head.slowest, end - start)
        last = hop + 1 == len(flow.hops)
        leaves = end if last else end - slowest
        at = flow.reached[hop] = max(flow.reached[hop], leaves + latency + link.delay(leaves))
        if last:
            flow.put(message, head.tag, at)
            return
        head.callbacks, head.hop, head.slowest = flow.on_head, hop + 1, slowest
        flow.env.at(at, head)


@sharing("fifo")
class Fifo:
    """Links serve one message at a time, in order.

    Attributes:
        kind: the class of links whose bandwidth is constant.
    """

    kind: ClassVar[type[Link]] = Link

    def __init__(self, env: Environment, schedules: Schedules = MappingProxyType({})) -> None:
        self._env = env
        self._schedules = schedules

    def link(self, spec: LinkSpec, rate: Rate) -> Link:
        """Make a link."""
        schedule = self._schedules.get(spec.name)
        return self.kind(self._env, spec, rate) if schedule is None else VaryingLink(self._env, spec, rate, schedule)

    def flow(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> FifoFlow:
        """Open a flow over these hops, whose messages are recorded in these rows."""
        varies = any(isinstance(hop.link, VaryingLink) for hop in hops)
        return (VaryingFifoFlow if varies else FifoFlow)(self._env, hops, put, rows)
