"""Max-min fair: streams share the links of their whole routes; messages of one stream go one after another.

    rates    all rates grow alike until a link is full; the streams on it keep theirs, the others grow on
    through  drained + the path's latency

Rates change when a message comes or goes, so its end is known only once it is there. What changes at one instant is
gathered and solved once, at the instant's end, for the links that hang together through streams they share. The
stream of such a set that drains next is booked for the end of *its* instant; a booking that a later change has
overtaken is told by the stream's `due`. A stream alone on its links drains at full rate, with nothing to solve.

Cost: an event an instant at which shared links see a message come, one an instant at which messages drain, one for a
waiting receiver.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import Any

import simpy
from simpy.events import NORMAL, Event

from hybrid_des.links import Hop, Link, ServiceTimes
from hybrid_des.parcel import Parcel
from hybrid_des.sharing import Put, sharing
from hybrid_des.trace import Rows
from hybrid_des.units import PICOSECONDS_PER_SECOND

LAST = NORMAL + 1  # behind everything else that happens at the same time
SHIFT = 96  # work is counted in whole 2^-SHIFT bytes, and rates in those a picosecond
GUARD = 20  # ends less than 2^-GUARD ps above a half are rounded down: whole rates cannot tip a tie
NEVER = -1


class Instant(Event):
    """The end of an instant at which messages drain or come to shared links."""

    _ok = True
    _value = None

    def __init__(self, env: simpy.Environment, at: int, callbacks: list[Any]) -> None:
        self.callbacks = callbacks  # shared: nobody else waits for it
        self.streams: list[FairStream] = []
        heappush(env._queue, (at, LAST, next(env._eid), self))


class Port:
    """A link of finite bandwidth and the streams that have a message on it, in the order in which they came.

    Attributes:
        capacity: its bandwidth.
        left, open: while rates are solved: capacity not given away yet, streams whose rate is not known yet.
        solved: the last solution that it was part of.
    """

    __slots__ = ("capacity", "left", "open", "solved", "streams")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.streams: dict[FairStream, None] = {}
        self.left = self.open = self.solved = 0


class FairStream:
    """One stream under `fair`.

    Attributes:
        ports: the links of finite bandwidth on its route.
        parcel: what it carries now, if anything; `tag`, `asked` and `start` are that message's.
        remaining, rate, since: how much of it was left at `since`, and how fast it drains from then on.
        due: when it will have drained at this rate.
        solved: the last solution that it was part of.
    """

    __slots__ = (
        "asked", "bytes", "due", "full", "hops", "label", "latency", "messages", "model", "parcel", "ports", "put",
        "queue", "rate", "record", "remaining", "scales", "since", "solved", "start", "tag", "times",
    )  # fmt: skip

    def __init__(self, model: Fair, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        self.model = model
        self.hops = hops
        self.put = put
        self.record = None if rows is None else rows.add
        self.latency = sum(hop.latency for hop in hops)
        self.ports = tuple(dict.fromkeys(model.port(hop.link) for hop in hops if hop.link.spec.bandwidth is not None))
        self.full = min((port.capacity for port in self.ports), default=0)
        self.times = slowest_times(hops)
        self.queue: deque[tuple[Parcel, int, int]] = deque()
        self.parcel: Parcel | None = None
        self.tag = self.asked = self.start = 0
        self.remaining = self.rate = self.since = self.solved = 0
        self.due = NEVER
        self.label = 0
        self.messages = 0
        self.bytes = 0
        self.scales = 0

    def send(self, parcel: Parcel, tag: int | None = None) -> None:
        """Hand over a message, behind those of this stream that have not drained; the sender goes on at once."""
        if tag is None:
            tag = self.label
        self.messages += 1
        self.bytes += parcel.size
        self.scales += parcel.scales
        now = self.model.env._now
        if self.parcel is not None:
            self.queue.append((parcel, tag, now))
            return
        for port in self.ports:
            port.streams[self] = None
        self._begin(parcel, tag, now, now)

    def drain(self, now: int) -> None:
        """The message has left the links: hand it over and begin with the next."""
        parcel = self.parcel
        assert parcel is not None
        if self.record is not None:
            for _, _, channel in self.hops:
                self.record((channel, self.tag, self.asked, self.start, now, parcel.size))
        self.put(parcel, self.tag, now + self.latency)
        if self.queue:
            self._begin(*self.queue.popleft(), now)
            return
        self.parcel = None
        self.due = NEVER
        for port in self.ports:
            del port.streams[self]
            if port.streams:
                self.model.disturb(port, now)

    def _begin(self, parcel: Parcel, tag: int, asked: int, now: int) -> None:
        """Let a message drain from now on: at full rate where the stream is alone, else as will be solved."""
        self.parcel = parcel
        self.tag = tag
        self.asked = asked
        self.start = self.since = now
        self.remaining = parcel.size << SHIFT
        for port in self.ports:
            if len(port.streams) > 1:
                self.rate = 0
                self.due = NEVER
                self.model.disturb(port, now)
                return
        self.rate = self.full
        self.due = due = now + self.times[parcel.size]
        self.model.end_of(due).streams.append(self)


@sharing("fair")
class Fair:
    """Streams share bandwidth, max-min over their whole routes."""

    def __init__(self, env: simpy.Environment, rows: Rows | None) -> None:
        self.env = env
        self._rows = rows
        self._ports: dict[Link, Port] = {}
        self._instants: dict[int, Instant] = {}
        self._disturbed: list[Port] = []
        self._solutions = 0
        self._on_end = [self._end]

    def stream(self, hops: tuple[Hop, ...], put: Put) -> FairStream:
        """Open a stream over these hops."""
        return FairStream(self, hops, put, self._rows)

    def port(self, link: Link) -> Port:
        """What this model knows about a link of finite bandwidth."""
        if link not in self._ports:
            assert link.spec.bandwidth is not None
            self._ports[link] = Port(int(link.spec.bandwidth * 2**SHIFT / PICOSECONDS_PER_SECOND))
        return self._ports[link]

    def end_of(self, at: int) -> Instant:
        """The end of an instant, to be waited for."""
        instant = self._instants.get(at)
        if instant is None:
            instant = self._instants[at] = Instant(self.env, at, self._on_end)
        return instant

    def disturb(self, port: Port, now: int) -> None:
        """Have the rates solved again, at the end of this instant, around a port."""
        self._disturbed.append(port)
        self.end_of(now)

    def _end(self, instant: Instant) -> None:
        """Let go what has drained at this instant, then solve what it and those that came have changed."""
        now = self.env._now
        for stream in instant.streams:  # grows where an empty message follows
            if stream.due == now:
                stream.drain(now)
        del self._instants[now]
        disturbed, self._disturbed = self._disturbed, []
        first = self._solutions
        for port in disturbed:
            if port.solved <= first:
                self._solutions += 1
                self._solve(port, now)

    def _solve(self, port: Port, now: int) -> None:
        """Find the rates of all streams that hang together with a port's, and book the next to drain."""
        streams, ports = connected(port, self._solutions)
        for stream, rate in max_min(ports).items():
            if rate != stream.rate:
                remaining = stream.remaining = stream.remaining - stream.rate * (now - stream.since)
                stream.rate = rate
                stream.since = now
                stream.due = now + (remaining + (rate >> 1) - (rate >> GUARD)) // rate
        if streams:
            first = min([stream.due for stream in streams])
            booked = self.end_of(first).streams
            booked.extend([stream for stream in streams if stream.due == first])


def connected(port: Port, solution: int) -> tuple[list[FairStream], list[Port]]:
    """All streams and ports that hang together with a port: streams that share a port, ports that share a stream."""
    streams: list[FairStream] = []
    ports = [port]
    port.solved = solution
    for port in ports:  # grows
        for stream in port.streams:
            if stream.solved != solution:
                stream.solved = solution
                streams.append(stream)
                for other in stream.ports:
                    if other.solved != solution:
                        other.solved = solution
                        ports.append(other)
    return streams, ports


def max_min(ports: list[Port]) -> dict[FairStream, int]:
    """The rate of every stream on these ports: the link that gives its streams least is filled first.

    Source: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2.
    """
    rates: dict[FairStream, int] = {}
    for port in ports:
        port.left = port.capacity
        port.open = len(port.streams)
    while ports := [port for port in ports if port.open]:
        tightest = min(ports, key=share)
        rate = share(tightest)
        for stream in tightest.streams:
            if stream not in rates:
                rates[stream] = rate
                for port in stream.ports:
                    port.left -= rate
                    port.open -= 1
    return rates


def share(port: Port) -> int:
    """What a port gives to each stream whose rate is not known yet."""
    return port.left // port.open


def slowest_times(hops: tuple[Hop, ...]) -> ServiceTimes:
    """How long a message takes that has its route for itself, latency aside."""
    finite = [hop.link.spec.bandwidth for hop in hops if hop.link.spec.bandwidth is not None]
    slowest = min(finite, default=None)
    return next((hop.link.times for hop in hops if hop.link.spec.bandwidth == slowest), ServiceTimes(None))
