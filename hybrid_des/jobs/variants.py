"""Variants of several jobs: changes that are asked for or proposed, other starts and priorities, seeds, a second file.

jobs.bert=none                        without this job
jobs.gpt.gradients.codec=bf16         another value; jobs.gpt.batch=2x a value times two
cluster.infiniband.bandwidth=2x       of the cluster that they share
link.leaf0/up.bandwidth=2x            of one link; links.bandwidth, links.latency: of all
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.counterfactual.what_if import OF_NO_KEY, Variant, changed, link_kind, override_of, parts_in
from hybrid_des.errors import HybridDesError, ScenarioError, UsageError, unknown
from hybrid_des.jobs.fabric_rows import OTHERS
from hybrid_des.jobs.neighbours import Grouping, Neighbours, Remedies, Remedy, alone_runs, together
from hybrid_des.network.fabric import Fabric
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.jobs import JobKeys, Jobs
from hybrid_des.simulation.run import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds
from hybrid_des.workload.costs import CostBasis

if TYPE_CHECKING:
    import pandas as pd


Build = Callable[[Sequence[str]], Jobs]  # overrides → jobs

MOST = 4  # jobs that are left out, or put first, one by one
MOST_EVENTS = 4_000_000  # of all changes that nobody asked for
WORTH = 1e-4  # of the slowdown, less of which needs no proposal and is no gain


@dataclass(frozen=True)
class TriedJobs:
    """A simulated change.

    Attributes:
        change: in the syntax of `--what-if`, or in words.
        steps: the step of each job that is left, in seconds.
    """

    change: str
    steps: Mapping[str, float]

    def told(self, base: Mapping[str, float]) -> str:
        """The change, and each step beside what it was."""
        parts = []
        for name, before in base.items():
            if name in self.steps:
                after = self.steps[name]
                parts.append(f"{name} {format_seconds(after)} ({(after / before - 1 if before else 0):+.1%})")
        return f"{self.change}: {', '.join(parts)}"


def steps_of(found: Neighbours) -> dict[str, float]:
    """The step of each job beside the others, in seconds."""
    runs = {one.job.name: one.together for one in found.runs}
    return {name: run.duration / run.scenario.steps / PICOSECONDS_PER_SECOND for name, run in runs.items()}


def asked(jobs: Jobs, changes: Sequence[str], build: Build | None) -> list[TriedJobs]:
    """Simulate changes that were asked for.

    Raises:
        UsageError: a key does not exist, or a value cannot be scaled or is not valid for its key.
    """
    return [TriedJobs(text, steps_of(_simulated(*_changed(jobs, text, build)))) for text in changes]


def why_none(found: Neighbours, groups: Grouping) -> str:
    """Why no changes are proposed; empty if some are."""
    slow = [one for one in found.runs if not groups.apart(one.job.name)]
    tries = 2 * min(len(slow), MOST) + 1 if slow else 0
    return _untried(found, tries, sum(one.together.events for one in slow))


def _untried(found: Neighbours, tries: int, events: int) -> str:
    """Why so many changes of so many events are not tried; empty if they are worth it."""
    if not tries or found.slowdown - 1 < WORTH:
        return "the jobs do not slow each other down"
    if tries * events <= MOST_EVENTS:
        return ""
    return f"{tries} changes of about {events:,} events each are more than {MOST_EVENTS:,} events"


def proposed(found: Neighbours, groups: Grouping) -> Iterator[TriedJobs]:
    """Leave out each job that shares links, put each first, and double the kinds of links that they share."""
    names = [one.job.name for one in found.runs if not groups.apart(one.job.name)][:MOST]
    for name in [*names, *([OTHERS] if found.jobs.background else [])]:
        if left := _without(found.jobs, name):
            yield TriedJobs(f"without {name}", steps_of(_simulated(left)))
    for name in names if len(names) > 1 else ():
        try:
            first = found.jobs.with_priorities({other: int(other == name) for other in names})
            yield TriedJobs(f"{name} first", steps_of(_simulated(first)))
        except HybridDesError:  # a size that only this order exceeds
            continue
    shared = {link_kind(name) for name in found.summary["shared_links"]}
    links = {name: Fraction(2) for name in found.fabric.links if link_kind(name) in shared}
    faster = Variant(found.jobs.jobs[0].scenario, None, found.fabric).with_links(links).fabric
    yield TriedJobs(f"{' and '.join(sorted(shared))} links 2x", steps_of(_simulated(found.jobs, faster)))


def _without(jobs: Jobs, name: str) -> Jobs | None:
    """The same jobs but for one, or without background traffic; None if nothing is left."""
    if name == OTHERS:
        return replace(jobs, background=())
    left = tuple(one for one in jobs.jobs if one.name != name)
    return replace(jobs, jobs=left) if left else None


def _simulated(jobs: Jobs, fabric: Fabric | None = None) -> Neighbours:
    """The jobs together; alone only those that share no links."""
    jobs = jobs.with_values(lambda scenario: {"record": "compute"})
    groups = Grouping.of(jobs, fabric)
    return together(jobs, alone_runs(jobs, groups, [one.name for one in jobs.jobs if groups.apart(one.name)]), groups)


def _changed(jobs: Jobs, text: str, build: Build | None) -> tuple[Jobs, Fabric | None]:
    """Read a change: the jobs with it, and the wiring if it is not theirs."""
    label, overrides, own, left_out = f"--what-if {text}", list[str](), list[Any](), list[str]()
    for key, value in parts_in(text, label):
        if match := OF_NO_KEY.fullmatch(key):
            if match[1] in ("rank", "kind"):
                raise UsageError(f"{label}: {key}: of several jobs, expected links, or a key such as jobs.NAME.KEY")
            own.append((match, value))
        elif value in ("none", "null") and key.count(".") == 1 and key.startswith("jobs."):
            left_out.append(key.removeprefix("jobs."))
        else:
            overrides.append(_override(jobs, key, value, label))
    if overrides:
        if build is None:
            raise UsageError(f"{label}: these jobs were not read from a file; expected links.bandwidth or the like")
        try:
            jobs = build(overrides)
        except ScenarioError as error:
            raise UsageError(f"{label}: {error.problems[0].partition(': ')[2] or error}") from None
    for name in left_out:
        if name not in (names := [one.name for one in jobs.jobs]) or len(names) == 1:
            raise UsageError(f"{label}: {unknown(name, names, 'job') if name not in names else 'no job is left'}")
        jobs = _without(jobs, name) or jobs
    if not own:
        return jobs, None
    first = jobs.jobs[0].scenario.model_copy(update={"cluster": jobs.cluster})
    variant = Variant(first, None, fabric_of(first))
    for match, value in own:
        variant = changed(variant, match, value, label)
    return jobs, variant.fabric


def _override(jobs: Jobs, key: str, value: str, label: str) -> str:
    """A part as an override of the file; a factor is applied to the value of the job, or of the cluster."""
    top, _, inner = key.partition(".")
    if top != "jobs":
        return override_of(key, value, jobs.jobs[0].scenario, label) if top == "cluster" else f"{key}={value}"
    name, _, inner = inner.partition(".")
    job = next((one for one in jobs.jobs if one.name == name), None)
    if job is None or not inner:
        names = [one.name for one in jobs.jobs]
        raise UsageError(f"{label}: {unknown(name, names, 'job') if job is None else 'expected jobs.NAME.KEY'}")
    if inner in (*JobKeys.model_fields, "scenario"):
        return f"{key}={value}"
    return f"jobs.{name}.{override_of(inner, value, job.scenario, label)}"


# What would help jobs that slow each other down: other starts, an order of priorities; found by simulation.
#
# Starts are shifted by eighths of the longest step alone, job by job; each keeps the shift with the least mean
# slowdown, weighted by GPUs. Orders of priorities are tried all (up to three jobs that share links), or each job first.
# Both are compared with the jobs as they are over the same number of steps.


PARTS = 8  # of a step, by which starts are shifted
STEPS = 4  # at least: a shift acts on later steps
ORDERED = 3  # jobs, up to which all orders are tried


def remedies_of(found: Neighbours, grouping: Grouping) -> Remedies:
    """Try shifts of starts and orders of priorities of the jobs that share links."""
    groups = [[name for name in group if name != OTHERS] for group in found.groups]
    groups = [group for group in groups if len(group) > 1]
    tries = sum(PARTS * (len(group) - 1) + len([*_all_orders(group)]) for group in groups)
    events = sum(one.together.events * STEPS // one.together.scenario.steps for one in found.runs if not one.apart)
    if why := _untried(found, tries, events):
        return Remedies(found.slowdown, skipped=why)
    trial = _Trial(found.jobs, grouping)
    base = trial.of(trial.jobs)
    starts = _best_starts(trial, groups, base)
    orders = [trial.order(order) for group in groups for order in _all_orders(group)]
    best = min(orders, key=lambda one: one.slowdown, default=base)
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
        found = together(jobs, self.alone, self._groups)
        starts = {one.name: one.start / PICOSECONDS_PER_SECOND for one in jobs.jobs}
        return Remedy(starts, found.slowdown, {one.job.name: one.slowdown for one in found.runs})

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
            shift = min(tried, key=lambda one: (tried[one].slowdown, one), default=0)
            if shift and tried[shift].slowdown < best.slowdown - WORTH:
                best, starts[name] = tried[shift], starts[name] + shift
    return best


# Many seeds of the jobs' jitter, and two files side by side.


FIGURES = ("step_time_s", "alone_step_time_s", "slowdown")


def spread_jobs(jobs: Jobs, runs: int, progress: Callable[[int, int], None] | None = None) -> pd.DataFrame:
    """Simulate jobs with consecutive seeds: `seed`, added to that of each job, and `jobs.NAME.slowdown` and so on.

    Raises:
        UsageError: no job has jitter.
    """
    import pandas as pd

    if not any(one.scenario.jitter for one in jobs.jobs):
        raise UsageError(f"{jobs.name}: nothing is random, all runs are identical; expected a job with jitter")
    groups, rows = Grouping.of(jobs), list[dict[str, Any]]()
    for number in range(runs):
        these = jobs.with_values(lambda scenario: {"seed": scenario.seed + number})  # noqa: B023 (called at once)
        # plans are shared by all seeds, unless loads of experts are drawn
        pairs = zip(jobs.jobs, these.jobs, strict=True)
        same = all(CostBasis.of(one.scenario) == CostBasis.of(other.scenario) for one, other in pairs)
        used = groups if same else Grouping.of(these)
        found = together(these, alone_runs(these, used), used)
        row: dict[str, Any] = {"seed": number, "slowdown": found.slowdown}
        for one in found.runs:
            alone, beside = (facts["step_time_s"] for facts in one.facts)
            figures = zip(FIGURES, (beside, alone, one.slowdown), strict=True)
            row |= {f"jobs.{one.job.name}.{name}": value for name, value in figures}
        rows.append(row)
        if progress is not None:
            progress(number + 1, runs)
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class ComparedJobs:
    """Two files with jobs side by side."""

    a: Neighbours
    b: Neighbours

    @property
    def regression(self) -> float:
        """The largest growth of a step as a share of A's, over the jobs that both have."""
        shares = [one["change_s"] / one["step_time_s"][0] for one in self.jobs.values() if one["step_time_s"][0]]
        return max(shares, default=0.0)

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Figures of the jobs that both have: those of A and B, and the change of the step in seconds."""
        first, second = self.a.summary["jobs"], self.b.summary["jobs"]
        found = {}
        for name in (name for name in first if name in second):
            pairs = {key: [first[name][key], second[name][key]] for key in (*FIGURES, "gpu_utilisation")}
            found[name] = {**pairs, "change_s": pairs["step_time_s"][1] - pairs["step_time_s"][0]}
        return found

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values."""
        sides = {key: {"name": one.jobs.name, "slowdown": one.slowdown} for key, one in (("a", self.a), ("b", self.b))}
        only = {key: sorted(set(one.summary["jobs"]) - set(self.jobs)) for key, one in (("a", self.a), ("b", self.b))}
        return {**sides, "jobs": self.jobs, "only_in": only}

    def rows(self) -> list[list[str]]:
        """Cells of a table: job, step in A and B, change, slowdown in A and B."""
        found = []
        for name, one in self.jobs.items():
            before, after = one["step_time_s"]
            change = f"{one['change_s'] / before:+.1%}" if before else ""
            times = format_seconds(before), format_seconds(after)
            found.append([name, *times, change, *(f"{slow:.3f}×" for slow in one["slowdown"])])
        return found
