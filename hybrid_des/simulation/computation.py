"""The computation of one GPU beside its collectives, each of which takes a share of its speed while it is under way.

    compute      │▒▒▒▒▒▒▒▒│▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│▒▒▒▒▒▒▒▒▒▒│     ▒ as fast as alone, ▓ at 1 − 25 % of that
    collective            │ bucket 3: 25 %    │

The end of a replayed collective is known when it begins; that of one by messages only when it comes: what it has taken
from an op is computed afterwards. So is what begins at the same time as an op, whichever of them comes first. Of
several at once, the largest share counts. Shares: `cost_model.slowdown`.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

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


class Period:
    """A collective that takes a share of the speed of computation, until `end`, once that is known."""

    __slots__ = ("begin", "end", "lost")

    def __init__(self, lost: Fraction, begin: int, end: int | None) -> None:
        self.lost, self.begin, self.end = lost, begin, end


Span = tuple[int, int, Fraction]  # its begin and end, and the share that is lost


class Computation:
    """The computation of one GPU.

    Attributes:
        periods: of collectives that were under way when it last computed, or have begun since.
        slowed: picoseconds that it took longer so far beside collectives.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.periods: list[Period] = []
        self.slowed = 0

    def during(self, lost: Fraction, begin: int, end: int | None = None) -> Period:
        """A collective takes this share of its speed; an end that is not yet known is told to `over`."""
        period = Period(lost, begin, end)
        self.periods.append(period)
        return period

    def over(self, period: Period) -> None:
        """The collective of this period ends now."""
        period.end = self._env.now

    def lasting(self, duration: int, pace: Pace | None, *, alone: bool = False) -> Routine:
        """Compute what takes so long without collectives; no pace: that for which it was lowered.

        Computation that began `alone` has waited for its duration, until now: what is left is lost to collectives that
        began meanwhile.
        """
        env = self._env
        began = begin = env.now - duration if alone else env.now
        ends = began + duration
        left: Amount = duration if pace is None else pace.done(began, ends)
        if self.periods and not alone:
            ends = self._end(began, left, pace)
        while ends > begin:
            if not alone:
                yield env.timeout(ends - begin)
            alone = False
            if not self.periods:
                if pace is None and (rest := round(left - (ends - begin))) > 0:  # of collectives that ended before
                    yield env.timeout(rest)
                break
            left -= self._done(begin, ends, self._spans(begin, ends), pace)
            if left < NANOSECOND:
                if (rest := round(left)) > 0:
                    yield env.timeout(rest)
                break
            begin = ends
            ends = self._end(begin, left, pace)
        self.slowed += env.now - began - duration

    def _end(self, begin: int, left: Amount, pace: Pace | None) -> int:
        """When work is done that begins now, beside the collectives of which begin and end are known."""
        at = begin
        for span in self._spans(begin):
            since, until, lost = span
            if left <= (alone := since - at if pace is None else pace.done(at, since)):
                break
            left -= alone
            kept = self._done(since, until, [span], pace)
            if left <= kept:
                left = -(-left * lost.denominator // (lost.denominator - lost.numerator))
                at = since
                break
            left, at = left - kept, until
        return at + int(left) if pace is None else pace.end(at, left)

    @staticmethod
    def _done(begin: int, end: int, spans: Sequence[Span], pace: Pace | None) -> Amount:
        """The work done in a period, beside collectives."""
        work: Amount = end - begin if pace is None else pace.done(begin, end)
        for since, until, lost in spans:
            beside = until - since if pace is None else int(pace.done(since, until))
            work -= beside * lost  # exactly: an op may compute beside a collective in several pieces
        return work

    def _spans(self, begin: int, until: int | None = None) -> list[Span]:
        """When collectives are under way from `begin` on: until now, or in future; those that ended are forgotten."""
        now, spans, over = self._env.now, list[Span](), False
        for period in self.periods:
            end = period.end
            if end is not None and end <= begin:
                over = True
                continue
            if until is None:
                if end is None or period.begin == now:
                    continue
            elif end is None or end > until:
                end = until
            since = period.begin if period.begin > begin else begin
            if since < end:
                spans.append((since, end, period.lost))
        if over:
            self.periods = [one for one in self.periods if one.end is None or one.end > begin]
        return spans if len(spans) < 2 else _apart(spans)


def _apart(spans: list[Span]) -> list[Span]:
    """Spans that do not overlap; of several at once, the largest share counts."""
    periods = []
    for since, until in pairwise(sorted({moment for begin, end, _ in spans for moment in (begin, end)})):
        if shares := [lost for begin, end, lost in spans if begin <= since < end]:
            periods.append((since, until, max(shares)))
    return periods
