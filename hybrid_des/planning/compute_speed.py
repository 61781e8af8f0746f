"""The compute speed of a GPU, relative to the times of the workload."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class ComputeSpeed:
    """A constant relative speed: 2 halves every duration."""

    speed: Fraction = Fraction(1)

    def duration(self, picoseconds: int | Fraction, waiting: int | Fraction = 0) -> int:
        """Duration of work that takes `picoseconds` at speed 1, and of waiting at any speed, rounded once."""
        whole = picoseconds if self.speed == 1 else picoseconds / self.speed
        return round(whole + waiting)
