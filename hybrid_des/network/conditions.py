"""Links whose bandwidth or latency varies in simulated time, as timetables that are known ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from hybrid_des.engine.timetable import Timetable


@dataclass(frozen=True)
class Conditions:
    """The state of a link over time.

    Attributes:
        bandwidth: the factor of its bandwidth.
        latency: picoseconds of latency in addition, from each time on; times ascend from 0.
    """

    bandwidth: Timetable = field(default_factory=Timetable)
    latency: tuple[tuple[int, int], ...] = ((0, 0),)

    def delay(self, at: Fraction | int) -> int:
        """Picoseconds of latency in addition for what leaves the link at this time."""
        return next(more for start, more in reversed(self.latency) if start <= at)
