"""What would help jobs that slow each other down: other starts, an order of priorities; found by simulation.

Starts are shifted by eighths of the longest step alone, job by job; each keeps the shift with the least mean
slowdown, weighted by GPUs. Orders of priorities are tried all (up to three jobs that share links), or each job first.
Both are compared with the jobs as they are over the same number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.jobs import Jobs
from hybrid_des.simulation.run import Run
from hybrid_des.studies.jobs.fabric_rows import OTHERS
from hybrid_des.studies.jobs.neighbours import Grouping, Neighbours, Remedies, Remedy, alone_runs, together
from hybrid_des.studies.jobs.variants import WORTH, untried
from hybrid_des.units import PICOSECONDS_PER_SECOND

PARTS = 8  # of a step, by which starts are shifted


STEPS = 4  # at least: a shift acts on later steps


ORDERED = 3  # jobs, up to which all orders are tried


def remedies_of(neighbours: Neighbours, grouping: Grouping) -> Remedies:
    """Try shifts of starts and orders of priorities of the jobs that share links."""
    groups = [[name for name in group if name != OTHERS] for group in neighbours.groups]
    groups = [group for group in groups if len(group) > 1]
    tries = sum(PARTS * (len(group) - 1) + len([*_all_orders(group)]) for group in groups)
    events = sum(one.together.events * STEPS // one.together.scenario.steps for one in neighbours.runs if not one.apart)
    if why := untried(neighbours, tries, events):
        return Remedies(neighbours.slowdown, skipped=why)
    trial = _Trial(neighbours.jobs, grouping)
    base = trial.of(trial.jobs)
    starts = _best_starts(trial, groups, base)
    orders = [trial.order(order) for group in groups for order in _all_orders(group)]
    best = min(orders, key=lambda trial: trial.slowdown, default=base)
    return Remedies(
        base.slowdown,
        starts if starts.slowdown < base.slowdown - WORTH else None,
        best if best.slowdown < base.slowdown - WORTH else None,
        trial.tried,
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

    def __init__(self, jobs: Jobs, groups: Grouping) -> None:
        self.jobs = jobs.with_values(lambda scenario: {"steps": max(scenario.steps, STEPS)})
        self._groups = groups
        self.alone: Mapping[str, Run] = alone_runs(self.jobs, groups)
        self.tried = 0

    def of(self, jobs: Jobs) -> Remedy:
        """The slowdowns of some jobs, with their starts as values."""
        neighbours = together(jobs, self.alone, self._groups)
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
                for shift in (round(longest * part / PARTS) for part in range(1, PARTS))
            }
            shift = min(tried, key=lambda start: (tried[start].slowdown, start), default=0)
            if shift and tried[shift].slowdown < best.slowdown - WORTH:
                best, starts[name] = tried[shift], starts[name] + shift
    return best
