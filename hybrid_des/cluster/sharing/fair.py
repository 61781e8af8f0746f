"""Max-min fair: flows share the links of their whole routes; messages of one flow go one after another.

    rates    all rates grow equally until a link is full; the flows on it keep theirs, the others keep growing
    arrival  drained + the path's latency

Rates change when a message starts or drains, so its end is known only once it is reached. The changes of one instant
are gathered and solved once, at the instant's end, per connected component of links and flows; their order does not
matter: messages leave before others begin, and one that begins has its rate from its beginning. So a run in which links
stand for others (`folding`) takes the same times as one that simulates all. The flow of a component that drains next is
booked for the end of *its* instant; a booking made obsolete by a later change is detected by the flow's `drains`. A
flow alone on its links drains at full rate, with nothing to solve.

Where a bandwidth varies, rates are solved again when it changes. A change is booked only while a flow is on its link
and no flow of the component drains before it; a flow on a link at factor 0 has rate 0 and does not drain until the next
change.

Cost: one event per instant at which messages reach links in use, one per booked instant, and one per waiting
receiver: 1.1 to 1.7 per message on training steps, below 3 on random traffic. A change takes about a
microsecond of real time for each flow of its component: hundreds of them on one spine are slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from struct import error
from types import MappingProxyType
from typing import Any, Self

from hybrid_des.cluster.fabric import Bandwidth, LinkSpec
from hybrid_des.cluster.link import Hop, Link, LinkSchedule, Transmission
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rate import Rate
from hybrid_des.cluster.sharing.max_min import Port, connected, max_min
from hybrid_des.cluster.sharing.registration import Flow, Put, Schedules, sharing
from hybrid_des.engine.bookings import Booking, succeed_at
from hybrid_des.engine.clock import LAST, Environment
from hybrid_des.engine.recorder import Rows, out_of_range
from hybrid_des.engine.timetable import PiecewiseRate
from hybrid_des.units import PICOSECONDS_PER_SECOND

NEVER = 2**63  # after any time that a row holds


# Events are at whole picoseconds, but flows that speed up when another has drained would propagate and amplify that
# rounding. So drains are kept in ticks of 2^-TICK ps and in work units of 2^-WORK bytes. A message is as many units as
# its route moves in the time that the message takes there alone; links with measured times have no other measure.
TICK = 32


WORK = 128


GUARD = 1 << 10  # ticks; a value this close to half a picosecond counts as a half, so that no stray tick decides a tie


class VaryingPort(Port):
    """A link of finite bandwidth that varies.

    Attributes:
        usual: its capacity at factor 1.
        bandwidth: the factor over time.
    """

    __slots__ = ("bandwidth", "usual")

    def __init__(self, usual: int, bandwidth: PiecewiseRate) -> None:
        super().__init__(usual)
        self.usual = usual
        self.bandwidth = bandwidth


class SharedLink(Link):
    """A link that flows share; each transmission of a process is a separate flow.

    Attributes:
        model: the model that shares it.
        schedule: its bandwidth and latency over time; None if they are constant.
        port: its capacity and the flows on it; None for infinite bandwidth.
    """

    __slots__ = ("model", "port", "schedule")

    def __init__(self, model: Fair, spec: LinkSpec, rate: Rate, schedule: LinkSchedule | None) -> None:
        super().__init__(model.env, spec, rate)
        self.model = model
        self.schedule = schedule
        self.port: Port | None = None
        if spec.bandwidth is not None:
            capacity = int(spec.bandwidth * 2 ** (WORK - TICK) / PICOSECONDS_PER_SECOND)
            self.port = Port(capacity) if schedule is None else VaryingPort(capacity, schedule.bandwidth)

    def _do_put(self, event: Transmission) -> bool:
        """Send a transmission; its time of arrival is known when it has drained."""
        self.put_queue.remove(event)  # it is under way

        def put(message: Message, tag: int, at: int) -> None:
            succeed_at(self.env, event, at)

        self.model.flow((Hop(self, self.latency, 0),), put, None).send(Message(event.size))
        return False


class DrainTimes(dict[int, int]):
    """How long a message takes on links that it has to itself: bytes → ticks on the link that is slowest for it."""

    def __init__(self, rates: Iterable[Rate]) -> None:
        super().__init__()
        self._rates = tuple(rates)

    def __missing__(self, size: int) -> int:
        time = self[size] = max((rate.ticks(size, 1 << TICK) for rate in self._rates), default=0)
        return time


class FairFlow(Flow):
    """One flow under `fair`.

    Attributes:
        ports: the links of finite bandwidth on its route.
        message: the one it carries now, if any; `tag`, `asked` and `start` are that message's.
        remaining, rate, since: work units left at the tick `since`, and how fast they drain from then on.
        due, drains: the tick and the picosecond at which it will have drained at this rate.
        solved: the last solution that it was part of.
        priority: read by `priority-fair`.
    """

    __slots__ = (
        "asked", "drains", "due", "full", "latency", "message", "model", "ports", "priority", "queue", "rate",
        "remaining", "since", "solved", "start", "tag", "times",
    )  # fmt: skip

    def __init__(self, model: Fair, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(hops, put, rows)
        self.model = model
        self.latency = sum(hop.latency for hop in hops)
        links: Any = [hop.link for hop in hops]
        self.ports: tuple[Port, ...] = tuple(dict.fromkeys(link.port for link in links if link.port))
        self.full = min((port.capacity for port in self.ports), default=0)
        self.times = model.times(hops)
        self.queue: deque[tuple[Message, int, int]] = deque()
        self.message: Message | None = None
        self.tag = self.asked = self.start = 0
        self.remaining = self.rate = self.since = self.due = self.solved = self.priority = 0
        self.drains = NEVER

    @property
    def carried(self) -> Sequence[tuple[Port, int]]:
        """Its ports, and how often it counts on each, where that is read."""
        return [(port, 1) for port in self.ports]

    def paced(self, rate: Rate) -> Self:
        """Let every message take at least the time of a rate, as if on one more link that it has to itself."""
        own = Port(int(2 ** (WORK - TICK) / rate.exactly(1)))
        self.ports, self.full = (*self.ports, own), min(self.full or own.capacity, own.capacity)
        links: Any = [hop.link for hop in self.hops]
        self.times = DrainTimes([*(link.rate for link in links), rate])
        return super().paced(rate)

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand over a message, after those of this flow that have not drained; the sender continues immediately."""
        if tag is None:
            tag = self.label
        self.count += message.count
        self.scales += message.scales
        now = self.model.env.now
        if self.message is not None:
            self.queue.append((message, tag, now))
            return
        for port in self.ports:
            port.flows[self] = None
        self._begin(message, tag, now, now << TICK)

    def drain(self, now: int) -> None:
        """Hand over the message, which has left the links, and begin with the next."""
        message = self.message
        assert message is not None
        if (rows := self.rows) is not None:
            for _, _, channel in self.hops:
                try:
                    rows.write(rows.pack(channel, self.tag, self.asked, self.start, now, message.size))
                except error as refusal:
                    raise out_of_range(refusal, now) from None
        self.put(message, self.tag, now + self.latency)
        self.drains = NEVER
        if self.queue:
            self.model.followed.append(self)
            return
        self.message = None
        for port in self.ports:
            del port.flows[self]
            if port.flows:
                self.model.left.append((port, self.due))

    def follow(self) -> None:
        """Begin with the next message, when all messages that drain at this instant have left the links."""
        self._begin(*self.queue.popleft(), self.due)

    def turn(self, rate: int, tick: int) -> None:
        """Drain at a new rate from a tick on; a message that began at this instant, from its beginning.

        At rate 0, it never drains.
        """
        now = self.model.env.now
        if tick > self.since and self.start != now:  # one that began now has drained nothing at its old rate
            self.remaining -= self.rate * (tick - self.since)
            self.since = tick
        self.rate = rate
        if not rate:
            self.drains = NEVER
            return
        self.due = self.since + self.remaining // rate
        self.drains = max(self.start + picoseconds(self.due - (self.start << TICK)), now)

    def _begin(self, message: Message, tag: int, asked: int, since: int) -> None:
        """Start draining a message: at full rate if the flow is alone, else at the rate to be solved."""
        self.message = message
        self.tag = tag
        self.asked = asked
        self.start = start = self.model.env.now
        self.since = since
        time = self.times[message.size]
        self.remaining = time * self.full
        if time:
            for port in self.ports:
                if len(port.flows) > 1:
                    self._wait(port)
                    return
        self.rate = self.full
        self.due = due = since + time
        at = start + picoseconds(due - (start << TICK))
        if at <= start:
            if time:  # other flows may still reach its links at this instant
                self._wait(self.ports[0])
                return
            at = start
        self.drains = at
        self.model.end_of(at).append(self)

    def _wait(self, port: Port) -> None:
        """Wait for a rate, which is solved around a port at the end of this instant."""
        self.rate = 0
        self.drains = NEVER
        self.model.disturb(port)


class VaryingFairFlow(FairFlow):
    """One flow over links, some of which vary.

    Attributes:
        deliver: called with a message and its time of arrival.
        reached: when the last message arrived.
    """

    __slots__ = ("_schedules", "deliver", "reached")

    def __init__(self, model: Fair, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(model, hops, self._hand, rows)
        self.deliver, self.reached = put, 0
        links: Any = [hop.link for hop in hops]
        self._schedules: list[LinkSchedule] = [link.schedule for link in links if link.schedule]

    def _begin(self, message: Message, tag: int, asked: int, since: int) -> None:
        """Start draining a message at the rate to be solved, even if the flow is alone."""
        if not self.ports:  # it takes no time
            super()._begin(message, tag, asked, since)
            return
        self.message, self.tag, self.asked = message, tag, asked
        self.start, self.since = self.model.env.now, since
        self.remaining = self.times[message.size] * self.full
        self._wait(self.ports[0])

    def _hand(self, message: Message, tag: int, at: int) -> None:
        """Hand a message over with the current latency; it does not overtake earlier messages."""
        now = self.model.env.now
        self.reached = max(self.reached, at + sum(one.delay(now) for one in self._schedules))
        self.deliver(message, tag, self.reached)


@sharing("fair")
class Fair:
    """Flows share bandwidth, max-min over their whole routes.

    Attributes:
        followed, left: while messages drain: flows that have another one to send, and links with the tick at which a
            flow left them.
        solve: finds the rates of the flows on some ports.
    """

    solve = staticmethod(max_min)

    def __init__(self, env: Environment, schedules: Schedules = MappingProxyType({})) -> None:
        self.env = env
        self.followed: list[FairFlow] = []
        self.left: list[tuple[Port, int]] = []
        self._schedules = schedules
        self._changes: dict[int, list[VaryingPort]] = {}
        self._times: dict[frozenset[Bandwidth], DrainTimes] = {}
        self._instants: dict[int, list[FairFlow]] = {}
        self._disturbed: list[Port] = []
        self._solutions = 0
        self._on_end: Booking = (self._end,)

    def link(self, spec: LinkSpec, rate: Rate) -> SharedLink:
        """Make a link."""
        return SharedLink(self, spec, rate, self._schedules.get(spec.name))

    def flow(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> FairFlow:
        """Open a flow over these hops, whose messages are recorded in these rows; priorities are not read."""
        varies = self._schedules and any(hop.link.spec.name in self._schedules for hop in hops)
        return (VaryingFairFlow if varies else FairFlow)(self, hops, put, rows)

    def times(self, hops: tuple[Hop, ...]) -> DrainTimes:
        """How long messages take when alone on these links."""
        rates = {hop.link.bandwidth: hop.link.rate for hop in hops}
        bandwidths = frozenset(rates)
        if bandwidths not in self._times:
            self._times[bandwidths] = DrainTimes(rates.values())
        return self._times[bandwidths]

    def end_of(self, at: int) -> list[FairFlow]:
        """The flows whose messages may have drained at the end of an instant, which is booked."""
        draining = self._instants.get(at)
        if draining is None:
            draining = self._instants[at] = []
            self.env.at(at, self._on_end, LAST)
        return draining

    def disturb(self, port: Port) -> None:
        """Mark the rates around a port to be solved again, at the end of this instant."""
        self._disturbed.append(port)
        self.end_of(self.env.now)

    def _end(self, _: Booking) -> None:
        """Hand over messages that have drained at this instant, then solve the components that have changed."""
        now = self.env.now
        if self._changes:
            self.left += [(port, now << TICK) for port in self._changes.pop(now, ())]
        # all messages that have drained leave their links before any other begins: rates would depend on who is first
        for flow in self._instants[now]:
            if flow.drains == now:  # it may have been slowed since it was booked for this instant
                flow.drain(now)
        while self.followed:
            followed, self.followed = self.followed, []
            begun = self._instants[now] = []
            for flow in followed:
                flow.follow()
            for flow in begun:  # empty messages
                flow.drain(now)
        if self.left:
            self._disturb_left()
        del self._instants[now]
        disturbed, self._disturbed = self._disturbed, []
        first = self._solutions
        for port in disturbed:
            if port.solved <= first:
                self._solutions += 1
                self._solve(port)

    def _disturb_left(self) -> None:
        """Mark the rates around links that a flow left and others did not to be solved again."""
        for port, tick in self.left:
            if port.flows:
                if port.changed < tick:
                    port.changed = tick
                self._disturbed.append(port)
        self.left.clear()

    def _solve(self, port: Port) -> None:
        """Find the rates of all flows of a port's component, and book what happens next: a drain or a change."""
        now = self.env.now
        flows, ports = connected(port, self._solutions)
        varying = [one for one in ports if isinstance(one, VaryingPort)] if self._schedules else ()
        for link in varying:
            link.capacity = int(link.usual * link.bandwidth.factor(now))
        self._turn(flows, ports)
        first = min((flow.drains for flow in flows), default=NEVER)
        if first != NEVER:
            self.end_of(first).extend(flow for flow in flows if flow.drains == first)
        for link in varying:
            change = link.bandwidth.next_change(now)
            if link.flows and change is not None and change < first:
                self.end_of(change)
                self._changes.setdefault(change, []).append(link)

    def _turn(self, flows: list[FairFlow], ports: list[Port]) -> None:
        """Find the rates of a component; earlier messages have them from the last change at this instant on."""
        now = self.env.now
        tick = max(port.changed for port in ports)
        for flow in flows:
            if flow.start == now and flow.since > tick:
                tick = flow.since
        for flow, rate in self.solve(ports).items():
            if rate != flow.rate:
                flow.turn(rate, tick)


def picoseconds(ticks: int) -> int:
    """The nearest whole number of picoseconds; halves go to the even one, as in all rounding of times."""
    odd = ticks >> TICK & 1
    return ticks + (1 << TICK - 1) + (GUARD if odd else -GUARD) >> TICK
