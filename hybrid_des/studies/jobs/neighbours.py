"""Jobs on one fabric, simulated alone and together.

Jobs are grouped by the links that they use: one that shares no link with another, nor with background traffic, runs as
if alone, and its replicas are folded as ever. All ranks of the others are simulated on one set of links; where the
order of rows does not matter, those that stand for all under images that the jobs have in common.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.analysis.critical_path.traced import images_are_known
from hybrid_des.analysis.metrics import summary
from hybrid_des.cluster.connections import around, links_of
from hybrid_des.cluster.fabric import Fabric, placed
from hybrid_des.cost_model.model_version import MODEL_VERSION
from hybrid_des.engine.causes import Causes
from hybrid_des.folding.joint_symmetry import FoldedLinks
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.planning.links_used import connections_of_layers, links_used
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.jobs import Jobs, PlacedJob
from hybrid_des.scenario.sections.cluster import WITHOUT_PRIORITIES
from hybrid_des.scenario.sections.perturbations import Background
from hybrid_des.shortcuts.joint_folds import JobsTogether, folded_jobs
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation import background
from hybrid_des.simulation import jobs as simulated
from hybrid_des.simulation.memory_remedies import fits
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.run import CONCURRENT, JobRequest, run_jobs
from hybrid_des.studies.jobs.fabric_rows import OTHERS, FabricRows, OwnerRows, Wait, owned
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class JobRun:
    """A job alone and together with the others.

    Attributes:
        job: the job.
        alone: its run by itself.
        together: its run beside the others, whose times count from its start; `alone`, if it shares no link.
    """

    job: PlacedJob
    alone: Run
    together: Run

    @property
    def apart(self) -> bool:
        """Whether it shares no link with others."""
        return self.together is self.alone

    @cached_property
    def facts(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The summaries of the job alone and together."""
        alone = summary(self.alone)
        return alone, alone if self.apart else summary(self.together)

    @property
    def slowdown(self) -> float:
        """Its step together over its step alone; 1 if that takes no time."""
        alone, together = (one["step_time_s"] for one in self.facts)
        return float(together / alone) if alone else 1.0


@dataclass(frozen=True)
class Remedy:
    """A change and what it brings.

    Attributes:
        values: seconds or priorities by job.
        slowdown: the mean over the jobs with it, weighted by GPUs.
        of_jobs: that of each job.
    """

    values: Mapping[str, float]
    slowdown: float
    of_jobs: Mapping[str, float]


class TrialCount(NamedTuple):
    """How many changes of a kind were simulated, of how many that there are."""

    changes: int
    of: int


NONE_TRIED = TrialCount(0, 0)


@dataclass(frozen=True)
class Remedies:
    """The best starts and priorities; None if none is better than what is there.

    Attributes:
        slowdown: the mean slowdown as it is, over the same steps.
        tried_starts, tried_orders: how many of them were simulated.
        skipped: why none were, if so.
        sharing: the model of sharing that the priorities need, if it is another one.
    """

    slowdown: float
    starts: Remedy | None = None
    priorities: Remedy | None = None
    tried_starts: TrialCount = NONE_TRIED
    tried_orders: TrialCount = NONE_TRIED
    skipped: str = ""
    sharing: str = ""

    def to_mapping(self) -> dict[str, Any]:
        """The keys that they add to the summary."""
        if self.skipped:
            return {"best_starts": None, "best_priorities": None, "not_tried": self.skipped}
        tried = {"starts": self.tried_starts._asdict(), "priorities": self.tried_orders._asdict()}
        mapping: dict[str, Any] = {"slowdown_before_changes": self.slowdown, "changes_tried": tried}
        sharing = {"sharing": self.sharing} if self.sharing else {}
        for key, name, remedy, more in (
            ("best_starts", "start_s", self.starts, {}), ("best_priorities", "priority", self.priorities, sharing),
        ):  # fmt: skip
            mapping[key] = None
            if remedy is not None:
                figures = {"slowdown": remedy.slowdown, "slowdowns": dict(remedy.of_jobs)}
                mapping[key] = {name: dict(remedy.values), **figures, **more}
        return mapping


@dataclass(frozen=True)
class Neighbours:
    """Jobs on one fabric, and what they do to each other.

    Attributes:
        jobs: what was simulated.
        fabric: all of the wiring.
        runs: one per job.
        groups: the names of the jobs that share links, directly or through others; background traffic is one of them.
        notes: what is not exact, one line each.
        traffic: the rows of background traffic.
        wall_s, events: real seconds and events of all runs.
        events_together: events of the runs of jobs that share links, counted for all ranks.
        events_of: by job, those of the run of its group.
        events_spared: about how many more those would be if no rank stood for others.
        remedies: shifts of starts and orders of priorities that were tried; None if none were.
        folds: by name, how jobs were folded whose runs have the rows of the simulated ranks only.
    """

    jobs: Jobs
    fabric: Fabric
    runs: Sequence[JobRun]
    groups: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    traffic: Sequence[OwnerRows] = ()
    wall_s: float = 0.0
    events: int = 0
    events_together: int = 0
    events_spared: int = 0
    remedies: Remedies | None = field(default=None, compare=False)
    folds: Mapping[str, FoldedLinks] = field(default_factory=dict, compare=False)
    events_of: Mapping[str, int] = field(default_factory=dict, compare=False)

    @cached_property
    def rows(self) -> FabricRows:
        """The messages of all jobs that share links, and of those alone that were simulated whole."""
        of_jobs = [
            owned(
                one.job.name,
                one.together.timeline.channels,
                one.together.timeline.all_messages(),
                one.job.start,
                self.folds.get(one.job.name),
            )
            for one in self.runs
            if one.together.fold is None or one.job.name in self.folds
        ]
        concurrent = self.jobs.jobs[0].scenario.cluster.sharing in CONCURRENT
        return FabricRows([*of_jobs, *self.traffic], self.fabric, concurrent)

    @property
    def end(self) -> int:
        """When the last job has ended, in picoseconds."""
        return max(one.job.start + one.together.timeline.duration for one in self.runs)

    @cached_property
    def waits(self) -> pd.DataFrame:
        """Who waits for whom: `job`, `behind`, `link`, seconds per step over all messages, messages per step."""
        import pandas as pd

        names = ["job", "behind", "link", "waited_s", "messages"]
        return pd.DataFrame([_wait_row(one, self._steps(one.job)) for one in self.rows.waits], columns=names)

    @cached_property
    def links(self) -> pd.DataFrame:
        """One row per link and job: `link`, `job`, `bytes`, and the share of the time that they occupy the link."""
        import pandas as pd

        sizes, times = self.rows.bytes_of(), self.rows.bytes_of("alone")
        return pd.DataFrame(
            {"link": link, "job": name, "bytes": size, "busy_ratio": times[link].get(name, 0) / max(self.end, 1)}
            for link, each in sizes.items()
            for name, size in each.items()
        )

    def _steps(self, name: str) -> int:
        return next(one.together.scenario.steps for one in self.runs if one.job.name == name)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Everything by its public keys; seconds, bytes."""
        sizes, times, end = self.rows.bytes_of(), self.rows.bytes_of("alone"), max(self.end, 1)
        facts = {
            "version": self.jobs.jobs[0].scenario.version,
            "model_version": MODEL_VERSION,
            "name": self.jobs.name,
            "sharing": self.jobs.jobs[0].scenario.cluster.sharing,
            "gpus": self.jobs.cluster.gpus,
            "simulated_s": self.end / PICOSECONDS_PER_SECOND,
            "slowdown": self.slowdown,
            "gpu_utilisation": self.utilisation,
            "jobs": {one.job.name: self._facts(one) for one in self.runs},
            "links": {
                link: {"bytes": each, "busy_ratio": {name: time / end for name, time in times[link].items()}}
                for link, each in sizes.items()
            },
            "shared_links": [self.rows.links[number] for number in self.rows.shared],
            "notes": list(self.notes),
            "wall_s": self.wall_s,
            "events": self.events,
        }
        return facts if self.remedies is None else {**facts, **self.remedies.to_mapping()}

    @property
    def misfit(self) -> str:
        """Which jobs cannot run, since they do not fit into memory; empty if all do."""
        names = [one.job.name for one in self.runs if not fits(one.together)]
        return f"{' and '.join(names)} {'does' if len(names) == 1 else 'do'} not fit into memory" if names else ""

    def _facts(self, job_run: JobRun) -> dict[str, Any]:
        alone, together = job_run.facts
        return {
            "gpus": len(job_run.job.gpus),
            "nodes": sorted({self.fabric.node_of[gpu] for gpu in job_run.job.gpus}),
            "start_s": job_run.job.start / PICOSECONDS_PER_SECOND,
            "priority": job_run.job.priority,
            "steps": job_run.together.scenario.steps,
            "step_time_s": together["step_time_s"],
            "alone_step_time_s": alone["step_time_s"],
            "slowdown": job_run.slowdown,
            "gpu_utilisation": together["efficiency"],
            "alone_gpu_utilisation": alone["efficiency"],
            "ranks_simulated": together["ranks_simulated"],
            "out_of_memory": together["out_of_memory"],
            **({"bill": together["bill"]} if "bill" in together else {}),
            "shares_links_with": [
                name for group in self.groups if job_run.job.name in group for name in group if name != job_run.job.name
            ],
            "waits": [
                {key: value for key, value in row.items() if key != "job"}
                for row in (_wait_row(wait, job_run.together.scenario.steps) for wait in self.rows.waits)
                if row["job"] == job_run.job.name
            ],
        }

    @property
    def slowdown(self) -> float:
        """The mean slowdown of the jobs, weighted by their GPUs."""
        return weighted(self.runs, {one.job.name: one.slowdown for one in self.runs})

    @property
    def utilisation(self) -> float:
        """The share of the time for which the jobs' GPUs compute, over all of them."""
        return weighted(self.runs, {one.job.name: float(one.facts[1]["efficiency"]) for one in self.runs})

    def __repr__(self) -> str:
        slow = ", ".join(f"{one.job.name} {one.slowdown:.3g}×" for one in self.runs)
        return f"<Neighbours {self.jobs.name}: {slow}>"


def weighted(runs: Sequence[JobRun], values: Mapping[str, float]) -> float:
    """The mean of a value of each job, weighted by GPUs."""
    return sum(len(one.job.gpus) * values[one.job.name] for one in runs) / sum(len(one.job.gpus) for one in runs)


def _wait_row(wait: Wait, steps: int) -> dict[str, Any]:
    seconds = wait.waited / PICOSECONDS_PER_SECOND / steps
    messages = wait.messages / steps
    return {"job": wait.job, "behind": wait.behind, "link": wait.link, "waited_s": seconds, "messages": messages}


def neighbours_of(jobs: Jobs, *, folded: bool = False) -> tuple[Neighbours, Grouping]:
    """Simulate jobs, each alone and all together; and which of them share links.

    Args:
        jobs: the jobs.
        folded: as in `together`.

    Raises:
        HybridDesError: as `load_jobs` and `simulate`.
    """
    began = time.perf_counter()
    groups = Grouping.of(jobs)
    neighbours = together(jobs, alone_runs(jobs, groups), groups, folded=folded)
    return replace(neighbours, wall_s=time.perf_counter() - began), groups


@dataclass(frozen=True)
class Grouping:
    """Which jobs share links, whatever their starts and priorities.

    Attributes:
        fabric: all of the wiring.
        planned: the parts of each job.
        uses: the links on the routes of each job, and of each flow of background traffic.
        flows: these flows, by name.
        groups: the names of jobs and flows that share links, directly or through others.
    """

    fabric: Fabric
    planned: Mapping[str, Parts]
    uses: Mapping[str, set[str]]
    flows: Mapping[str, Background]
    groups: Sequence[Sequence[str]]

    @classmethod
    def of(cls, jobs: Jobs, fabric: Fabric | None = None) -> Grouping:
        """Plan the jobs, on their cluster or on another wiring, and follow the routes of all that they send."""
        first = jobs.jobs[0].scenario
        fabric = fabric or fabric_of(first.model_copy(update={"cluster": jobs.cluster}))
        views = {one.name: placed(fabric, one.scenario.cluster.placement) for one in jobs.jobs}
        planned = {one.name: parts_of(one.scenario, fabric=views[one.name]) for one in jobs.jobs}
        uses = {one.name: links_used(one.scenario, planned[one.name]) for one in jobs.jobs}
        flows = {f"{OTHERS} {number}": flow for number, flow in enumerate(jobs.background)}
        for name, flow in flows.items():
            uses[name] = {link for a, b, _ in flow.pairs(jobs.cluster) for link in fabric.route(a, b).links}
        groups = [group for group in _connected(uses) if any(name not in flows for name in group)]
        return cls(fabric, planned, uses, flows, groups)

    def apart(self, name: str) -> bool:
        """Whether a job shares no link with others."""
        return [name] in self.groups


def alone_runs(jobs: Jobs, groups: Grouping, names: Collection[str] | None = None) -> dict[str, Run]:
    """Each job, or some, by itself, on its GPUs of the shared cluster.

    A job that shares links is served by the same model as together with the others, so that what differs is theirs; to
    one that does not, the priorities of jobs mean nothing.
    """
    runs = {}
    for job in jobs.jobs:
        if names is not None and job.name not in names:
            continue
        cluster = job.scenario.cluster
        if groups.apart(job.name):
            cluster = cluster.urgent(job.priority)
        parts = None if job.scenario.numerics else groups.planned[job.name]
        runs[job.name] = run(job.scenario.model_copy(update={"cluster": cluster}), parts=parts)
    return runs


def together(
    jobs: Jobs,
    alone: Mapping[str, Run],
    groups: Grouping,
    traces: Mapping[str, Causes] = MappingProxyType({}),
    most_events: float = inf,
    *,
    folded: bool = False,
) -> Neighbours:
    """Simulate each group of jobs that share links, together with the background traffic on these.

    Args:
        jobs: the jobs.
        alone: their runs alone.
        groups: which of them share links.
        traces: record causes of some jobs, by name, also of those that share no links.
        most_events: of a group.
        folded: whether ranks may stand for others; rows of one time may then be in another order, and those of a
            run with causes are those of the simulated ranks only.

    Raises:
        TooManyEventsError: a group takes more events.
    """
    by_name, flows = {one.name: one for one in jobs.jobs}, groups.flows
    runs, traffic, folds, events_of = dict(alone), list[OwnerRows](), dict[str, FoldedLinks](), dict[str, int]()
    seldom = ((one.name, one.scenario.gradients.every) for one in jobs.jobs)
    left_out = "the synchronisation of replicas every {} steps is left out, alone and together"
    notes = [f"{name}: {left_out.format(every)}" for name, every in seldom if every > 1]
    if any(one.priority for one in jobs.jobs) and (ignored := jobs.cluster.sharing) not in WITHOUT_PRIORITIES:
        notes.append(f"priorities of jobs change nothing: cluster.sharing is {ignored}, which has none")
    events = spared = 0
    for group in groups.groups:
        members = [_as_messages(by_name[name], groups, notes) for name in group if name not in flows]
        if len(group) == 1 and not traces.keys() & set(group):
            continue
        numbered = {number: traces[one.name] for number, one in enumerate(members) if one.name in traces}
        beside = [flows[name] for name in group if name in flows]
        made = _folded(members, groups, most_events, numbered) if folded and not beside else None
        if made is None:
            made, rows = _of_all_ranks(members, jobs, groups, beside, numbered, most_events)
            traffic += rows
        folds |= zip((one.name for one in members), made.folds, strict=False)
        events_of |= {one.name: made.events for one in members}
        runs |= {one.name: each for one, each in zip(members, made.runs, strict=True)}
        events += made.events
        spared += made.events - made.runs[0].events
    job_runs = [JobRun(one, alone.get(one.name, runs[one.name]), runs[one.name]) for one in jobs.jobs]
    named = [sorted({OTHERS if name in flows else name for name in group}) for group in groups.groups]
    every = events - spared + sum(one.events for one in alone.values())
    shown = groups.fabric, job_runs, named, tuple(notes), traffic
    of_runs: dict[str, Any] = {"events_of": events_of, "events_together": events, "events_spared": spared}
    return Neighbours(jobs, *shown, events=every, folds=folds, **of_runs)


def _folded(
    members: Sequence[PlacedJob], groups: Grouping, most_events: float, traces: Mapping[int, Causes]
) -> JobsTogether | None:
    """The runs of jobs that share links, folded; None if they differ, or images of causes are not known."""
    scenarios, starts = [one.scenario for one in members], [one.start for one in members]
    with suppress(FoldRefusal):  # they turn out to differ
        made = folded_jobs(scenarios, groups.fabric, starts, most_events, traces)
        if made is None or all(images_are_known(made.runs[number]) for number in traces):
            return made
    for trace in traces.values():
        trace.clear()
    return None


def _of_all_ranks(
    members: Sequence[PlacedJob],
    jobs: Jobs,
    groups: Grouping,
    flows: Sequence[Background],
    traces: Mapping[int, Causes],
    most_events: float,
) -> tuple[JobsTogether, list[OwnerRows]]:
    """The runs of jobs that share links, and the rows of background traffic beside them."""
    links = simulated.links_of(members[0].scenario, groups.fabric)
    beside = background.Traffic(flows, jobs.cluster, links, groups.fabric)
    for member in members:
        background.refuse_starved(member.scenario, groups.uses[member.name], beside)
    asked = [JobRequest(one.scenario, one.start, trace=traces.get(number)) for number, one in enumerate(members)]
    made = run_jobs(asked, links, repeat=True, traffic=beside, most_events=most_events)
    channels, rows = beside.recorder.channels, beside.recorder.messages
    assert rows is not None
    return JobsTogether(made, links.env.events), [owned(OTHERS, channels, rows.table())] if channels else []


def _connected(uses: Mapping[str, set[str]]) -> list[list[str]]:
    """The owners that share links, directly or through others, in the order given."""
    groups: list[tuple[list[str], set[str]]] = []
    for name, links in uses.items():
        touching = [group for group in groups if group[1] & links]
        groups = [group for group in groups if group not in touching]
        names = [one for members, _ in touching for one in members]
        groups.append(([*names, name], links.union(*(used for _, used in touching))))
    order = {name: place for place, name in enumerate(uses)}
    return sorted((sorted(names, key=order.__getitem__) for names, _ in groups), key=lambda names: order[names[0]])


def _as_messages(job: PlacedJob, groups: Grouping, notes: list[str]) -> PlacedJob:
    """The job with collectives of layers as messages, if others use their links; a note on what remains replayed."""
    parts, uses = groups.planned[job.name], groups.uses
    others = set[str]().union(*(links for name, links in uses.items() if name != job.name))
    scenario, messages = job.scenario, parts.traffic.messages
    flows_of = {axis: flows for axis, flows in connections_of_layers(scenario, parts).items() if axis not in messages}
    touched = [axis for axis, flows in flows_of.items() if links_of(parts.fabric, flows) & others]
    gathered = [ranks for groups in parts.meeting or () for ranks in groups]
    if any(links_of(parts.fabric, around(ranks)) & others for ranks in gathered):
        notes.append(f"{job.name}: its collectives of single layers take as long as alone, and slow nobody")
    recorded = [one.processes.ranks for one in parts.given if one.replayed]
    if any(links_of(parts.fabric, around(ranks)) & others for ranks in recorded):
        notes.append(f"{job.name}: collectives with recorded times take as long as alone, and slow nobody")
    if scenario.gradients.algorithm == "auto" and uses[job.name] & others:
        notes.append(f"{job.name}: gradients.algorithm is the fastest of the job alone ({parts.reductions.algorithm})")
    if not touched:
        return job
    if scenario.fsdp or scenario.tensor_traffic == "replay":
        notes.append(f"{job.name}: collectives of {', '.join(touched)} ranks take as long as alone, and slow nobody")
        return job
    return replace(job, scenario=scenario.model_copy(update={"tensor_traffic": "messages"}))
