"""Variants of several jobs: changes that are asked for or proposed, other starts and priorities, seeds, a second file.

jobs.bert=none                        without this job
jobs.gpt.gradients.codec=bf16         another value; jobs.gpt.batch=2x a value times two
cluster.infiniband.bandwidth=2x       of the cluster that they share
link.leaf0/up.bandwidth=2x            of one link; links.bandwidth, links.latency: of all
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any

from hybrid_des.analysis.counterfactual.what_if import OF_NO_KEY, Variant, changed, link_kind, override_of, parts_in
from hybrid_des.analysis.tasks import Task
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.errors import HybridDesError, ScenarioError, UsageError, unknown
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.jobs import JobKeys, Jobs
from hybrid_des.studies.jobs.fabric_rows import OTHERS
from hybrid_des.studies.jobs.neighbours import Grouping, Neighbours, alone_runs, together
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_change, format_seconds

Build = Callable[[Sequence[str]], Jobs]  # overrides → jobs


MOST = 4  # jobs that are left out, or put first, one by one


MOST_TIMES = 4  # the events of the jobs as they are, in which one is put first


MOST_EVENTS = 4_000_000  # of all changes that nobody asked for


WORTH = 1e-4  # of the slowdown, less of which needs no proposal and is no gain


@dataclass(frozen=True)
class SimulatedVariant:
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
                parts.append(f"{name} {format_seconds(after)} ({format_change(after / before - 1 if before else 0)})")
        return f"{self.change}: {', '.join(parts)}"


def steps_of(neighbours: Neighbours) -> dict[str, float]:
    """The step of each job beside the others, in seconds."""
    runs = {one.job.name: one.together for one in neighbours.runs}
    return {name: run.duration / run.scenario.steps / PICOSECONDS_PER_SECOND for name, run in runs.items()}


def asked(jobs: Jobs, changes: Sequence[str], build: Build | None) -> list[Task]:
    """Tasks that simulate changes that were asked for, a `SimulatedVariant` each.

    Raises:
        UsageError: a key does not exist, or a value cannot be scaled or is not valid for its key.
    """
    return [partial(_tried, text, *_changed(jobs, text, build)) for text in changes]


def why_none(neighbours: Neighbours, groups: Grouping) -> str:
    """Why no changes are proposed; empty if some are."""
    slow = [one for one in neighbours.runs if not groups.apart(one.job.name)]
    tries = 2 * min(len(slow), MOST) + 1 if slow else 0
    return untried(neighbours, tries, _events(neighbours, groups))


def _events(neighbours: Neighbours, groups: Grouping) -> int:
    """Events of the jobs that share links; those of a group have one clock, whose events each of them has."""
    of_each = neighbours.events_of
    return sum(max(of_each.get(name, 0) for name in group) for group in groups.groups if len(group) > 1)


def untried(neighbours: Neighbours, tries: int, events: int) -> str:
    """Why so many changes of so many events are not tried; empty if they are worth it."""
    if not tries or neighbours.slowdown - 1 < WORTH:
        return "the jobs do not slow each other down"
    if neighbours.misfit or tries * events <= MOST_EVENTS:
        return neighbours.misfit
    return f"{tries} changes of about {events:,} events each are more than {MOST_EVENTS:,} events"


def proposed(neighbours: Neighbours, groups: Grouping) -> list[Task]:
    """Tasks that leave out each job that shares links, put each first, and double the kinds of links that they share.

    Each gives a `SimulatedVariant`, or None where a job that is first is too large or leaves others hardly any
    bandwidth.
    """
    names = [one.job.name for one in neighbours.runs if not groups.apart(one.job.name)][:MOST]
    fewer = {
        name: _without(neighbours.jobs, name) for name in [*names, *([OTHERS] if neighbours.jobs.background else [])]
    }
    without = [partial(_tried, f"without {name}", left) for name, left in fewer.items() if left]
    events = _events(neighbours, groups)
    first = [partial(_first, neighbours.jobs, name, names, events) for name in (names if len(names) > 1 else ())]
    shared = {link_kind(name) for name in neighbours.summary["shared_links"]}
    at = Variant(neighbours.jobs.jobs[0].scenario, None, neighbours.fabric)
    faster = at.with_kinds_of_links(shared, Fraction(2)).fabric
    return [*without, *first, partial(_tried, f"{' and '.join(sorted(shared))} links 2x", neighbours.jobs, faster)]


def _tried(change: str, jobs: Jobs, fabric: Fabric | None = None) -> SimulatedVariant:
    return SimulatedVariant(change, steps_of(_simulated(jobs, fabric)))


def _first(jobs: Jobs, name: str, names: Sequence[str], events: int) -> SimulatedVariant | None:
    """One job before the others; None if that is too large, or others hardly get on."""
    try:
        first = jobs.with_priorities({other: int(other == name) for other in names})
        return SimulatedVariant(f"{name} first", steps_of(_simulated(first, most_events=MOST_TIMES * events)))
    except HybridDesError:
        return None


def _without(jobs: Jobs, name: str) -> Jobs | None:
    """The same jobs but for one, or without background traffic; None if nothing is left."""
    if name == OTHERS:
        return replace(jobs, background=())
    left = tuple(one for one in jobs.jobs if one.name != name)
    return replace(jobs, jobs=left) if left else None


def _simulated(jobs: Jobs, fabric: Fabric | None = None, most_events: float = inf) -> Neighbours:
    """The jobs together; alone only those that share no links."""
    jobs = jobs.with_values(lambda scenario: {"record": "compute"})
    groups = Grouping.of(jobs, fabric)
    alone = alone_runs(jobs, groups, [one.name for one in jobs.jobs if groups.apart(one.name)])
    return together(jobs, alone, groups, most_events=most_events, folded=True)


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
