"""A link as a SimPy resource: one direction of a wire or port, with a bandwidth, that messages occupy in turn.

SimPy's own `Resource` needs three events to serve a message. A link that serves in order knows when a message will
be through as soon as its head arrives, so it keeps one number instead: the time at which it falls free
(`tests/test_links.py` holds that equal to the textbook form).
"""

from __future__ import annotations

from typing import NamedTuple

from hybrid_des.network.fabric import Bandwidth, LinkSpec, service_time


class ServiceTimes(dict[int, int]):
    """Picoseconds that a number of bytes occupies a link of one bandwidth; each size is worked out once."""

    def __init__(self, bandwidth: Bandwidth) -> None:
        super().__init__()
        self._bandwidth = bandwidth

    def __missing__(self, size: int) -> int:
        time = self[size] = service_time(size, self._bandwidth)
        return time


class Link:
    """One link while a simulation runs.

    Attributes:
        spec: its name and bandwidth.
        times: bytes → picoseconds of service; links of one bandwidth share it.
        free: when the last message asked for so far leaves it, in picoseconds.
    """

    __slots__ = ("free", "spec", "times")

    def __init__(self, spec: LinkSpec, times: ServiceTimes) -> None:
        self.spec = spec
        self.times = times
        self.free = 0


class Hop(NamedTuple):
    """One link on a flow's way: the latency behind it, in picoseconds, and its channel in the trace."""

    link: Link
    latency: int
    channel: int
