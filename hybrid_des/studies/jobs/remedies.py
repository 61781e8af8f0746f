"""What would help jobs that slow each other down: other starts, an order of priorities; found by simulation.

Starts are shifted by eighths of the longest step alone, job by job; each keeps the shift with the least mean
slowdown, weighted by GPUs. Orders of priorities are tried all (up to three jobs that share links), or each job first.
Both are compared with the jobs as they are over the same number of steps. Changes are tried in a fixed order, halves of
a step before quarters before eighths, as many as an allowance lets begin: how many determines what is found. Where
processes are to be had, as many as are expected to begin are simulated beside each other, ahead of their turn; one that
may not begin after all is not counted, so that nothing depends on it.

    a   │ first ── second ── third ── last │
    b   ·   ·  │ first ── second ── third ─┼─ fourth
               └─ counted: whole steps in ─┘

Only steps count in which all jobs run, and of each job not its first: else a later start would help by the time for
which the others run alone, however long they run together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import permutations
from math import inf

import numpy as np
import numpy.typing as npt

from hybrid_des.analysis.tasks import AtOnce
from hybrid_des.engine import clock
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.jobs import Jobs, sharing_with_priorities
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.watch import TooManyEventsError
from hybrid_des.studies.jobs.fabric_rows import OTHERS
from hybrid_des.studies.jobs.neighbours import (
    Grouping,
    JobRun,
    Neighbours,
    Remedies,
    Remedy,
    TrialCount,
    alone_runs,
    together,
    weighted,
)
from hybrid_des.studies.jobs.variants import MOST_TIMES, WORTH
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds

PARTS = 8  # of a step, by which starts are shifted


COARSE_FIRST = sorted(range(1, PARTS), key=lambda part: -(part & -part))


STEPS = 4  # at least: a shift acts on later steps


ORDERED = 3  # jobs, up to which all orders are tried


EVENTS = 6_000_000  # of all changes, unless told otherwise: the same on every machine


@dataclass(frozen=True)
class Allowance:
    """How many changes may be tried: none begins that would exceed it if it took as much as the largest one before.

    Attributes:
        events: of all of them.
        seconds: of real time, for all of them.
        tries: the most changes.
        clock: real time in seconds.
    """

    events: float = EVENTS
    seconds: float = inf
    tries: float = inf
    clock: Callable[[], float] = time.perf_counter

    @classmethod
    def of(cls, seconds: float | None = None, tries: int | None = None) -> Allowance:
        """A number of changes, or so many seconds for them, or the default number of events."""
        if tries is not None:
            return cls(inf, tries=tries)
        return cls() if seconds is None else cls(inf, seconds)

    def too_little(self, neighbours: Neighbours) -> str:
        """Why it does not suffice for a change and what it is compared with, or an empty string.

        Args:
            neighbours: the jobs as they are; a change takes as much per step.
        """
        events = _expected(neighbours)
        seconds = neighbours.wall_s * events / max(1, neighbours.events + neighbours.events_spared)
        if 2 * events > self.events:
            return f"one takes about {events:.2g} events, of {self.events:,.0f} for all (--budget TIME gives more)"
        if 2 * seconds > self.seconds:
            left = format_seconds(max(0.0, self.seconds))
            return f"one takes about {format_seconds(seconds)}, {left} are left for all (--budget TIME gives more)"
        return ""


def _expected(neighbours: Neighbours) -> float:
    """The events of a change, if it takes as many per step as the jobs as they are."""
    own = min(one.job.scenario.steps for one in neighbours.runs)
    return neighbours.events_together * max(1, STEPS / own)


def remedies_of(
    neighbours: Neighbours, grouping: Grouping, allowance: Allowance | None = None, at_once: AtOnce | None = None
) -> Remedies:
    """Try shifts of starts and orders of priorities of the jobs that share links.

    Args:
        neighbours: the jobs as they are.
        grouping: which of them share links.
        allowance: how many changes may be tried.
        at_once: runs changes ahead of their turn, unless seconds are allowed; None: each is simulated in its turn.
    """
    allowance = allowance or Allowance()
    groups = [[name for name in group if name != OTHERS] for group in neighbours.groups]
    groups = [group for group in groups if len(group) > 1]
    if not groups or neighbours.slowdown - 1 < WORTH:
        return Remedies(neighbours.slowdown, skipped="the jobs do not slow each other down")
    if why := neighbours.misfit or allowance.too_little(neighbours):
        return Remedies(neighbours.slowdown, skipped=why)
    trial = _Trial(neighbours.jobs, grouping, allowance, at_once, _expected(neighbours))
    first = groups[0]
    trial.simulate_ahead([_Change(), *trial.shifts({}, first, first[1])])
    base = trial.of(_Change())
    starts, shifts = _best_starts(trial, groups, base), trial.tried
    all_orders = [_Change(priorities=order) for group in groups for order in _all_orders(group)]
    trial.simulate_ahead(all_orders)
    orders = [trial.changed(order) for order in all_orders if trial.may_begin()]
    best = min(orders, key=lambda trial: trial.slowdown, default=base)
    needed = sharing_with_priorities(neighbours.jobs.cluster.sharing)
    return Remedies(
        base.slowdown,
        starts if starts.slowdown < base.slowdown - WORTH else None,
        best if best.slowdown < base.slowdown - WORTH else None,
        TrialCount(shifts, sum(len(COARSE_FIRST) * (len(group) - 1) for group in groups)),
        TrialCount(len(orders), len(all_orders)),
        sharing=needed if needed != neighbours.jobs.cluster.sharing else "",
    )


def _all_orders(group: Sequence[str]) -> Iterator[dict[str, int]]:
    """Priorities by job: all orders of a few jobs, or each of many first."""
    if len(group) <= ORDERED:
        for order in permutations(range(len(group))):
            yield dict(zip(group, order, strict=True))
    else:
        for first in group:
            yield {name: int(name == first) for name in group}


@dataclass(frozen=True)
class _Change:
    """Other starts, in picoseconds, or priorities of some jobs; neither: the jobs as they are."""

    starts: Mapping[str, int] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)

    def of(self, jobs: Jobs) -> Jobs:
        """The changed jobs."""
        if self.starts:
            return jobs.with_starts(self.starts)
        return jobs.with_priorities(self.priorities) if self.priorities else jobs

    @property
    def key(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """What tells it from others."""
        return tuple(self.starts.items()), tuple(self.priorities.items())


class _Trial:
    """Changes of some jobs, simulated over the same number of steps."""

    def __init__(
        self, jobs: Jobs, groups: Grouping, allowance: Allowance, at_once: AtOnce | None, expected: float
    ) -> None:
        self._allowance, self._began, self._longest = allowance, allowance.clock(), 0.0
        self._at_once, self._expected = at_once if allowance.seconds == inf else None, expected
        self._ahead: dict[object, tuple[Remedy, int] | None] = {}
        self._events = self._most = 0
        self._first = inf  # events of the jobs as they are
        self.jobs = jobs.with_values(lambda scenario: {"steps": max(scenario.steps, STEPS), "record": "compute"})
        self._groups = groups
        self.alone: Mapping[str, Run] = alone_runs(self.jobs, groups)
        self.tried = 0

    def may_begin(self) -> bool:
        """Whether one more change is allowed."""
        allowed, spent = self._allowance, self._allowance.clock() - self._began
        in_time = spent + self._longest <= allowed.seconds and self._events + self._most <= allowed.events
        return in_time and self.tried < allowed.tries

    def simulate_ahead(self, changes: Sequence[_Change]) -> None:
        """Simulate as many changes as are expected to begin, beside each other."""
        if self._at_once is None:
            return
        most = min(self._allowance.tries - self.tried + (self._first == inf), len(changes))  # the jobs as they are, too
        in_events = (self._allowance.events - self._events) / max(self._most or self._expected, 1)
        begun = changes[: int(max(min(most, in_events), 0))]
        some = [change for change in begun if change.key not in self._ahead]
        tasks = [partial(self._if_possible, change) for change in some]
        self._ahead |= zip((change.key for change in some), self._at_once(tasks), strict=True)

    def _if_possible(self, change: _Change) -> tuple[Remedy, int] | None:
        """What a change brings, and its events; None if that is seen in its turn only."""
        try:
            return self._simulated(change, MOST_TIMES * min(self._first, self._expected))
        except HybridDesError:
            return None

    def _simulated(self, change: _Change, most_events: float) -> tuple[Remedy, int]:
        jobs = change.of(self.jobs)
        neighbours = together(jobs, self.alone, self._groups, most_events=most_events, folded=True)
        starts = {one.name: one.start / PICOSECONDS_PER_SECOND for one in jobs.jobs}
        slowdowns = settled_slowdowns(neighbours)
        return Remedy(starts, weighted(neighbours.runs, slowdowns), slowdowns), neighbours.events_together

    def of(self, change: _Change) -> Remedy:
        """The slowdowns of changed jobs, with their starts as values.

        Raises:
            TooManyEventsError: they take many times the events of the jobs as they are: one hardly gets on.
        """
        began, most = self._allowance.clock(), MOST_TIMES * self._first
        known = self._ahead.pop(change.key, None)
        if known is None or known[1] - known[1] % clock.BEAT > most:  # it would have been ended at a beat
            known = self._simulated(change, most)
        remedy, events = known
        self._longest = max(self._longest, self._allowance.clock() - began)
        self._count(events)
        return remedy

    def shifts(self, starts: Mapping[str, int], group: Sequence[str], name: str) -> list[_Change]:
        """Later starts of one job, in the order in which they are tried, beside given ones of others."""
        longest = max(map(self._step, group))
        at = {one.name: one.start for one in self.jobs.jobs} | dict(starts)
        return [_Change({**at, name: at[name] + round(longest * part / PARTS)}) for part in COARSE_FIRST]

    def changed(self, change: _Change) -> Remedy:
        """What a change brings; no end of it if it is not possible."""
        self.tried += 1
        values = dict(change.priorities)
        try:
            remedy = self.of(change)
        except TooManyEventsError:
            self._count(round(MOST_TIMES * self._first))
        except HybridDesError:  # a size that only this change exceeds
            pass
        else:
            return replace(remedy, values=values or remedy.values)
        return Remedy(values, inf, {})

    def _count(self, events: int) -> None:
        self._events += events
        self._most = max(self._most, events)
        self._first = events if self._first == inf else self._first

    def _step(self, name: str) -> Fraction:
        """The step of a job alone, in picoseconds."""
        return Fraction(self.alone[name].duration, self.alone[name].scenario.steps)


def _best_starts(trial: _Trial, groups: Sequence[Sequence[str]], base: Remedy) -> Remedy:
    """Shift job after job."""
    best, starts = base, dict[str, int]()
    for group in groups:
        for name in group[1:]:
            shifts = trial.shifts(starts, group, name)
            trial.simulate_ahead(shifts)
            tried = {change.starts[name]: trial.changed(change) for change in shifts if trial.may_begin()}
            start = min(tried, key=lambda start: (tried[start].slowdown, start), default=None)
            if start is not None and tried[start].slowdown < best.slowdown - WORTH:
                best, starts[name] = tried[start], start
    return best


def settled_slowdowns(neighbours: Neighbours) -> dict[str, float]:
    """The slowdown of each job while all run: of its steps after the first, if any lie between all starts and ends."""
    begin = max(one.job.start for one in neighbours.runs)
    end = min(one.job.start + int(_ends(one.together)[-1]) for one in neighbours.runs)
    return {one.job.name: 1.0 if one.apart else _settled(one, begin, end) for one in neighbours.runs}


def _settled(job_run: JobRun, begin: int, end: int) -> float:
    ends = _ends(job_run.together)
    first = max(1, int(np.searchsorted(ends + job_run.job.start, begin)) + 1)
    last = int(np.searchsorted(ends + job_run.job.start, end, side="right")) - 1
    if last < first:
        return job_run.slowdown
    alone = _ends(job_run.alone)
    usual = Fraction(int(alone[-1] - alone[0]), len(alone) - 1) if len(alone) > 1 else Fraction(int(alone[0]))
    return float(Fraction(int(ends[last] - ends[first - 1]), last - first + 1) / usual) if usual else 1.0


def _ends(run: Run) -> npt.NDArray[np.int64]:
    """When each step has ended on all ranks."""
    rows = run.timeline.steps
    ends = np.zeros(run.scenario.steps, np.int64)
    np.maximum.at(ends, rows["step"], rows["end"])
    return ends
