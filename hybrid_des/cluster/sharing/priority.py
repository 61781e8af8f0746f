"""Priority, and priority by preemption: links take the most urgent message first, or let it overtake.

Under `priority`, of the messages that wait for a link, it takes the most urgent one; it finishes what it has begun.

    chosen   at the end of the picosecond in which the link is free and a message is there:
             the highest priority first, then the order of arrival
    served   from then on, as under `fifo`; a message over equal links is cut through

The choice is made at the end of a picosecond, so that it does not depend on which of several messages that arrive
together was sent first. A head leaves a link no earlier than its service begins. Where all priorities are equal, the
links are served by `fifo` itself (`Cluster.service`): this model costs nothing there, and is equal to the picosecond.

Cost: one event at each link, one per waiting receiver.
"""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any

from hybrid_des.cluster.fabric import LinkSpec
from hybrid_des.cluster.link import Hop, LinkSchedule, Transmission
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rate import Rate
from hybrid_des.cluster.sharing.fifo import VaryingFifoFlow, VaryingLink
from hybrid_des.cluster.sharing.registration import Put, Schedules, sharing
from hybrid_des.engine.bookings import Booking, succeed_at
from hybrid_des.engine.clock import LAST, Environment
from hybrid_des.engine.recorder import Rows

Served = Callable[[int, int], None]  # called with the start and the end of the service


class PriorityLink(VaryingLink):
    """A link that serves the most urgent message that waits for it.

    Attributes:
        waiting: a heap of messages: urgency, number in order of arrival, bytes, and what to call.
        arrived: number of messages so far.
        booked: whether the next choice is booked.
    """

    __slots__ = ("arrived", "booked", "waiting")

    def __init__(self, env: Environment, spec: LinkSpec, rate: Rate, schedule: LinkSchedule | None) -> None:
        super().__init__(env, spec, rate, schedule)
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

    def _book(self) -> None:
        self.booked = True
        self.env.at(max(self.free, self.env.now), (_choose, self), LAST)

    def _do_put(self, event: Transmission) -> bool:
        """Let the bytes of a process wait, with priority 0."""
        self.put_queue.remove(event)  # it is under way

        def served(start: int, end: int) -> None:
            succeed_at(self.env, event, end + self.latency + self.delay(end))

        self.take(0, event.size, served)
        return False


def _choose(choice: Booking) -> None:
    """Let a link choose what to serve next: at the end of a picosecond."""
    _, link = choice
    link.choose()


class PriorityFlow(VaryingFifoFlow):
    """One flow under `priority`; higher is more urgent."""

    __slots__ = ("_priority",)

    held = True

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> None:
        super().__init__(env, hops, put, rows)
        self._priority = priority

    def _serve(self, hop: int, message: Message, tag: int, slowest: int) -> None:
        """Let a head wait at a link."""
        link: Any = self.hops[hop].link
        link.take(self._priority, message.size, partial(self._served, hop, message, tag, slowest, self.env.now))


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
