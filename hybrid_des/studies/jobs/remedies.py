"""What would help jobs that slow each other down: other starts, an order of priorities; found by simulation.

Starts are shifted by eighths of the longest step alone, job by job; each keeps the shift with the least mean
slowdown, weighted by GPUs. Orders of priorities are tried all (up to three jobs that share links), or each job first.
Both are compared with the jobs as they are over the same number of steps. Changes are tried in a fixed order, halves of
a step before quarters before eighths, as many as an allowance lets begin: how many determines what is found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from math import inf

from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.jobs import Jobs
from hybrid_des.simulation.run import Run
from hybrid_des.studies.jobs.fabric_rows import OTHERS
from hybrid_des.studies.jobs.neighbours import Grouping, Neighbours, Remedies, Remedy, Tried, alone_runs, together
from hybrid_des.studies.jobs.variants import WORTH
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds

PARTS = 8  # of a step, by which starts are shifted


COARSE_FIRST = sorted(range(1, PARTS), key=lambda part: -(part & -part))


STEPS = 4  # at least: a shift acts on later steps


ORDERED = 3  # jobs, up to which all orders are tried


BUDGET_S = 30.0  # real seconds, unless told otherwise


@dataclass(frozen=True)
class Allowance:
    """How many changes may be tried: none begins that would end late if it took as long as the longest one before.

    Attributes:
        seconds: of real time, for all of them.
        tries: the most changes.
        clock: real time in seconds.
    """

    seconds: float = BUDGET_S
    tries: float = inf
    clock: Callable[[], float] = time.perf_counter


def remedies_of(neighbours: Neighbours, grouping: Grouping, allowance: Allowance | None = None) -> Remedies:
    """Try shifts of starts and orders of priorities of the jobs that share links."""
    allowance = allowance or Allowance()
    groups = [[name for name in group if name != OTHERS] for group in neighbours.groups]
    groups = [group for group in groups if len(group) > 1]
    if not groups or neighbours.slowdown - 1 < WORTH:
        return Remedies(neighbours.slowdown, skipped="the jobs do not slow each other down")
    fewest = min(one.together.scenario.steps for one in neighbours.runs)
    needed = neighbours.wall_s * max(1, STEPS / fewest)  # about as long as the jobs as they are took, over more steps
    if 2 * needed > allowance.seconds:
        left = format_seconds(max(0.0, allowance.seconds))
        why = f"one takes about {format_seconds(needed)}, {left} are left for all (--budget TIME gives more)"
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
    )


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
        self.jobs = jobs.with_values(lambda scenario: {"steps": max(scenario.steps, STEPS)})
        self._groups = groups
        self.alone: Mapping[str, Run] = alone_runs(self.jobs, groups)
        self.tried = 0

    def may_begin(self) -> bool:
        """Whether one more change is allowed."""
        spent = self._allowance.clock() - self._began
        return self.tried < self._allowance.tries and spent + self._longest <= self._allowance.seconds

    def of(self, jobs: Jobs) -> Remedy:
        """The slowdowns of some jobs, with their starts as values."""
        began = self._allowance.clock()
        neighbours = together(jobs, self.alone, self._groups)
        self._longest = max(self._longest, self._allowance.clock() - began)
        starts = {one.name: one.start / PICOSECONDS_PER_SECOND for one in jobs.jobs}
        return Remedy(starts, neighbours.slowdown, {one.job.name: one.slowdown for one in neighbours.runs})

    def start(self, starts: Mapping[str, int]) -> Remedy:
        """The same with other starts."""
        self.tried += 1
        return self.of(self.jobs.with_starts(starts))

    def order(self, priorities: Mapping[str, int]) -> Remedy:
        """The same with other priorities, which are the values."""
        self.tried += 1
        try:
            return replace(self.of(self.jobs.with_priorities(priorities)), values=dict(priorities))
        except HybridDesError:  # a size that only this order exceeds
            return Remedy(dict(priorities), float("inf"), {})

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
