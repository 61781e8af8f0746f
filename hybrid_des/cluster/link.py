"""A link as a SimPy resource: one direction of a wire or port, which messages occupy in turn.

>>> from fractions import Fraction
>>> from hybrid_des.engine.clock import Environment
>>> from hybrid_des.cluster.fabric import LinkSpec
>>> env = Environment()  # its times are picoseconds
>>> cable = Link(env, LinkSpec("cable", bandwidth=Fraction(25 * 10**9), latency=1_000_000))
>>> def sender(name):
...     yield cable.transmit(10**6)
...     print(f"{name}: arrived after {env.now / 10**6} µs")
>>> processes = [env.process(sender(name)) for name in ("first", "second")]
>>> env.run()
first: arrived after 41.0 µs
second: arrived after 81.0 µs

The links of a cluster are `cluster.transport.Links`: bytes that processes transmit there and messages of flows are
served together, in order of request (or share bandwidth, as the scenario's `sharing` says).

SimPy's own `Resource` needs three events to serve a message. A link that serves in order knows when a message leaves
it as soon as its head arrives, so it keeps one number instead: the time at which it becomes free
(`tests/cluster/test_links.py` compares it with the textbook form).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from simpy.resources.base import BaseResource, Get, Put

from hybrid_des.cluster.fabric import Bandwidth, LinkSpec
from hybrid_des.cluster.rate import Rate, rate_of
from hybrid_des.engine.bookings import succeed_at
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.timetable import PiecewiseRate

NOTHING: list[Get[Any]] = []


@dataclass(frozen=True)
class LinkSchedule:
    """The bandwidth and latency of a link over simulated time, known in advance.

    Attributes:
        bandwidth: the factor that multiplies its bandwidth.
        latency: pairs of a time and the additional latency from then on, in picoseconds; times ascend from 0.
    """

    bandwidth: PiecewiseRate = field(default_factory=PiecewiseRate)
    latency: tuple[tuple[int, int], ...] = ((0, 0),)

    def delay(self, at: Fraction | int) -> int:
        """Additional latency in picoseconds for a message that leaves the link at this time."""
        return next(more for start, more in reversed(self.latency) if start <= at)


class Transmission(Put[Any]):
    """Bytes that a process sends over one link; the event happens when the last of them has arrived."""

    def __init__(self, link: Link, size: int) -> None:
        self.size = size
        super().__init__(link)

    def cancel(self) -> None:
        """Do nothing: a link carries what it has been given, whether or not a process still waits for it."""


class Link(BaseResource[Transmission, Get[Any]]):
    """A link in a running simulation; it serves messages one at a time, in order of request.

    Args:
        env: the environment.
        spec: its name, bandwidth and latency.
        rate: the conversion of bytes to service times, if links of one bandwidth are to share it.

    Attributes:
        env, spec: as given.
        rate: bytes → picoseconds of service.
        free: when the last message requested so far leaves it, in picoseconds.
    """

    __slots__ = ("env", "free", "rate", "spec")

    def __init__(self, env: Environment, spec: LinkSpec, rate: Rate | None = None) -> None:
        # What SimPy's __init__ does, without its search for nested event classes: a link has none, and nothing to get.
        self._env, self._capacity, self.put_queue, self.get_queue = env, 1, [], NOTHING
        self.env = env
        self.spec = spec
        self.rate = rate_of(spec.bandwidth) if rate is None else rate
        self.free = 0

    @property
    def bandwidth(self) -> Bandwidth:
        """Bytes per second; None is infinite."""
        return self.spec.bandwidth

    @property
    def latency(self) -> int:
        """Picoseconds from the end of service to arrival, for bytes that processes transmit."""
        return self.spec.latency

    def transmit(self, size: int) -> Transmission:
        """Send bytes over this link alone; the event to yield happens when they have arrived.

        They arrive after queueing, service time and latency. The timeline has no row for them.
        """
        return Transmission(self, size)

    put = transmit  # type: ignore[assignment]  # SimPy's name for it

    def serve(self, size: int) -> tuple[int, int]:
        """Serve a message that arrives now, after all others; return the start and the end of its service."""
        start = max(self.free, self.env.now)
        end = self.free = start + self.rate[size]
        return start, end

    def delay(self, at: int) -> int:
        """Additional latency in picoseconds for a message that leaves it at this time."""
        return 0

    def _do_put(self, event: Transmission) -> bool:
        """Serve a transmission after everything requested so far."""
        _, end = self.serve(event.size)
        succeed_at(self.env, event, end + self.latency + self.delay(end))
        return True


class Hop(NamedTuple):
    """One link of a flow's route: the latency after it, in picoseconds, and its channel in the record."""

    link: Link
    latency: int
    channel: int
