"""The compute speed of a GPU: relative to the times of the workload, and during communication."""

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from hybrid_des.engine.timetable import Amount


@dataclass(frozen=True)
class Pace:
    """A constant relative speed: 2 halves every duration."""

    speed: Fraction = Fraction(1)

    def duration(self, picoseconds: int | Fraction, waiting: int | Fraction = 0) -> int:
        """Duration of work that takes `picoseconds` at speed 1, and of waiting at any speed, rounded once."""
        whole = picoseconds if self.speed == 1 else picoseconds / self.speed
        return round(whole + waiting)


class Slowing(NamedTuple):
    """The share of its speed that computation loses during communication; less than 1."""

    share: Fraction = Fraction(0)

    def lost(self, beside: int) -> int:
        """Picoseconds of work lost in `beside` picoseconds of concurrent communication."""
        return beside * self.share.numerator // self.share.denominator

    def duration(self, work: Amount, beside: int) -> Amount:
        """Duration of work of which the first `beside` picoseconds overlap communication."""
        left, whole = self.share.denominator - self.share.numerator, self.share.denominator
        if work * whole < beside * left:
            return -(-work * whole // left)
        return work + self.lost(beside)
