"""The compute speed of a GPU, relative to the times of the workload."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Pace:
    """A constant relative speed: 2 halves every duration."""

    speed: Fraction = Fraction(1)

    def duration(self, picoseconds: int | Fraction) -> int:
        """Duration of work that takes `picoseconds` at speed 1, rounded once."""
        return round(picoseconds / self.speed)
