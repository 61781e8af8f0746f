"""Reports on several jobs: what they do to each other, why each takes as long as it does; their files and result."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.paths import by_reason, critical_path, idle_pieces, time_by_part
from hybrid_des.analysis.idle import OTHERS as OTHER_JOBS
from hybrid_des.analysis.metrics import Findings
from hybrid_des.engine.causes import Causes
from hybrid_des.jobs.fabric_rows import OTHERS
from hybrid_des.jobs.neighbours import (
    Grouping,
    JobRun,
    Neighbours,
    Remedies,
    Remedy,
    alone_runs,
    neighbours_of,
    together,
)
from hybrid_des.jobs.variants import Build, TriedJobs, asked, proposed, remedies_of, steps_of, why_none
from hybrid_des.report import files
from hybrid_des.report.files import Written, write_files
from hybrid_des.report.page.document import Shown, page_of
from hybrid_des.report.plots.curves import natural
from hybrid_des.report.plots.style import LINES, legend_of_colours, new_figure, plain, scale_of, verbatim
from hybrid_des.report.terminal import as_html, labelled, text_table
from hybrid_des.scenario.jobs import Jobs, load_jobs
from hybrid_des.scenario.loading import Source
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_WAITS, MOST_LINKS = 8, 8  # lines in the report
MOST_DRAWN = 12  # links in the picture
BINS = 400  # of the picture's time axis
GREY = "#8A8A8A"


def render(found: Neighbours, width: int = 100) -> str:
    """The report of the command line as text."""
    cluster, jobs = found.jobs.cluster, found.jobs
    title = f"{jobs.name}: {jobs.description}" if jobs.description else jobs.name
    taken = sum(len(one.gpus) for one in jobs.jobs)
    sharing = f"sharing {cluster.sharing}"  # the verdict depends on it
    setup = f"{len(jobs.jobs)} jobs on {taken} of {cluster.gpus} GPUs, topology {cluster.topology}, {sharing}"
    blocks = [
        [title, setup],
        [_jobs(found)],
        _waits(found),
        _links(found),
        _remedies(found.remedies),
        [line for note in found.notes for line in textwrap.wrap(f"note: {note}", width, subsequent_indent="  ")],
        [f"real time {format_seconds(found.wall_s)} for {found.events:,} events"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _jobs(found: Neighbours) -> str:
    urgent = any(one.priority for one in found.jobs.jobs)
    heads = ["job", "GPUs", "nodes", "start", *(["priority"] if urgent else []), "steps"]
    heads += ["alone", "together", "slowdown", "GPUs compute", "shares links with"]
    rows = []
    for one in found.runs:
        facts = found.summary["jobs"][one.job.name]
        rows.append([
            one.job.name, str(facts["gpus"]), _ranges(facts["nodes"]), format_seconds(facts["start_s"]),
            *([str(one.job.priority)] if urgent else []), str(facts["steps"]),
            format_seconds(facts["alone_step_time_s"]), format_seconds(facts["step_time_s"]),
            f"{one.slowdown:.3f}×", f"{facts['gpu_utilisation']:.1%}",
            ", ".join(facts["shares_links_with"]) or "nobody: as alone",
        ])  # fmt: skip
    return text_table(heads, rows)


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short, such as 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    shown = ["-".join(map(str, part)) for part in parts]
    return ",".join(shown) if len(shown) < 5 else f"{','.join(shown[:3])}, … ({len(numbers)})"


def _waits(found: Neighbours) -> list[str]:
    waits = found.waits
    if not len(waits):
        return []
    rows = [
        [*map(str, (row["job"], row["behind"], row["link"])), format_seconds(row["waited_s"]), f"{row['messages']:.3g}"]
        for row in waits.head(MOST_WAITS).to_dict("records")
    ]
    heads = ["who waits", "for", "on link", "per step", "messages"]
    more = len(waits) - len(rows)
    lines = ["waiting for others' messages, summed over messages", text_table(heads, rows, "  ")]
    return [*lines, *([f"  … and {more} more pairs of job and link"] if more > 0 else [])]


def _links(found: Neighbours) -> list[str]:
    shared, summary = found.summary["shared_links"], found.summary["links"]
    if not shared:
        return []
    names = [*(one.job.name for one in found.runs), *([OTHERS] if found.traffic else [])]
    busiest = sorted(shared, key=lambda link: (-sum(summary[link]["busy_ratio"].values()), natural(link)))
    rows = [
        [link, f"{sum(summary[link]['busy_ratio'].values()):.1%}", *(_of_job(summary[link], name) for name in names)]
        for link in busiest[:MOST_LINKS]
    ]
    more = len(shared) - len(rows)
    lines = [
        "busiest links that several jobs use: share of the time, and bytes",
        text_table(["link", "busy", *names], rows, "  "),
    ]
    return [*lines, *([f"  … and {more} more"] if more > 0 else [])]


def _of_job(link: Mapping[str, Any], name: str) -> str:
    size = link["bytes"].get(name)
    return "" if size is None else f"{link['busy_ratio'][name]:.1%} {format_bytes(size)}"


def _remedies(found: Remedies | None) -> list[str]:
    if found is None:
        return []
    if found.skipped:
        return [f"other starts and priorities: not tried; {found.skipped}"]
    before = f"mean slowdown {found.slowdown:.3f}×"
    return [
        f"what would help ({found.tried} changes simulated, as it is: {before} by GPUs)",
        f"  best starts      {_start(found.starts)}",
        f"  best priorities  {_order(found.priorities)}",
    ]


def _start(one: Remedy | None) -> str:
    if one is None:
        return "as they are"
    at = ", ".join(f"{name} at {format_seconds(value)}" for name, value in one.values.items())
    return f"{at}: {one.slowdown:.3f}× ({_each(one)})"


def _order(one: Remedy | None) -> str:
    if one is None:
        return "none help"
    names = sorted(one.values, key=lambda name: -one.values[name])
    return f"{' before '.join(names)}: {one.slowdown:.3f}× ({_each(one)})"


def _each(one: Remedy) -> str:
    return ", ".join(f"{name} {value:.3f}×" for name, value in one.of_jobs.items())


# Files.


def write(found: Neighbours, folder: str | Path) -> dict[Path, Written]:
    """Write a folder per job with its usual files, and into the folder what concerns the fabric.

    Raises:
        UsageError: a folder cannot be created or written.
    """
    folder = Path(folder)
    written = {folder / one.job.name: files.write(Findings(one.together), folder / one.job.name) for one in found.runs}
    contents = {
        "summary.json": found.summary,
        "report.txt": render(found) + "\n",
        "waits.csv": found.waits,
        "links.csv": found.links,
        "fabric.html": page(found),
        "fabric": draw_fabric_use(found),
    }
    written[folder] = write_files(folder, contents)
    return written


def page(found: Neighbours) -> str:
    """A page of all jobs on one time axis, with who waits for whom and the use of links by job."""
    shown = [Shown(Findings(_at_its_start(one)), name=one.job.name) for one in found.runs]
    return page_of(shown, title=found.jobs.name, lead=render(found))


def _at_its_start(one: JobRun) -> Any:
    """The run of a job at times of the fabric."""
    if not one.job.start:
        return one.together
    timeline, by = one.together.timeline, one.job.start
    moved: dict[str, Any] = {}
    for name in ("ops", "messages", "steps", "reductions", "memory", "gathers", "waits", "exchanges"):
        table = getattr(timeline, name)
        if table is not None:
            moved[name] = {key: column + by if key in _TIMES else column for key, column in table.items()}
    return replace(one.together, timeline=replace(timeline, **moved))


_TIMES = frozenset({"asked", "start", "end", "begin", "sent", "reduced", "free", "time"})


def draw_fabric_use(found: Neighbours) -> Figure:
    """The use of the busiest shared links over time, by job: a lane per link, a colour per owner."""
    lanes = _drawn(found)
    figure = new_figure((10.0, 1.2 + 0.55 * max(len(lanes), 1)))
    ax = figure.subplots()
    scale, unit = scale_of(found.rows.end / PICOSECONDS_PER_SECOND)
    colours = {one.name: colour for one, colour in zip(found.rows.owners, _colours(found), strict=True)}
    edges = np.linspace(0, max(found.rows.end, 1), BINS + 1)
    for lane, link in enumerate(reversed(lanes)):
        base = np.zeros(BINS)
        for name, share in _shares(found, link, edges):
            top = np.minimum(base + share, 1.0)
            low, high = (np.append(one, one[-1]) * 0.85 + lane for one in (base, top))
            ax.fill_between(edges / PICOSECONDS_PER_SECOND / scale, low, high, step="post", color=colours[name], lw=0)
            base = top
    ax.set_yticks([lane + 0.42 for lane in range(len(lanes))], [verbatim(link) for link in reversed(lanes)])
    ax.set_ylim(0, max(len(lanes), 1))
    ax.set_xlabel(f"time ({unit})")
    legend_of_colours(ax, colours)
    plain(ax)
    return figure


def _colours(found: Neighbours) -> Iterator[str]:
    for number, one in enumerate(found.rows.owners):
        yield GREY if one.name == OTHERS else LINES[number % len(LINES)]


def _drawn(found: Neighbours) -> list[str]:
    """The busiest links, those that several jobs use first, in natural order."""
    summary, shared = found.summary["links"], set(found.summary["shared_links"])

    def busy(link: str) -> tuple[bool, float]:
        return link not in shared, -sum(summary[link]["busy_ratio"].values())

    return sorted(sorted(summary, key=busy)[:MOST_DRAWN], key=natural)


def _shares(found: Neighbours, link: str, edges: Any) -> Iterator[tuple[str, Any]]:
    """For each owner, the share of each bin for which its messages occupy a link."""
    width = edges[1] - edges[0]
    for name, start, end, alone in found.rows.on(link):
        used = np.zeros(len(edges))
        rate = alone / np.maximum(end - start, 1)  # of the link's bandwidth, while a message is on it
        for times, sign in ((start, 1.0), (end, -1.0)):  # the integral of the rate is piecewise linear
            at = np.sort(times)
            weight = np.append(0.0, np.cumsum(rate[np.argsort(times)]))
            moment = np.append(0.0, np.cumsum(rate[np.argsort(times)] * at))
            number = np.searchsorted(at, edges, side="right")
            used += sign * (weight[number] * edges - moment[number])
        yield name, np.clip(np.diff(used) / width, 0, 1)


# The result for users.


class JobsResult(Neighbours):
    """Jobs on one fabric, with their report, picture and files."""

    def report(self, width: int = 100) -> str:
        """The report of the command line as text."""
        return render(self, width)

    def fabric_use(self) -> Figure:
        """Draw the use of the busiest links over time, by job."""
        return draw_fabric_use(self)

    def write(self, folder: str | Path) -> dict[Path, Written]:
        """Write a folder per job with its usual files, and what concerns the fabric into the folder.

        Raises:
            UsageError: a folder cannot be created or written.
        """
        return write(self, folder)

    def _repr_html_(self) -> str:
        """The report, for notebooks."""
        return as_html(self.report())


def simulate_jobs(source: Source | Jobs, overrides: Sequence[str] = (), *, remedies: bool = False) -> JobsResult:
    """Simulate the jobs of a file, each alone and all together.

    Args:
        source: the path of a file with `jobs:`, a mapping with its content, or jobs.
        overrides: strings such as "jobs.gpt.schedule.kind=gpipe".
        remedies: whether to try shifts of starts and orders of priorities too.

    Raises:
        HybridDesError: as `load` and `simulate`.

    Three jobs, each with a GPU on every node:

    >>> from hybrid_des import simulate_jobs
    >>> found = simulate_jobs("scenarios/jobs/three_placements.yaml", ["sweep=none", "placement=spread"])
    >>> {one.job.name: round(one.slowdown, 2) for one in found.runs}
    {'large': 1.14, 'middle': 1.38, 'small': 1.21}
    >>> found.waits.iloc[0][["job", "behind", "link"]].tolist()
    ['large', 'small', 'node3/nic0/out']
    """
    began = time.perf_counter()
    found, groups = neighbours_of(source if isinstance(source, Jobs) else load_jobs(source, overrides))
    values = {one.name: getattr(found, one.name) for one in fields(found)}
    if remedies:
        values["remedies"] = remedies_of(found, groups)
    return JobsResult(**{**values, "wall_s": time.perf_counter() - began})


# Why each of several jobs takes as long as it does: its critical path and idle time, with what is others' doing.


SHOWN = 0.0005  # of the step; smaller parts have no figures
MOST_BEHIND = 3


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
    tried: Sequence[TriedJobs] = ()
    not_tried: str = ""

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
        """A few lines per job, and one per change."""
        blocks = ["\n".join(self._of(one, width)) for one in self.jobs]
        base, why = steps_of(self.neighbours), [f"not tried: {self.not_tried}"] if self.not_tried else []
        blocks.append("\n".join(labelled([("What if", [*(one.told(base) for one in self.tried), *why])], width)))
        return "\n\n".join(blocks)

    def _of(self, one: ExplainedJob, width: int) -> list[str]:
        facts = one.to_mapping()
        step, alone = facts["step_time_s"], facts["alone_step_time_s"]
        others = facts["critical_path_s"][OTHER_JOBS]
        title = f"{one.run.job.name}: step {format_seconds(step)}, alone {format_seconds(alone)}"
        verdict = f"{others / step:.1%} of the step waits for {OTHER_JOBS}" if step else ""
        if not others:
            verdict = "no message of another job is on its critical path"
        waits = [wait for wait in self.neighbours.rows.waits if wait.job == one.run.job.name][:MOST_BEHIND]
        steps = one.run.together.scenario.steps
        behind = ", ".join(
            f"{wait.behind} on {wait.link} ({format_seconds(wait.waited / PICOSECONDS_PER_SECOND / steps)})"
            for wait in waits
        )
        blocks = [
            ("Verdict", [verdict]),
            ("Path", [_parts(facts["critical_path_s"], step)]),
            ("Idle", [_parts(facts["idle_by_reason_s"], step) or "nothing"]),
            *([("Behind", [f"{behind}, summed over messages"])] if behind else []),
        ]
        return [title, *labelled(blocks, width)]


def _parts(seconds: Mapping[str, float], step: float) -> str:
    shown = {name: time for name, time in seconds.items() if step and time / step >= SHOWN}
    return ", ".join(f"{name} {time / step:.1%}" for name, time in sorted(shown.items(), key=lambda one: -one[1]))


def explain_jobs(source: Source | Jobs, changes: Sequence[str] = (), build: Build | None = None) -> ExplainedJobs:
    """Simulate jobs together with all causes recorded, explain the step of each, and try changes.

    Args:
        source: the path of a file with `jobs:`, a mapping with its content, or jobs.
        changes: what-ifs such as "jobs.bert.start=9 ms" or "link.leaf0/up.bandwidth=2x", beside those proposed.
        build: reads jobs again with overrides, for changes of keys; by default, from the file or mapping.

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
    found = together(jobs, alone_runs(jobs, groups), groups, traces)
    why = why_none(found, groups)
    tried = [*asked(given, changes, build), *(() if why else proposed(found, groups))]
    found = replace(found, wall_s=time.perf_counter() - began)
    return ExplainedJobs(found, [_explained(found, one) for one in found.runs], tried, why)


def _explained(found: Neighbours, one: JobRun) -> ExplainedJob:
    graph = graph_of(one.together, found.rows.beside(one.job.name))
    return ExplainedJob(one, time_by_part(critical_path(graph)), by_reason(idle_pieces(graph)))
