"""First in, first out: a link takes messages in the order in which their heads arrive, one at a time.

    head arrives ──► start = max(head, free) ──► free = start + bytes/bandwidth
    leaves at end = max(free, tail's arrival);  the head is at the next link at end − slowest so far + latency

so a message over equal links is cut through (bytes/bandwidth counted once), and a faster link further on is not
held by a slow sender. Cost: no event at the first link, one at each further link, one per waiting receiver.

Where a bandwidth varies, service time is integrated over its schedule: the head waits for the end of a flap, and a
message in service continues at the new bandwidth when it changes. Latency is that of the moment at which the head
leaves the link, and a head does not overtake earlier ones.

Under `uncontended`, every message has its links to itself, however many others are on them.

No network does this. Runs under it show what queueing costs; scenarios cannot choose it.
"""

from collections.abc import Callable
from heapq import heappush
from struct import error
from types import MappingProxyType
from typing import Any, ClassVar

from hybrid_des.cluster.fabric import LinkSpec
from hybrid_des.cluster.link import Hop, Link, LinkSchedule
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rate import Rate
from hybrid_des.cluster.sharing.registration import Flow, Put, Schedules, sharing
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Rows, out_of_range

# A further link of a route, the latency after it, its channel in the record, its place on the route, and the next one.
# A plain tuple unpacks in a fifth of the time of a named one.
Leg = tuple[Link, int, int, int, "Leg | None"]

# The head of a message on its way to a further link: what is called when it gets there, the flow, the message, its tag,
# the link, and the longest service time so far; the tail is that far behind the head.
Head = tuple[Callable[[Any], None], "FifoFlow", Message, int, Leg, int]


class FifoFlow(Flow):
    """One flow under `fifo`.

    Attributes:
        link, latency, channel: its first hop.
        further: its second one, if any.
        on_head: called with a head that reaches a further link.
    """

    __slots__ = ("channel", "env", "further", "latency", "link", "on_head")

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(hops, put, rows)
        self.env = env
        self.link, self.latency, self.channel = hops[0]
        self.further: Leg | None = None
        for number in range(len(hops) - 1, 0, -1):
            self.further = (*hops[number], number, self.further)
        self.on_head: Callable[[Any], None] = FifoFlow.arrive

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        if tag is None:
            tag = self.label
        size, link = message.size, self.link
        self.count += message.count
        if message.scales:
            self.scales += message.scales
        now = self.env.now
        start = link.free
        if start < now:
            start = now
        time = link.rate[size]
        end = link.free = start + time
        if (rows := self.rows) is not None:
            write, pack = rows.write, rows.pack
            try:
                write(pack(self.channel, tag, now, start, end, size))
            except error as refusal:
                raise out_of_range(refusal, end) from None
        if self.pace is not None:
            self._send_at_pace(message, tag, start, end)
        elif (leg := self.further) is None:
            self.put(message, tag, end + self.latency)
        else:
            self._forward(leg, start + self.latency, time, message, tag)

    def _send_at_pace(self, message: Message, tag: int, start: int, end: int) -> None:
        """Send a message on from the first link: its tail is as far behind its head as the sender is slow."""
        assert self.pace is not None
        slowest, time = self.pace[message.size], end - start
        end = max(end, self.env.now + slowest)
        if self.further is None:
            self.put(message, tag, end + self.latency)
        else:
            slowest = max(slowest, time)
            self._forward(self.further, end - slowest + self.latency, slowest, message, tag)

    @staticmethod
    def arrive(head: Head) -> None:
        """Serve a head at a further link, and send it on or hand the message over."""
        _, flow, message, tag, (link, latency, channel, _, leg), slowest = head
        now = flow.env.now
        start = link.free
        if start < now:
            start = now
        size = message.size
        time = link.rate[size]
        end = link.free = start + time
        if (rows := flow.rows) is not None:
            write, pack = rows.write, rows.pack
            try:
                write(pack(channel, tag, now, start, end, size))
            except error as refusal:
                raise out_of_range(refusal, end) from None
        tail = now + slowest
        if end < tail:
            end = tail
        if leg is None:
            flow.put(message, tag, end + latency)
        else:
            if slowest < time:
                slowest = time
            flow._forward(leg, end - slowest + latency, slowest, message, tag)

    def _forward(self, leg: Any, at: int, slowest: int, message: Message, tag: int) -> None:
        """Book the arrival of a head at a further link."""
        head = self.on_head, self, message, tag, leg, slowest
        agenda = self.env.agenda
        booked = agenda.booked
        if at in booked:
            booked[at].append(head)
        else:
            booked[at] = [head]
            heappush(agenda.times, at)


class VaryingLink(Link):
    """A link that serves in order, at a bandwidth that may vary."""

    __slots__ = ("_schedule",)

    def __init__(self, env: Environment, spec: LinkSpec, rate: Rate, schedule: LinkSchedule | None) -> None:
        super().__init__(env, spec, rate)
        self._schedule = schedule

    def serve(self, size: int) -> tuple[int, int]:
        """Serve a message that arrives now, after all others; return the start and the end of its service."""
        if self._schedule is None:
            return super().serve(size)
        bandwidth = self._schedule.bandwidth
        start = bandwidth.resumes(max(self.free, self.env.now))
        self.free = bandwidth.end(start, self.rate.exactly(size))
        return start, self.free

    def delay(self, at: int) -> int:
        """Additional latency in picoseconds for a message that leaves it at this time."""
        return 0 if self._schedule is None else self._schedule.delay(at)


class VaryingFifoFlow(FifoFlow):
    """One flow over links, some of which vary.

    Attributes:
        held: whether a head leaves a link no earlier than its service begins.
        reached: after each link: when the last message reached the next one or the receiver.
    """

    __slots__ = ("reached",)

    held: ClassVar[bool] = False

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(env, hops, put, rows)
        self.on_head = VaryingFifoFlow.arrive
        self.reached = [0] * len(hops)

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        self.count += message.count
        self.scales += message.scales
        slowest = 0 if self.pace is None else self.pace[message.size]
        self._serve(0, message, self.label if tag is None else tag, slowest)

    @staticmethod
    def arrive(head: Any) -> None:
        """Serve a head at a further link; here it has the place of the link on the route instead of the link."""
        _, flow, message, tag, hop, slowest = head
        flow._serve(hop, message, tag, slowest)

    def _serve(self, hop: int, message: Message, tag: int, slowest: int) -> None:
        """Serve a head at a link; its tail is `slowest` picoseconds behind it."""
        self._served(hop, message, tag, slowest, self.env.now, *self.hops[hop].link.serve(message.size))

    def _served(self, hop: int, message: Message, tag: int, slowest: int, asked: int, *service: int) -> None:
        """Send a head on, or hand the message over, once its service at a link is known."""
        (link, latency, channel), (start, end) = self.hops[hop], service
        if self.rows is not None:
            self.rows.add((channel, tag, asked, start, end, message.size))
        slowest, end = max(slowest, end - start), max(end, asked + slowest)
        last = hop + 1 == len(self.hops)
        leaves = end if last else max(end - slowest, start if self.held else 0)
        at = self.reached[hop] = max(self.reached[hop], leaves + latency + link.delay(leaves))
        if last:
            self.put(message, tag, at)
        else:
            self._forward(hop + 1, at, slowest, message, tag)


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

    def flow(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> FifoFlow:
        """Open a flow over these hops, whose messages are recorded in these rows; priorities are not read."""
        varies = self._schedules and any(hop.link.spec.name in self._schedules for hop in hops)
        return (VaryingFifoFlow if varies else FifoFlow)(self._env, hops, put, rows)


class FreeLink(Link):
    """A link that is always free."""

    __slots__ = ()

    @property
    def free(self) -> int:
        """Time 0: the link is never busy."""
        return 0

    @free.setter
    def free(self, time: int) -> None:
        pass


@sharing("uncontended")
class Uncontended(Fifo):
    """Links serve all messages concurrently, each at the full rate."""

    kind = FreeLink
