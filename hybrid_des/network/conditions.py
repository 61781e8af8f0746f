"""Links whose bandwidth or latency varies over simulated time, as timetables known in advance."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from hybrid_des.engine.timetable import Timetable


@dataclass(frozen=True)
class Conditions:
    """The state of a link over time.

    Attributes:
        bandwidth: the factor that multiplies its bandwidth.
        latency: pairs of a time and the additional latency from then on, in picoseconds; times ascend from 0.
    """

    bandwidth: Timetable = field(default_factory=Timetable)
    latency: tuple[tuple[int, int], ...] = ((0, 0),)

    def delay(self, at: Fraction | int) -> int:
        """Additional latency in picoseconds for a message that leaves the link at this time."""
        return next(more for start, more in reversed(self.latency) if start <= at)
