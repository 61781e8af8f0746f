"""What `simulate_jobs` returns: jobs on one fabric, with their report, picture and files.

It writes a folder per job as usual, and tables, pictures and a page of the fabric.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.tasks import AtOnce
from hybrid_des.report.files import registration as formats
from hybrid_des.report.files.staging import Written, write_files
from hybrid_des.report.page.document import PageRun, page_of
from hybrid_des.report.plots.curves import natural
from hybrid_des.report.plots.style import LINES, legend_of_colours, new_figure, plain, scale_of, verbatim
from hybrid_des.report.terminal import as_html
from hybrid_des.scenario.jobs import Jobs, load_jobs
from hybrid_des.scenario.loading import Source
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.studies.jobs.fabric_rows import OTHERS
from hybrid_des.studies.jobs.neighbours import JobRun, Neighbours, Remedies, neighbours_of
from hybrid_des.studies.jobs.remedies import Allowance, remedies_of
from hybrid_des.studies.jobs.report import BINS, GREY, MOST_DRAWN, render
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(neighbours: Neighbours, folder: str | Path) -> dict[Path, Written]:
    """Write a folder per job with its usual files, and into the folder what concerns the fabric.

    Raises:
        UsageError: a folder cannot be created or written.
    """
    folder = Path(folder)
    written = {
        folder / one.job.name: formats.write(RunAnalysis(one.together), folder / one.job.name)
        for one in neighbours.runs
    }
    contents = {
        "summary.json": neighbours.summary,
        "report.txt": render(neighbours) + "\n",
        "waits.csv": neighbours.waits,
        "links.csv": neighbours.links,
        "fabric.html": page(neighbours),
        "fabric": draw_fabric_use(neighbours),
    }
    written[folder] = write_files(folder, contents)
    return written


def page(neighbours: Neighbours) -> str:
    """A page of all jobs on one time axis, with who waits for whom and the use of links by job."""
    shown = [PageRun(RunAnalysis(_at_its_start(one)), name=one.job.name) for one in neighbours.runs]
    return page_of(shown, title=neighbours.jobs.name, lead=render(neighbours))


def _at_its_start(job_run: JobRun) -> Any:
    """The run of a job at times of the fabric."""
    if not job_run.job.start:
        return job_run.together
    timeline, by = job_run.together.timeline, job_run.job.start
    moved: dict[str, Any] = {}
    for name in ("ops", "messages", "steps", "reductions", "memory", "gathers", "waits", "exchanges"):
        table = getattr(timeline, name)
        if table is not None:
            moved[name] = {key: column + by if key in _TIMES else column for key, column in table.items()}
    return replace(job_run.together, timeline=replace(timeline, **moved))


_TIMES = frozenset({"asked", "start", "end", "begin", "sent", "reduced", "free", "time"})


def draw_fabric_use(neighbours: Neighbours) -> Figure:
    """The use of the busiest shared links over time, by job: a lane per link, a colour per owner."""
    lanes = _drawn(neighbours)
    figure = new_figure((10.0, 1.2 + 0.55 * max(len(lanes), 1)))
    ax = figure.subplots()
    scale, unit = scale_of(neighbours.rows.end / PICOSECONDS_PER_SECOND)
    colours = {one.name: colour for one, colour in zip(neighbours.rows.owners, _colours(neighbours), strict=True)}
    edges = np.linspace(0, max(neighbours.rows.end, 1), BINS + 1)
    for lane, link in enumerate(reversed(lanes)):
        base = np.zeros(BINS)
        for name, share in _shares(neighbours, link, edges):
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


def _colours(neighbours: Neighbours) -> Iterator[str]:
    for number, owner in enumerate(neighbours.rows.owners):
        yield GREY if owner.name == OTHERS else LINES[number % len(LINES)]


def _drawn(neighbours: Neighbours) -> list[str]:
    """The busiest links, those that several jobs use first, in natural order."""
    summary, shared = neighbours.summary["links"], set(neighbours.summary["shared_links"])

    def busy(link: str) -> tuple[bool, float]:
        return link not in shared, -sum(summary[link]["busy_ratio"].values())

    return sorted(sorted(summary, key=busy)[:MOST_DRAWN], key=natural)


def _shares(neighbours: Neighbours, link: str, edges: Any) -> Iterator[tuple[str, Any]]:
    """For each owner, the share of each bin for which its messages occupy a link."""
    width = edges[1] - edges[0]
    for name, start, end, alone in neighbours.rows.on(link):
        used = np.zeros(len(edges))
        rate = alone / np.maximum(end - start, 1)  # of the link's bandwidth, while a message is on it
        for times, sign in ((start, 1.0), (end, -1.0)):  # the integral of the rate is piecewise linear
            at = np.sort(times)
            weight = np.append(0.0, np.cumsum(rate[np.argsort(times)]))
            moment = np.append(0.0, np.cumsum(rate[np.argsort(times)] * at))
            number = np.searchsorted(at, edges, side="right")
            used += sign * (weight[number] * edges - moment[number])
        yield name, np.clip(np.diff(used) / width, 0, 1)


class JobsResult(Neighbours):
    """Jobs on one fabric, with their report, picture and files."""

    def report(self, width: int | None = None) -> str:
        """The report of the command line as text; without a width, tables are as wide as they are."""
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


def simulate_jobs(
    source: Source | Jobs,
    overrides: Overrides = (),
    *,
    remedies: bool = False,
    budget_s: float | None = None,
    tries: int | None = None,
    at_once: AtOnce | None = None,
) -> JobsResult:
    """Simulate the jobs of a file, each alone and all together.

    Args:
        source: the path of a file with `jobs:`, a mapping with its content, or jobs.
        overrides: changes to it, such as ["placement=spread"] or {"jobs.gpt.schedule.kind": "gpipe"}.
        remedies: whether to try shifts of starts and orders of priorities too.
        budget_s: real seconds for these; by default a number of events, the same on every machine.
        tries: simulate so many of them instead, however long it takes.
        at_once: runs them; by default one after the other, with `hybrid_des.studies.forked.forked(4)` in four
            processes.

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
    neighbours, groups = neighbours_of(source if isinstance(source, Jobs) else load_jobs(source, overrides))
    tried = remedies_of(neighbours, groups, Allowance.of(budget_s, tries), at_once) if remedies else None
    return _result(neighbours, tried, began)


def jobs_in_time(
    jobs: Jobs,
    ended: AbstractContextManager[None],
    left: Callable[[], float | None],
    at_once: AtOnce | None = None,
    *,
    folded: bool = False,
) -> JobsResult:
    """Simulate jobs within a limit, and try starts and priorities for as long as is left then.

    Args:
        jobs: the jobs.
        ended: ends what runs in it at the limit; changes end by themselves.
        left: real seconds that are left; None if there is no limit.
        at_once: runs starts and priorities, where there is none.
        folded: whether ranks may stand for others, if the order of rows of one time does not matter.
    """
    began = time.perf_counter()
    with ended:
        neighbours, groups = neighbours_of(jobs, folded=folded)
    return _result(neighbours, remedies_of(neighbours, groups, Allowance.of(left()), at_once), began)


def _result(neighbours: Neighbours, remedies: Remedies | None, began: float) -> JobsResult:
    values = {one.name: getattr(neighbours, one.name) for one in fields(neighbours)}
    return JobsResult(**{**values, "remedies": remedies, "wall_s": time.perf_counter() - began})
