"""Rates: how long a number of bytes occupies a link.

A link's rate is chosen once, when the link is first used. A flow looks service times up in it, so a constant rate and
a measured one cost the same. Where a bandwidth varies over simulated time, links and flows have classes of their own
(`sharing.fifo`, `sharing.fair`), so that constant ones pay nothing for it.
"""

from fractions import Fraction

from hybrid_des.cluster.fabric import Bandwidth, Fabric
from hybrid_des.cluster.time_table import TableBandwidth, TimeTable
from hybrid_des.errors import TooLongError
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bandwidth

LONGEST_S = 86_400  # a day for one message: the clock holds 106 days, for all messages of all ranks


class Rate(dict[int, int]):
    """Bytes → picoseconds of service, computed once per size; this base class serves any size in no time."""

    def __missing__(self, size: int) -> int:
        time = self[size] = self.ticks(size, 1)
        return time

    def ticks(self, size: int, per_picosecond: int) -> int:
        """The service time of `size` bytes in a finer unit, rounded once to the nearest; raises as `exactly` does."""
        return round(self.exactly(size) * per_picosecond)

    def exactly(self, size: int) -> Fraction:
        """The service time of `size` bytes in picoseconds, not rounded: for links whose bandwidth varies."""
        return Fraction(0)


class ConstantRate(Rate):
    """A fixed number of bytes per second, whatever the size."""

    def __init__(self, bandwidth: Fraction) -> None:
        super().__init__()
        self._bandwidth = bandwidth

    def exactly(self, size: int) -> Fraction:
        """The service time of `size` bytes in picoseconds, not rounded.

        Raises:
            TooLongError: it is longer than a day.
        """
        if size > LONGEST_S * self._bandwidth:
            takes = f"{float(size / self._bandwidth):.6g} s at {format_bandwidth(self._bandwidth)}"
            raise TooLongError(f"a message of {size:,} bytes takes {takes}; was a unit such as GB/s forgotten?")
        return Fraction(size * PICOSECONDS_PER_SECOND) / self._bandwidth


class MeasuredRate(Rate):
    """The times of a table of measurements, without its latency."""

    def __init__(self, table: TimeTable) -> None:
        super().__init__()
        self._table = table

    def exactly(self, size: int) -> Fraction:
        """The service time of `size` bytes; the table has whole picoseconds."""
        return Fraction(self._table.occupancy(size))


def rate_of(bandwidth: Bandwidth) -> Rate:
    """The rate of a link of this bandwidth."""
    if bandwidth is None:
        return Rate()
    if isinstance(bandwidth, TableBandwidth):
        return MeasuredRate(bandwidth.table)
    return ConstantRate(bandwidth)


def idle_time(fabric: Fabric, sender: int, receiver: int, size: int) -> int:
    """Picoseconds that a message takes from one GPU to another on idle links."""
    route = fabric.route(sender, receiver)
    return route.latency + max(rate_of(fabric.links[name].bandwidth)[size] for name in route.links)
