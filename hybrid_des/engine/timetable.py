"""A factor that is piecewise constant in simulated time, known in advance, and the work done under it.

    factor   1 ────┐         ┌──── 1
                   └── 0.5 ──┘                 work done from a to b: ∫ factor dt
    time     0     from      until

Work is integrated in fractions, and the end of a piece of work is rounded once, to the nearest picosecond.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import NamedTuple

Amount = int | Fraction  # picoseconds of work at factor 1


class Interval(NamedTuple):
    """A factor from one time until another, in picoseconds; `until` None means forever."""

    start: int
    until: int | None
    factor: Fraction


@dataclass(frozen=True)
class Noise:
    """A detour in every period, in which nothing is done: a daemon or an interrupt of the operating system.

    Attributes:
        period, detour: picoseconds; the detour is shorter than the period.
        phase: when one of the detours begins.
    """

    period: int
    detour: int
    phase: int = 0

    def ran(self, start: Amount, end: Amount) -> Amount:
        """Picoseconds between two times outside detours."""
        return self._ran(end) - self._ran(start)

    def after(self, start: Amount, need: Amount) -> Amount:
        """The first time by which `need` picoseconds have passed outside detours since `start`."""
        if not need:
            return start
        whole, rest = divmod(self._ran(start) + need, self.period - self.detour)
        begun = self.phase + whole * self.period
        return begun + self.detour + rest if rest else begun

    def _ran(self, time: Amount) -> Amount:
        """Picoseconds outside detours since the phase; negative before it."""
        whole, rest = divmod(time - self.phase, self.period)
        return whole * (self.period - self.detour) + max(rest - self.detour, 0)


@dataclass(frozen=True)
class PiecewiseRate:
    """A factor over time.

    Attributes:
        starts: when each factor begins, ascending from 0; the last one holds forever.
        factors: at least 0, the last one positive.
        noise: detours in which the factor is 0.
    """

    starts: tuple[int, ...] = (0,)
    factors: tuple[Fraction, ...] = (Fraction(1),)
    noise: Noise | None = None

    @classmethod
    def of(cls, spells: Iterable[Interval], noise: Noise | None = None) -> PiecewiseRate:
        """The product of all spells; 1 where there is none."""
        spells = list(spells)
        starts = sorted({0, *(s.start for s in spells), *(s.until for s in spells if s.until is not None)})
        factors = [
            prod((s.factor for s in spells if s.start <= at and (s.until is None or at < s.until)), start=Fraction(1))
            for at in starts
        ]
        return cls(*_merged(starts, factors), noise)

    @classmethod
    def combined(cls, tables: Sequence[PiecewiseRate], how: Callable[[Sequence[Fraction]], Fraction]) -> PiecewiseRate:
        """At every time, one factor from those of several tables; the noise is that of the first."""
        starts = sorted({start for table in tables for start in table.starts})
        factors = [how([table.factor(at) for table in tables]) for at in starts]
        return cls(*_merged(starts, factors), tables[0].noise)

    @property
    def constant(self) -> Fraction | None:
        """The factor, if it is the same at all times."""
        return self.factors[0] if len(self.factors) == 1 and self.noise is None else None

    def factor(self, at: int) -> Fraction:
        """The factor from this time on, ignoring detours."""
        return self.factors[bisect_right(self.starts, at) - 1]

    def next_change(self, at: int) -> int | None:
        """When the factor changes next, after `at`; None if it stays."""
        index = bisect_right(self.starts, at)
        return self.starts[index] if index < len(self.starts) else None

    def resumes(self, at: int) -> int:
        """The first time from `at` on at which the factor is not 0, ignoring detours."""
        index = bisect_right(self.starts, at) - 1
        while not self.factors[index]:
            index += 1
            at = self.starts[index]
        return at

    def end(self, start: int, work: Amount) -> int:
        """When this much work that begins at `start` is done, to the nearest picosecond."""
        if not work:
            return start
        first = bisect_right(self.starts, start) - 1
        at: Amount = start
        left = Fraction(work)
        for index in range(first, len(self.starts) - 1):
            factor, until = self.factors[index], self.starts[index + 1]
            if factor:
                done = self._after(at, left / factor)
                if done <= until:
                    return round(done)
                left -= factor * self._ran(at, until)
            at = until
        return round(self._after(at, left / self.factors[-1]))

    def work(self, start: int, end: int) -> Fraction:
        """The work done from `start` until `end`."""
        between = [at for at in self.starts if start < at < end]
        parts = pairwise([start, *between, end])
        return sum((self.factor(begin) * self._ran(begin, until) for begin, until in parts), start=Fraction(0))

    def _after(self, at: Amount, need: Amount) -> Amount:
        return at + need if self.noise is None else self.noise.after(at, need)

    def _ran(self, start: Amount, end: Amount) -> Amount:
        return end - start if self.noise is None else self.noise.ran(start, end)


def _merged(starts: Sequence[int], factors: Sequence[Fraction]) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
    """The same with consecutive equal factors merged."""
    kept = [place for place, factor in enumerate(factors) if not place or factor != factors[place - 1]]
    return tuple(starts[place] for place in kept), tuple(factors[place] for place in kept)
