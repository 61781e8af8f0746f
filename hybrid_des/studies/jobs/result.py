"""What `simulate_jobs` returns: jobs on one fabric, with their report, picture and files.

It writes a folder per job as usual, and tables, pictures and a page of the fabric.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.tasks import AtOnce
from hybrid_des.report.files import registration as formats
from hybrid_des.report.files.staging import Written, write_files
from hybrid_des.report.terminal import as_html
from hybrid_des.scenario.jobs import Jobs, load_jobs
from hybrid_des.scenario.loading import Source
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.studies.jobs.fabric_use import draw_fabric_use
from hybrid_des.studies.jobs.neighbours import Neighbours, Remedies, neighbours_of
from hybrid_des.studies.jobs.page import fabric_page
from hybrid_des.studies.jobs.remedies import Allowance, remedies_of
from hybrid_des.studies.jobs.report import render

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
        "fabric.html": fabric_page(neighbours),
        "fabric": draw_fabric_use(neighbours),
    }
    written[folder] = write_files(folder, contents)
    return written


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
