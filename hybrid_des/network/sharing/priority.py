"""Priority: of the messages that wait for a link, it takes the most urgent one; it finishes what it has begun.

    chosen   at the end of the picosecond in which the link is free and a message is there:
             the highest priority first, then the order of arrival
    served   from then on, as under `fifo`; a message over equal links is cut through

The choice is made at the end of a picosecond, so that it does not depend on which of several messages that arrive
together was sent first. A head leaves a link no earlier than its service begins. Where all priorities are equal, the
links are served by `fifo` itself (`Cluster.service`): this model costs nothing there, and is equal to the picosecond.

Cost: one event at each link, one per waiting receiver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any

from hybrid_des.engine.clock import LAST, Booking, Environment, succeed_at
from hybrid_des.engine.recorder import Rows
from hybrid_des.network.fabric import LinkSpec
from hybrid_des.network.link import Hop, Link, LinkSchedule, Transmission
from hybrid_des.network.mailbox import Message
from hybrid_des.network.rate import Rate
from hybrid_des.network.sharing import Flow, Put, Schedules, sharing

Served = Callable[[int, int], None]  # called with the start and the end of the service


class Choice(Booking):
    """The end of a picosecond at which a link chooses what to serve next."""

    __slots__ = ("link",)

    def __init__(self, link: PriorityLink) -> None:
        self.link = link
        self.callbacks = CHOOSE


class PriorityLink(Link):
    """A link that serves the most urgent message that waits for it.

    Attributes:
        schedule: its bandwidth and latency over time; None if they are constant.
        waiting: a heap of messages: urgency, number in order of arrival, bytes, and what to call.
        arrived: number of messages so far.
        booked: whether the next choice is booked.
    """

    __slots__ = ("arrived", "booked", "schedule", "waiting")

    def __init__(self, env: Environment, spec: LinkSpec, rate: Rate, schedule: LinkSchedule | None) -> None:
        super().__init__(env, spec, rate)
        self.schedule = schedule
        self.waiting: list[tuple[int, int, int, Served]] = []
        self.arrived, self.booked = 0, False

    def take(self, priority: int, size: int, served: Served) -> None:
        """Let a message wait that has arrived now."""
        self.arrived += 1
        heappush(self.waiting, (-priority, self.arrived, size, served))
        if not self.booked:
            self._book()

    def choose(self) -> None:
        """Serve the most urgent message, and others as long as they take no time."""
        self.booked = False
        while self.waiting and self.free <= self.env.now:
            _, _, size, served = heappop(self.waiting)
            served(*self.serve(size))
        if self.waiting:
            self._book()

    def serve(self, size: int) -> tuple[int, int]:
        """Serve a message that begins now; return the start and the end of its service."""
        if self.schedule is None:
            return super().serve(size)
        bandwidth = self.schedule.bandwidth
        start = bandwidth.resumes(max(self.free, self.env.now))
        self.free = bandwidth.end(start, self.rate.exactly(size))
        return start, self.free

    def delay(self, at: int) -> int:
        """Additional latency in picoseconds for a message that leaves it at this time."""
        return 0 if self.schedule is None else self.schedule.delay(at)

    def _book(self) -> None:
        self.booked = True
        self.env.at(max(self.free, self.env.now), Choice(self), LAST)

    def _do_put(self, event: Transmission) -> bool:
        """Let the bytes of a process wait, with priority 0."""
        self.put_queue.remove(event)  # it is under way

        def served(start: int, end: int) -> None:
            succeed_at(self.env, event, end + self.latency + self.delay(end))

        self.take(0, event.size, served)
        return False


def _choose(choice: Any) -> None:
    choice.link.choose()


CHOOSE: tuple[Callable[[Any], None], ...] = (_choose,)


class Head(Booking):
    """The head of a message on its way to a further link."""

    __slots__ = ("reaches",)

    def __init__(self, reaches: Callable[[], None]) -> None:
        self.reaches = reaches
        self.callbacks = ARRIVE


def _arrive(head: Any) -> None:
    head.reaches()


ARRIVE: tuple[Callable[[Any], None], ...] = (_arrive,)


class PriorityFlow(Flow):
    """One flow under `priority`.

    Attributes:
        priority: higher is more urgent.
        reached: after each link: when the last message reached the next one or the receiver.
    """

    __slots__ = ("env", "priority", "reached")

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> None:
        super().__init__(hops, put, rows)
        self.env, self.priority = env, priority
        self.reached = [0] * len(hops)

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        self.messages += 1
        self.bytes += message.size
        self.scales += message.scales
        slowest = 0 if self.pace is None else self.pace[message.size]
        self._arrive(0, message, self.label if tag is None else tag, slowest)

    def _arrive(self, hop: int, message: Message, tag: int, slowest: int) -> None:
        """Let a head wait at a link; its tail is `slowest` picoseconds behind it."""
        link: Any = self.hops[hop].link
        served = partial(self._served, hop, message, tag, self.env.now, slowest)
        link.take(self.priority, message.size, served)

    def _served(self, hop: int, message: Message, tag: int, asked: int, slowest: int, *service: int) -> None:
        """Send a head on, or hand the message over, once its service at a link is known."""
        (link, latency, channel), (start, end) = self.hops[hop], service
        if self.rows is not None:
            self.rows.add((channel, tag, asked, start, end, message.size))
        slowest, end = max(slowest, end - start), max(end, asked + slowest)
        last = hop + 1 == len(self.hops)
        leaves = end if last else max(end - slowest, start)
        at = self.reached[hop] = max(self.reached[hop], leaves + latency + link.delay(leaves))
        if last:
            self.put(message, tag, at)
        else:
            self.env.at(at, Head(partial(self._arrive, hop + 1, message, tag, slowest)))


@sharing("priority")
class Priority:
    """Links serve one message at a time, the most urgent first."""

    def __init__(self, env: Environment, schedules: Schedules = MappingProxyType({})) -> None:
        self._env, self._schedules = env, schedules

    def link(self, spec: LinkSpec, rate: Rate) -> PriorityLink:
        """Make a link."""
        return PriorityLink(self._env, spec, rate, self._schedules.get(spec.name))

    def flow(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> PriorityFlow:
        """Open a flow over these hops, whose messages are recorded in these rows."""
        return PriorityFlow(self._env, hops, put, rows, priority)
