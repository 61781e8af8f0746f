"""Goodput against the interval between checkpoints and against the number of spares, for the same failures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybrid_des.longrun.study import Crew, Goodput, outcomes_of
from hybrid_des.renewal.job import job_of, with_interval
from hybrid_des.renewal.process import Campaign
from hybrid_des.renewal.sources import faults_of
from hybrid_des.renewal.summary import confidence, share
from hybrid_des.scenario import Scenario
from hybrid_des.units import to_seconds

if TYPE_CHECKING:
    import pandas as pd

AROUND = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)  # of the best interval


def over_intervals(
    weeks: Goodput, seconds: Sequence[float] | None = None, crew: Crew | None = None
) -> pd.DataFrame | None:
    """Goodput for several intervals: `interval_s, goodput, low, high`, the last two a 95 % confidence interval.

    Args:
        weeks: a result.
        seconds: the intervals; default: around the best one, or else around the scenario's.
        crew: how to run the replications; default: in this process.

    Returns:
        The table; None if the scenario saves nothing, or neither its interval nor the best one is a known time.
    """
    facts = weeks.summary
    if not weeks.job.saving.ever or (facts["checkpoint_interval_s"] is None and facts["best_interval_s"] is None):
        return None
    best = facts["best_interval_s"]
    center = best["exact"] if best else facts["checkpoint_interval_s"]
    step = facts["healthy_step_s"]
    chosen = sorted({max(center * factor, step) for factor in AROUND}) if seconds is None else list(seconds)
    jobs = [with_interval(weeks.job, interval) for interval in chosen]
    return _table(weeks, "interval_s", chosen, jobs, crew)


def over_spares(weeks: Goodput, counts: Sequence[int] | None = None, crew: Crew | None = None) -> pd.DataFrame | None:
    """Goodput for several numbers of spares: `spares, goodput, low, high`.

    Args:
        weeks: a result.
        counts: the numbers; default: 0 to twice the scenario's, at least to 4.
        crew: how to run the replications; default: in this process.

    Returns:
        The table; None if the scenario has no `spares`.
    """
    spares = faults_of(weeks.scenario).spares
    if spares is None:
        return None
    most = min(max(2 * spares.nodes, 4), len(weeks.job.replicas))
    chosen = sorted({round(most * i / 8) for i in range(9)}) if counts is None else list(counts)
    return _table(weeks, "spares", chosen, [job_of(with_spares(weeks.scenario, count)) for count in chosen], crew)


def with_spares(scenario: Scenario, count: int) -> Scenario:
    """The scenario with another number of spares."""
    faults = faults_of(scenario)
    assert faults.spares is not None
    spares = faults.spares.model_copy(update={"nodes": count})
    return scenario.model_copy(update={"faults": faults.model_copy(update={"spares": spares})})


def _table(
    weeks: Goodput, name: str, values: Sequence[float], jobs: Sequence[Campaign], crew: Crew | None
) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for value, job, outcomes in zip(values, jobs, outcomes_of(jobs, weeks.steps, crew or Crew()), strict=True):
        goodputs = [share(one, job) for one in outcomes]
        low, high = confidence(goodputs) or (None, None)
        rows.append({name: value, "goodput": statistics.fmean(goodputs), "low": low, "high": high})
    return pd.DataFrame(rows)


def interval_of(weeks: Goodput) -> float | None:
    """The scenario's own interval in seconds, if it is a time."""
    every = weeks.job.saving.every
    return None if every is None else to_seconds(every)
