"""Goodput of a scenario over weeks: replications on any number of processes, their tables and curves.

from hybrid_des import goodput, load
weeks = goodput(load("scenarios/goodput/llama3_54days.yaml"), jobs=2)
weeks.summary["goodput"], weeks.failures.groupby("class").size()
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from hybrid_des.cost_model.model_version import MODEL_VERSION
from hybrid_des.errors import SimulationError
from hybrid_des.report.terminal import as_html
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.studies.goodput.failures import faults_of
from hybrid_des.studies.goodput.ledger import LOST, USEFUL
from hybrid_des.studies.goodput.process import JobSpec, Replication, job_of, replicate, with_interval
from hybrid_des.studies.goodput.report import render
from hybrid_des.studies.goodput.states import State, Step, Steps
from hybrid_des.studies.goodput.summary import KEPT, confidence, share, summary, warnings_of
from hybrid_des.studies.pool import LOST as LOST_TWICE
from hybrid_des.studies.pool import Pool, Progress, line_of, open_pool
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_share, to_seconds

if TYPE_CHECKING:
    import pandas as pd


AROUND = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)  # of the best interval


HERE = Pool()


def goodput(
    scenario: Source,
    jobs: int = 1,
    progress: Progress | None = None,
    imports: Sequence[str] = (),
    *,
    overrides: Overrides = (),
) -> Goodput:
    """Simulate the weeks that `faults` describes, once per replication.

    Args:
        scenario: a scenario with `faults`, the path of its file, or a mapping.
        jobs: local worker processes; 1 runs in this process. The result does not depend on it.
        progress: called with (replications done, replications in total).
        imports: user-defined plug-in files that every worker imports first.
        overrides: changes to it, such as ["schedule.kind=gpipe"] or {"schedule.kind": "gpipe"}.

    Raises:
        UsageError: the scenario has no `faults`, or more failures than can be simulated.
        HybridDesError: the step of a state of the cluster cannot be simulated.

    Example:
        >>> from hybrid_des import goodput, load
        >>> weeks = goodput(load("scenarios/goodput/gpus_1024.yaml", ["faults.replications=1"]))
        >>> weeks
        <Goodput of gpus_1024: 95.7 % in 1 replication>
        >>> weeks.failures.groupby("class").size()
        class
        link flap    21
        node down    25
        slow node     3
        dtype: int64
    """
    with open_pool(jobs, progress=progress, imports=imports) as pool:
        return goodput_on(pool, load(scenario, overrides))


def goodput_on(pool: Pool, scenario: Scenario) -> Goodput:
    """The same on a pool, which may be used for curves afterwards."""
    job, steps = job_of(scenario), Steps(scenario)
    assert steps.healthy.time  # simulated here, before any worker needs it
    return Goodput(scenario, job, steps, outcomes_of([job], steps, pool)[0])


def outcomes_of(jobs: Sequence[JobSpec], steps: Steps, pool: Pool = HERE) -> list[list[Replication]]:
    """The outcomes of all replications of several jobs.

    Raises:
        HybridDesError: a state's step cannot be simulated, or the workers are lost.
    """
    count = faults_of(steps.scenario).replications
    numbers = [(i, number) for i in range(len(jobs)) for number in range(count)]
    replications: list[Replication] = [Replication()] * len(numbers)

    def lost(number: tuple[int, int], error: BaseException) -> None:
        raise SimulationError(f"{steps.scenario.name}: replication {number[1]}: {LOST_TWICE}: {line_of(error)}")

    for index, (outcome, known) in pool.map(partial(_replicated, steps, jobs), numbers, lost):
        replications[index] = outcome
        steps.known |= known
    return [replications[i * count : (i + 1) * count] for i in range(len(jobs))]


def _replicated(
    steps: Steps, jobs: Sequence[JobSpec], number: tuple[int, int]
) -> tuple[Replication, dict[State, Step]]:
    """The outcome of one replication of a job, and the steps that have been simulated so far."""
    job, replication = number
    return replicate(jobs[job], steps, [replication])[0], steps.known


@dataclass(frozen=True, eq=False, repr=False)
class Goodput:
    """Weeks of a job with failures, in several replications.

    Attributes:
        scenario: what was simulated.
        job: the scenario in the form that `RenewalProcess` takes.
        steps: the step of every state that occurred.
        outcomes: the replications.
    """

    scenario: Scenario
    job: JobSpec
    steps: Steps
    outcomes: Sequence[Replication]

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The summary by its public keys; seconds, means over replications; None where something is unknown."""
        facts = summary(self.steps, self.job, self.outcomes)
        names = {"version": self.scenario.version, "model_version": MODEL_VERSION, "name": self.scenario.name}
        return {**names, **facts}

    @property
    def warnings(self) -> list[str]:
        """Warnings about values that are possible but hardly intended, one line each."""
        return warnings_of(self.scenario, self.job)

    @cached_property
    def replications(self) -> pd.DataFrame:
        """One row per replication: goodput, ETTR, counts, and the ledger in seconds."""
        import pandas as pd

        return pd.DataFrame(
            {
                "replication": number,
                "goodput": share(one, self.job),
                "ettr": share(one, self.job, KEPT),
                "failures": sum(not failure.spare for failure in one.failures),
                "stops": one.stops,
                "checkpoints": one.checkpoints,
                "useful_s": one.ledger[USEFUL] / PICOSECONDS_PER_SECOND,
                **{f"{cause}_s": one.ledger[cause] / PICOSECONDS_PER_SECOND for cause in LOST},
            }
            for number, one in enumerate(self.outcomes)
        )

    @cached_property
    def failures(self) -> pd.DataFrame:
        """One row per failure: its time, class and part, the phase it struck in, its effect, and the work lost."""
        import pandas as pd

        rows = [
            (number, to_seconds(one.time), self.job.sources[one.source].name, self.job.sources[one.source].what,
             one.part, one.spare, one.phase, one.effect, to_seconds(one.rework))
            for number, outcome in enumerate(self.outcomes) for one in outcome.failures
        ]  # fmt: skip
        names = ["replication", "time_s", "class", "what", "part", "spare", "phase", "effect", "rework_s"]
        return pd.DataFrame(rows, columns=names)

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per interval: its start, end and phase, the step time while running, and the replicas."""
        import pandas as pd

        rows = [
            (number, to_seconds(one.start), to_seconds(one.end), one.phase,
             None if one.step is None else to_seconds(one.step), one.replicas)
            for number, outcome in enumerate(self.outcomes) for one in outcome.intervals
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["replication", "start_s", "end_s", "phase", "step_time_s", "replicas"])

    def __repr__(self) -> str:
        count, good = len(self.outcomes), self.summary["goodput"]
        many = f"{count} replication{'s' if count > 1 else ''}"
        return f"<Goodput of {self.scenario.name}: {'unknown' if good is None else format_share(good)} in {many}>"

    def over_intervals(self, seconds: Sequence[float] | None = None, pool: Pool = HERE) -> pd.DataFrame | None:
        """Goodput for several intervals: `interval_s, goodput, low, high`, the last two a 95 % confidence interval.

        Args:
            seconds: the intervals; default: around the best one, or else around the scenario's.
            pool: where to run the replications; default: in this process.

        Returns:
            The table; None if the scenario saves nothing, or neither its interval nor the best one is a known time.
        """
        facts, best = self.summary, self.summary["best_interval_s"]
        if not self.job.saving.ever or (facts["checkpoint_interval_s"] is None and best is None):
            return None
        center = best["exact"] if best else facts["checkpoint_interval_s"]
        step = facts["healthy_step_s"]
        chosen = sorted({max(center * factor, step) for factor in AROUND}) if seconds is None else list(seconds)
        return self._table("interval_s", chosen, [with_interval(self.job, interval) for interval in chosen], pool)

    def over_spares(self, counts: Sequence[int] | None = None, pool: Pool = HERE) -> pd.DataFrame | None:
        """Goodput for several numbers of spares: `spares, goodput, low, high`.

        Args:
            counts: the numbers; default: 0 to twice the scenario's, at least to 4.
            pool: where to run the replications; default: in this process.

        Returns:
            The table; None if the scenario has no `spares`.
        """
        spares = faults_of(self.scenario).spares
        if spares is None:
            return None
        most = min(max(2 * spares.nodes, 4), len(self.job.replicas))
        chosen = sorted({round(most * i / 8) for i in range(9)}) if counts is None else list(counts)
        return self._table("spares", chosen, [job_of(with_spares(self.scenario, count)) for count in chosen], pool)

    def _table(self, name: str, values: Sequence[float], jobs: Sequence[JobSpec], pool: Pool) -> pd.DataFrame:
        """A row for each of some jobs."""
        import pandas as pd

        rows = []
        for value, job, outcomes in zip(values, jobs, outcomes_of(jobs, self.steps, pool), strict=True):
            goodputs = [share(one, job) for one in outcomes]
            low, high = confidence(goodputs) or (None, None)
            rows.append({name: value, "goodput": statistics.fmean(goodputs), "low": low, "high": high})
        return pd.DataFrame(rows)

    def report(self, width: int = 100) -> str:
        """The report of the command line as text."""
        return render(self.scenario, self.summary, self.steps, width)

    def _repr_html_(self) -> str:
        """The report, for notebooks."""
        return as_html(self.report())


def with_spares(scenario: Scenario, count: int) -> Scenario:
    """The scenario with another number of spares."""
    faults = faults_of(scenario)
    assert faults.spares is not None
    spares = faults.spares.model_copy(update={"nodes": count})
    return scenario.model_copy(update={"faults": faults.model_copy(update={"spares": spares})})
