"""Why each of several jobs takes as long as it does: its critical path and idle time, with what is others' doing."""

import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.idle_pieces import IdleTime
from hybrid_des.analysis.critical_path.paths import critical_path, time_by_part
from hybrid_des.analysis.idle import OTHERS as OTHER_JOBS
from hybrid_des.analysis.tasks import AtOnce, grouped, in_turn
from hybrid_des.engine.causes import Causes
from hybrid_des.planning.program_table import Column
from hybrid_des.report.content import ALARM, alarm_of
from hybrid_des.report.text import folded, labelled
from hybrid_des.scenario.jobs import Jobs, load_jobs
from hybrid_des.scenario.loading import Source
from hybrid_des.studies.jobs.neighbours import (
    Grouping,
    JobRun,
    Neighbours,
    alone_runs,
    together,
)
from hybrid_des.studies.jobs.variants import Build, SimulatedVariant, asked, proposed, steps_of, why_none
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_change, format_seconds, format_share

SHOWN = 0.0005  # of the step; smaller parts have no figures


MOST_BEHIND = 3


MOST_LINES, MOST_JOBS, MOST_HELPING = 15, 9, 3  # of the short text


CHANGES = "What helps"


NOT_OTHERS = "no message of another job is on its critical path"
LABEL = 15  # characters of a label


WORDS = {"compute": "computing", "transfer": "on links", "queueing": "in queues", OTHER_JOBS: "messages of other jobs"}


@dataclass(frozen=True)
class ExplainedJob:
    """A job beside others.

    Attributes:
        run: the job alone and together.
        path: parts of its critical path, in picoseconds that sum to its run.
        idle: idle picoseconds of all its ranks by reason.
    """

    run: JobRun
    path: Mapping[str, int]
    idle: Mapping[str, int]

    @property
    def waits_for_others(self) -> float:
        """The share of its critical path that is other jobs' doing."""
        whole = sum(self.path.values())
        return self.path.get(OTHER_JOBS, 0) / whole if whole else 0.0

    def to_mapping(self) -> dict[str, Any]:
        """Everything in seconds per step; idle time as means per rank."""
        steps, ranks = self.run.together.scenario.steps, self.run.together.timeline.layout.ranks
        alone, beside = (facts["step_time_s"] for facts in self.run.facts)
        scale = PICOSECONDS_PER_SECOND * steps
        return {
            "step_time_s": beside,
            "alone_step_time_s": alone,
            "critical_path_s": {name: time / scale for name, time in self.path.items()},
            "idle_by_reason_s": {name: time / scale / ranks for name, time in self.idle.items()},
        }


@dataclass(frozen=True)
class ExplainedJobs:
    """Jobs on one fabric, each explained, and simulated changes."""

    neighbours: Neighbours
    jobs: Sequence[ExplainedJob]
    tried: Sequence[SimulatedVariant] = ()
    not_tried: str = ""
    asked: int = 0  # of those tried, the first ones, which were asked for

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values, and the summary of the jobs."""
        summary = self.neighbours.summary
        return {
            "name": self.neighbours.jobs.name,
            "jobs": {one.run.job.name: {**one.to_mapping(), "waits": summary["jobs"][one.run.job.name]["waits"]}
                     for one in self.jobs},
            "what_if": [{"change": one.change, "step_time_s": dict(one.steps)} for one in self.tried],
            **({"not_tried": self.not_tried} if self.not_tried else {}),
        }  # fmt: skip

    def report(self, width: int = 100) -> str:
        """At most fifteen lines: who waits for whom, the jobs that wait the most first; what would help the most."""
        ranked = sorted(self.jobs, key=lambda job: -job.waits_for_others)
        longest = max(len(one.run.job.name) for one in ranked[:MOST_JOBS])
        label = min(max(longest + 2, len(CHANGES) + 2), width // 3)
        lines = [self.neighbours.jobs.name, *self._changes(width, label)]
        told = [labelled([(one.run.job.name, [self._sentence(one)])], width, label) for one in ranked[:MOST_JOBS]]
        while told and len(lines) + sum(map(len, told)) + 1 > MOST_LINES:
            told.pop()
        left_out = len(ranked) - len(told)
        more = [f"and {left_out} more job{'s' if left_out > 1 else ''}; --details has all"] if left_out else []
        return "\n".join([lines[0], *(line for one in told for line in one), *more, *lines[1:]])

    def _sentence(self, explained_job: ExplainedJob) -> str:
        """What a job waits for, and whose messages are before its own."""
        step, alone = (explained_job.to_mapping()[key] for key in ("step_time_s", "alone_step_time_s"))
        share, behind = explained_job.waits_for_others, self._behind(explained_job)
        alarm = f"{ALARM}; " if any(facts["out_of_memory"] for facts in explained_job.run.facts) else ""
        head = f"{alarm}step {format_seconds(step)}, alone {format_seconds(alone)}"
        if not share:
            return f"{head}: {NOT_OTHERS}"
        others = " and ".join(behind) or "others"
        return f"{head}: {format_share(share)} of its critical path is waiting for messages of {others}"

    def _behind(self, explained_job: ExplainedJob) -> list[str]:
        """The jobs whose messages are before those of a job, those that it waits for the longest first."""
        waits: Counter[str] = Counter()
        for wait in self.neighbours.rows.waits:
            if wait.job == explained_job.run.job.name:
                waits[wait.behind] += wait.waited
        return [name for name, _ in waits.most_common()]

    def _changes(self, width: int, label: int) -> list[str]:
        """The changes that were asked for, and those that help the most."""
        base = steps_of(self.neighbours)
        gpus = {one.run.job.name: len(one.run.job.gpus) for one in self.jobs}

        def longer(change: SimulatedVariant) -> float:
            known = {name: step for name, step in change.steps.items() if base[name]}
            return sum(gpus[name] * (step / base[name] - 1) for name, step in known.items())

        helping = sorted((one for one in self.tried[self.asked :] if longer(one) < 0), key=longer)
        shown = [*self.tried[: self.asked], *helping[:MOST_HELPING]]
        texts = [one.told(base) for one in shown] or ([f"not tried: {self.not_tried}"] if self.not_tried else ["none"])
        return labelled([(CHANGES, texts)], width, label)

    def details(self, width: int = 100) -> str:
        """A few lines per job with its critical path and idle time, and one per change."""
        blocks = ["\n".join(self._of(one, width)) for one in self.jobs]
        base, why = steps_of(self.neighbours), [f"not tried: {self.not_tried}"] if self.not_tried else []
        blocks.append("\n".join(labelled([("What if", [*(one.told(base) for one in self.tried), *why])], width, LABEL)))
        return "\n\n".join(blocks)

    def _of(self, explained_job: ExplainedJob, width: int) -> list[str]:
        facts = explained_job.to_mapping()
        step, alone = facts["step_time_s"], facts["alone_step_time_s"]
        others = facts["critical_path_s"][OTHER_JOBS]
        name = explained_job.run.job.name
        more = f" ({format_change(step / alone - 1)})" if alone else ""
        title = f"{name}: a training step takes {format_seconds(step)} beside the other jobs{more}, "
        title += f"{format_seconds(alone)} alone"
        verdict = "No message of another job is on its critical path."
        if others:
            verdict = f"{format_share(others / step)} of the critical path is waiting for messages of other jobs."
        waits = [wait for wait in self.neighbours.rows.waits if wait.job == explained_job.run.job.name][:MOST_BEHIND]
        steps = explained_job.run.together.scenario.steps
        behind = ", ".join(
            f"{wait.behind} on link {wait.link} ({wait.messages / steps:.3g} messages per step, each for "
            f"{format_seconds(wait.waited / wait.messages / PICOSECONDS_PER_SECOND)})"
            for wait in waits
        )
        blocks = [
            ("Main loss", [verdict]),
            ("Critical path", [_parts(facts["critical_path_s"], step)]),
            ("Idle time", [_parts(facts["idle_by_reason_s"], step) or "none"]),
            *([("Waits for", [behind])] if behind else []),
        ]
        alarm = textwrap.wrap(alarm_of(explained_job.run.together), width, subsequent_indent="  ")
        return [*folded(title, width), *alarm, *labelled(blocks, width, LABEL)]


def _parts(seconds: Mapping[str, float], step: float) -> str:
    shown = {name: time for name, time in seconds.items() if step and time / step >= SHOWN}
    longest = sorted(shown.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{WORDS.get(name, name)} {format_share(time / step)}" for name, time in longest)


def explain_jobs(
    source: Source | Jobs,
    changes: Sequence[str] = (),
    build: Build | None = None,
    at_once: AtOnce = in_turn,
    *,
    folded: bool = True,
) -> ExplainedJobs:
    """Simulate jobs together with all causes recorded, explain the step of each, and try changes.

    Args:
        source: the path of a file with `jobs:`, a mapping with its content, or jobs.
        changes: what-ifs such as "jobs.bert.start=9 ms" or "link.leaf0/up.bandwidth=2x", beside those proposed.
        build: reads jobs again with overrides, for changes of keys; by default, from the file or mapping.
        at_once: runs changes, and the causes of each job; by default one after the other.
        folded: whether ranks may stand for others; the rows of a run are then those of the simulated ranks.

    Raises:
        HybridDesError: as `simulate_jobs`.
        UsageError: a change names no key, or has no valid value.
    """
    began, given = time.perf_counter(), source if isinstance(source, Jobs) else load_jobs(source)
    if not isinstance(source, Jobs):
        build = build or partial(load_jobs, source)
    jobs = given.with_values(lambda scenario: {"record": "all"})
    groups = Grouping.of(jobs)
    traces = {one.name: Causes() for one in jobs.jobs}
    neighbours = together(jobs, alone_runs(jobs, groups), groups, traces, folded=folded)
    neighbours = replace(neighbours, wall_s=time.perf_counter() - began)
    why = why_none(neighbours, groups)
    causes = [partial(_causes, one, neighbours.rows.beside(one.job.name)) for one in neighbours.runs]
    further = [*asked(given, changes, build), *(() if why else proposed(neighbours, groups))]
    of_jobs, tried = grouped([causes, further], at_once)
    jobs_explained = [ExplainedJob(one, *each) for one, each in zip(neighbours.runs, of_jobs, strict=True)]
    known = [one for one in tried if one is not None]
    return ExplainedJobs(neighbours, jobs_explained, known, why, len(changes))


def _causes(job_run: JobRun, beside: Column) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The parts of the critical path of a job, and its idle time by reason."""
    graph = graph_of(job_run.together, beside)
    return time_by_part(critical_path(graph)), IdleTime(graph).reasons
