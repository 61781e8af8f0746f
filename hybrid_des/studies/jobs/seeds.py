"""How much several jobs slow each other down from seed to seed, and in two files side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.errors import UsageError
from hybrid_des.scenario.jobs import Jobs
from hybrid_des.studies.jobs.neighbours import Grouping, Neighbours, alone_runs, together
from hybrid_des.units import format_change, format_seconds

if TYPE_CHECKING:
    import pandas as pd

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
        neighbours = together(these, alone_runs(these, used), used)
        row: dict[str, Any] = {"seed": number, "slowdown": neighbours.slowdown}
        for job_run in neighbours.runs:
            alone, beside = (facts["step_time_s"] for facts in job_run.facts)
            figures = zip(FIGURES, (beside, alone, job_run.slowdown), strict=True)
            row |= {f"jobs.{job_run.job.name}.{name}": value for name, value in figures}
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
        figures = {}
        for name in (name for name in first if name in second):
            pairs = {key: [first[name][key], second[name][key]] for key in (*FIGURES, "gpu_utilisation")}
            figures[name] = {**pairs, "change_s": pairs["step_time_s"][1] - pairs["step_time_s"][0]}
        return figures

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values."""
        sides = {key: {"name": one.jobs.name, "slowdown": one.slowdown} for key, one in (("a", self.a), ("b", self.b))}
        only = {key: sorted(set(one.summary["jobs"]) - set(self.jobs)) for key, one in (("a", self.a), ("b", self.b))}
        return {**sides, "jobs": self.jobs, "only_in": only}

    def rows(self) -> list[list[str]]:
        """Cells of a table: job, step in A and B, change, slowdown in A and B."""
        lines = []
        for name, job in self.jobs.items():
            before, after = job["step_time_s"]
            change = format_change(job["change_s"] / before) if before else ""
            times = format_seconds(before), format_seconds(after)
            lines.append([name, *times, change, *(f"{slow:.3f}×" for slow in job["slowdown"])])
        return lines
