"""What would help jobs that slow each other down: other starts, an order of priorities; found by simulation.

Starts are shifted by eighths of the longest step alone, job by job; each keeps the shift with the least mean
slowdown, weighted by GPUs. Orders of priorities are tried all (up to three jobs that share links), or each job first.
Both are compared with the jobs as they are over the same number of steps. Changes are tried in a fixed order, halves of
a step before quarters before eighths, as many as an allowance lets begin: how many determines what is found.

    a   │ first ── second ── third ── last │
    b   ·   ·  │ first ── second ── third ─┼─ fourth
               └─ counted: whole steps in ─┘

Only steps count in which all jobs run, and of each job not its first: else a later start would help by the time for
which the others run alone, however long they run together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from math import inf

import numpy as np
import numpy.typing as npt

from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.jobs import Jobs, sharing_with_priorities
from hybrid_des.simulation.run import Run
from hybrid_des.simulation.watch import TooManyEventsError
from hybrid_des.studies.jobs.fabric_rows import OTHERS
from hybrid_des.studies.jobs.neighbours import (
    Grouping,
    JobRun,
    Neighbours,
    Remedies,
    Remedy,
    Tried,
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
        own = min(one.job.scenario.steps for one in neighbours.runs)
        events = neighbours.events_together * max(1, STEPS / own)
        seconds = neighbours.wall_s * events / max(1, neighbours.events)
        if 2 * events > self.events:
            return f"one takes about {events:.2g} events, of {self.events:,.0f} for all (--budget TIME gives more)"
        if 2 * seconds > self.seconds:
            left = format_seconds(max(0.0, self.seconds))
            return f"one takes about {format_seconds(seconds)}, {left} are left for all (--budget TIME gives more)"
        return ""


def remedies_of(neighbours: Neighbours, grouping: Grouping, allowance: Allowance | None = None) -> Remedies:
    """Try shifts of starts and orders of priorities of the jobs that share links."""
    allowance = allowance or Allowance()
    groups = [[name for name in group if name != OTHERS] for group in neighbours.groups]
    groups = [group for group in groups if len(group) > 1]
    if not groups or neighbours.slowdown - 1 < WORTH:
        return Remedies(neighbours.slowdown, skipped="the jobs do not slow each other down")
    if why := allowance.too_little(neighbours):
        return Remedies(neighbours.slowdown, skipped=why)
    trial = _Trial(neighbours.jobs, grouping, allowance)
    base = trial.of(trial.jobs)
    starts, shifts = _best_starts(trial, groups, base), trial.tried
    all_orders = [order for group in groups for order in _all_orders(group)]
    orders = [trial.order(order) for order in all_orders if trial.may_begin()]
    best = min(orders, key=lambda trial: trial.slowdown, default=base)
    return Remedies(
        base.slowdown,
        starts if starts.slowdown < base.slowdown - WORTH else None,
        best if best.slowdown < base.slowdown - WORTH else None,
        Tried(shifts, sum(len(COARSE_FIRST) * (len(group) - 1) for group in groups)),
        Tried(len(orders), len(all_orders)),
        sharing=_other_sharing(neighbours.jobs),
    )


def _other_sharing(jobs: Jobs) -> str:
    """The model of sharing that priorities need, if it is not the one of the jobs."""
    needed = sharing_with_priorities(jobs.cluster.sharing)
    return needed if needed != jobs.cluster.sharing else ""


def _all_orders(group: Sequence[str]) -> Iterator[dict[str, int]]:
    """Priorities by job: all orders of a few jobs, or each of many first."""
    if len(group) <= ORDERED:
        for order in permutations(range(len(group))):
            yield dict(zip(group, order, strict=True))
    else:
        for first in group:
            yield {name: int(name == first) for name in group}


class _Trial:
    """Changes of some jobs, simulated over the same number of steps."""

    def __init__(self, jobs: Jobs, groups: Grouping, allowance: Allowance) -> None:
        self._allowance, self._began, self._longest = allowance, allowance.clock(), 0.0
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

    def of(self, jobs: Jobs) -> Remedy:
        """The slowdowns of some jobs, with their starts as values.

        Raises:
            TooManyEventsError: they take many times the events of the jobs as they are: one hardly gets on.
        """
        began = self._allowance.clock()
        neighbours = together(jobs, self.alone, self._groups, most_events=MOST_TIMES * self._first)
        self._longest = max(self._longest, self._allowance.clock() - began)
        self._count(neighbours.events_together)
        starts = {one.name: one.start / PICOSECONDS_PER_SECOND for one in jobs.jobs}
        slowdowns = settled_slowdowns(neighbours)
        return Remedy(starts, weighted(neighbours.runs, slowdowns), slowdowns)

    def start(self, starts: Mapping[str, int]) -> Remedy:
        """The same with other starts."""
        return self._changed(self.jobs.with_starts(starts), {})

    def order(self, priorities: Mapping[str, int]) -> Remedy:
        """The same with other priorities, which are the values."""
        return self._changed(self.jobs.with_priorities(priorities), dict(priorities))

    def _changed(self, jobs: Jobs, values: Mapping[str, float]) -> Remedy:
        self.tried += 1
        try:
            remedy = self.of(jobs)
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

    def step(self, name: str) -> Fraction:
        """The step of a job alone, in picoseconds."""
        return Fraction(self.alone[name].duration, self.alone[name].scenario.steps)


def _best_starts(trial: _Trial, groups: Sequence[Sequence[str]], base: Remedy) -> Remedy:
    """Shift job after job."""
    best = base
    starts = {one.name: one.start for one in trial.jobs.jobs}
    for group in groups:
        longest = max(map(trial.step, group))
        for name in group[1:]:
            tried = {
                shift: trial.start({**starts, name: starts[name] + shift})
                for shift in (round(longest * part / PARTS) for part in COARSE_FIRST)
                if trial.may_begin()
            }
            shift = min(tried, key=lambda start: (tried[start].slowdown, start), default=0)
            if shift and tried[shift].slowdown < best.slowdown - WORTH:
                best, starts[name] = tried[shift], starts[name] + shift
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
