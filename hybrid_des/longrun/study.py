"""The goodput of a scenario: its replications, on any number of processes, and their tables."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import SimulationError
from hybrid_des.registry import import_file
from hybrid_des.renewal.job import job_of, replicate
from hybrid_des.renewal.ledger import LOST, USEFUL
from hybrid_des.renewal.process import Campaign, Replication
from hybrid_des.renewal.sources import faults_of
from hybrid_des.renewal.states import Steps
from hybrid_des.renewal.summary import KEPT, share, summary, warnings_of
from hybrid_des.scenario import Scenario, Source, load
from hybrid_des.sweep.axes import Case
from hybrid_des.sweep.dispatch import Row, dispatch, split
from hybrid_des.sweep.local_workers import local_workers
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_seconds

if TYPE_CHECKING:
    import pandas as pd

SHARES = 4  # batches per worker
Progress = Callable[[int, int], None]


def goodput(scenario: Source, jobs: int = 1, progress: Progress | None = None, imports: Sequence[str] = ()) -> Goodput:
    """Simulate the weeks that `faults` describes, once per replication.

    Args:
        scenario: a scenario with `faults`, the path of its file, or a mapping.
        jobs: local worker processes; 1 runs in this process. The result does not depend on it.
        progress: called with (replications done, replications in total).
        imports: user-defined plug-in files that every worker imports first.

    Raises:
        UsageError: the scenario has no `faults`, or more failures than can be simulated.
        HybridDesError: the step of a state of the cluster cannot be simulated.
    """
    scenario = load(scenario)
    job, steps = job_of(scenario), Steps(scenario)
    assert steps.healthy.time  # simulated here, before any worker needs it
    outcomes = outcomes_of([job], steps, Crew(jobs, progress, tuple(imports)))[0]
    return Goodput(scenario, job, steps, outcomes)


class Crew:
    """How to run replications: the number of processes, a progress callback, and the files to import."""

    def __init__(self, jobs: int = 1, progress: Progress | None = None, imports: Sequence[str] = ()) -> None:
        self.jobs = jobs
        self.progress = progress or (lambda done, total: None)
        self.imports = tuple(str(Path(file).resolve()) for file in imports)


def outcomes_of(jobs: Sequence[Campaign], steps: Steps, crew: Crew) -> list[list[Replication]]:
    """The outcomes of all replications of several jobs.

    Raises:
        HybridDesError: a state's step cannot be simulated, or the workers are lost.
    """
    count = faults_of(steps.scenario).replications
    cases: list[Case] = [{"job": i, "replication": number} for i in range(len(jobs)) for number in range(count)]
    found: list[Replication] = [Replication()] * len(cases)
    run_batch = partial(_run_batch, steps, jobs, crew.imports)
    if crew.jobs == 1:
        for place, case in enumerate(cases):
            found[place] = run_batch([case])[0]["outcome"]
            crew.progress(place + 1, len(cases))
    else:
        batches = split(cases, min(len(cases), SHARES * crew.jobs))
        with local_workers(min(crew.jobs, len(batches))) as workers:
            for done, (place, row) in enumerate(dispatch(run_batch, batches, workers), start=1):
                if "error" in row:
                    raise SimulationError(f"{steps.scenario.name}: replication {cases[place]}: {row['error']}")
                found[place] = row["outcome"]
                steps.learn(row["known"])
                crew.progress(done, len(cases))
    return [found[i * count : (i + 1) * count] for i in range(len(jobs))]


def _run_batch(steps: Steps, jobs: Sequence[Campaign], imports: Sequence[str], cases: Sequence[Case]) -> list[Row]:
    for file in imports:
        import_file(file)
    return [
        {"outcome": replicate(jobs[case["job"]], steps, [case["replication"]])[0], "known": steps.known}
        for case in cases
    ]


class Goodput:
    """Weeks of a job with failures, in several replications.

    Attributes:
        scenario: what was simulated.
        job: the scenario in the form that `RenewalProcess` takes.
        steps: the step of every state that occurred.
        outcomes: the replications.
    """

    def __init__(self, scenario: Scenario, job: Campaign, steps: Steps, outcomes: Sequence[Replication]) -> None:
        self.scenario = scenario
        self.job = job
        self.steps = steps
        self.outcomes = outcomes

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The summary by its public keys; seconds, means over replications; None where something is unknown."""
        facts = summary(self.steps, self.job, self.outcomes)
        return {"version": self.scenario.version, "name": self.scenario.name, **facts}

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

    def report(self) -> str:
        """The report of the command line as text."""
        from hybrid_des.longrun.weeks_report import render

        return render(self.scenario, self.summary, self.steps)

    def _repr_html_(self) -> str:
        """The report, for notebooks."""
        return f'<pre style="line-height:1.15;white-space:pre;overflow-x:auto">{html.escape(self.report())}</pre>'
