"""How fast a GPU computes, as a factor on the times of the workload."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Pace:
    """A constant speed: 2 halves every duration."""

    speed: Fraction = Fraction(1)

    def duration(self, picoseconds: int | Fraction) -> int:
        """Picoseconds that work takes here, rounded once; `picoseconds` is its time at speed 1."""
        return round(picoseconds / self.speed)
