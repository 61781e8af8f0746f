"""The computation of one GPU beside its collectives, each of which takes a share of its speed while it is under way.

    compute      │▒▒▒▒▒▒▒▒│▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│▒▒▒▒▒▒▒▒▒▒│     ▒ as fast as alone, ▓ at 1 − 25 % of that
    collective            │ bucket 3: 25 %    │

The end of a replayed collective is known when it begins; that of one by messages only when it comes: what it has taken
from an op is computed afterwards. So is what begins at the same time as an op, whichever of them comes first. Of
several at once, the largest share counts. Shares: `workload.slowdown`.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, Protocol

from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.timetable import Amount

NANOSECOND = 1000  # picoseconds; less is not slowed any more


class Pace(Protocol):
    """How much work a GPU does in a period, apart from collectives."""

    def end(self, start: int, work: Amount) -> int:
        """When this much work that begins at `start` is done."""

    def done(self, start: int, end: int) -> Amount:
        """The work done from `start` until `end`."""


class SteadySpeed:
    """The pace of a rank for which it was lowered."""

    def end(self, start: int, work: Amount) -> int:
        """When this much work that begins at `start` is done."""
        return start + int(work)

    def done(self, start: int, end: int) -> Amount:
        """The work done from `start` until `end`."""
        return end - start


STEADY = SteadySpeed()


class _Span(NamedTuple):
    since: int
    until: int
    lost: Fraction


class Period:
    """A collective that takes a share of the speed of computation, until `end`, once that is known."""

    __slots__ = ("begin", "end", "lost")

    def __init__(self, lost: Fraction, begin: int, end: int | None) -> None:
        self.lost, self.begin, self.end = lost, begin, end


class Computation:
    """The computation of one GPU.

    Attributes:
        slowed: picoseconds that it took longer so far beside collectives.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._periods: list[Period] = []
        self.slowed = 0

    def during(self, lost: Fraction, begin: int, end: int | None = None) -> Period:
        """A collective takes this share of its speed; an end that is not yet known is told to `over`."""
        period = Period(lost, begin, end)
        self._periods.append(period)
        return period

    def over(self, period: Period) -> None:
        """The collective of this period ends now."""
        period.end = self._env.now

    def lasting(self, duration: int, pace: Pace) -> Routine:
        """Compute what takes so long without collectives."""
        env, began = self._env, self._env.now
        left: Amount = pace.done(began, began + duration)
        ends = self._end(began, left, pace) if self._periods else began + duration
        while ends > (begin := env.now):
            yield env.timeout(ends - begin)
            if not self._periods:
                break
            left -= self._done(begin, env.now, pace)
            if left < NANOSECOND:
                if (rest := round(left)) > 0:
                    yield env.timeout(rest)
                break
            ends = self._end(env.now, left, pace)
        self.slowed += env.now - began - duration

    def _end(self, begin: int, left: Amount, pace: Pace) -> int:
        """When work is done that begins now, beside the collectives of which begin and end are known."""
        at = begin
        for since, until, lost in self._spans(begin):
            if left <= (alone := pace.done(at, since)):
                break
            left -= alone
            kept = pace.done(since, until) * (1 - lost)
            if left <= kept:
                return pace.end(since, -(-left // (1 - lost)))
            left, at = left - kept, until
        return pace.end(at, left)

    def _done(self, begin: int, end: int, pace: Pace) -> Amount:
        """The work done in a period that ends now."""
        taken = sum(pace.done(since, until) * lost for since, until, lost in self._spans(begin, end))
        return pace.done(begin, end) - taken

    def _spans(self, begin: int, until: int | None = None) -> list[_Span]:
        """When collectives are under way from `begin` on: until now, or in future; those that ended are forgotten."""
        now = self._env.now
        self._periods = [one for one in self._periods if one.end is None or one.end > begin]
        spans = []
        for one in self._periods:
            if until is None and (one.end is None or one.begin == now):
                continue
            end = now if one.end is None else one.end
            end = end if until is None else min(end, until)
            if (since := max(one.begin, begin)) < end:
                spans.append(_Span(since, end, one.lost))
        return spans if len(spans) < 2 else _apart(spans)


def _apart(spans: list[_Span]) -> list[_Span]:
    """Spans that do not overlap; of several at once, the largest share counts."""
    found = []
    for since, until in pairwise(sorted({moment for one in spans for moment in one[:2]})):
        if lost := max((one.lost for one in spans if one.since <= since < one.until), default=Fraction(0)):
            found.append(_Span(since, until, lost))
    return found
