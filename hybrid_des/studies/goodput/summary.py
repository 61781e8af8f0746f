"""Means, percentiles and confidence intervals over the replications of a job, and results of the closed forms.

The bill is that of a whole training of wall time: steps at the goodput of the weeks, failures and restarts included.

    wall time per useful step   time of a step with all replicas at full speed / goodput
    computing                   that step's share, over kept and repeated steps; in all other time GPUs wait

Spare nodes are held, and paid, all the time; they wait.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from hybrid_des.analysis.bill import bill
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.goodput.failures import faults_of
from hybrid_des.studies.goodput.ledger import LOST, USEFUL, unknown_causes
from hybrid_des.studies.goodput.process import JobSpec, Replication, job_of, mtbf_of, replicate
from hybrid_des.studies.goodput.states import Steps
from hybrid_des.studies.goodput.work import best_interval, daly, young
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_seconds

PERCENTILES = (5, 25, 50, 75, 95)
KEPT = (USEFUL, "slow", "jitter", "fewer_replicas")  # time in steps whose work was kept
FEWEST = 4  # replications, below which a confidence interval is meaningless


def summary(steps: Steps, job: JobSpec, outcomes: Sequence[Replication]) -> dict[str, Any]:
    """The summary by its public keys; times are seconds, means over replications; unknown times are None."""
    scenario = steps.scenario
    goodputs, ettrs = ([share(outcome, job, causes) for outcome in outcomes] for causes in ((USEFUL,), KEPT))
    unknown = unknown_causes(scenario)
    useful, lost = _ledger(job, outcomes)
    counted = Counter(failure.source for outcome in outcomes for failure in outcome.failures if not failure.spare)
    n = len(outcomes)
    return {
        "horizon_s": to_seconds(job.horizon),
        "replications": n,
        "goodput": statistics.fmean(goodputs),
        "goodput_ci95": confidence(goodputs),
        "goodput_percentiles": {f"p{share}": float(np.percentile(goodputs, share)) for share in PERCENTILES},
        "ettr": statistics.fmean(ettrs),
        "ettr_ci95": confidence(ettrs),
        "useful_s": useful,
        "lost_s": {cause: None if cause in unknown else seconds for cause, seconds in lost.items()},
        "unknown": sorted(set(unknown.values())),
        "failures": sum(counted.values()) / n,
        "failures_by_class": {source.name: counted[i] / n for i, source in enumerate(job.sources)},
        "stops": sum(outcome.stops for outcome in outcomes) / n,
        "checkpoints": sum(outcome.checkpoints for outcome in outcomes) / n,
        "mtbf_s": mtbf_of(job.sources, job.horizon),
        **intervals(scenario, job),
        "spares_availability": spares_availability(scenario, job),
        "healthy_step_s": to_seconds(steps.healthy.time),
        "states": len(steps.known),
        **bill_of_weeks(steps, job, outcomes),
    }


def share(outcome: Replication, job: JobSpec, causes: Sequence[str] = (USEFUL,)) -> float:
    """The share of the wall time in some entries of the ledger."""
    return sum(outcome.ledger[cause] for cause in causes) / job.horizon


def _ledger(job: JobSpec, outcomes: Sequence[Replication]) -> tuple[float, dict[str, float]]:
    """Mean seconds; lost times are rounded to the last digit of the horizon, so that all sum to it in any order."""
    horizon, n = to_seconds(job.horizon), len(outcomes)
    digit = math.ulp(horizon)
    means = {cause: sum(one.ledger[cause] for one in outcomes) / n / PICOSECONDS_PER_SECOND for cause in LOST}
    lost = {cause: round(seconds / digit) * digit for cause, seconds in means.items()}
    return horizon - math.fsum(lost.values()), lost


def confidence(values: Sequence[float]) -> list[float] | None:
    """The 95 % confidence interval of the mean, by Student's t; None for fewer than four values."""
    if len(values) < FEWEST:
        return None
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return [mean - half, mean + half]


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, good to 0.2 % from 3 degrees of freedom on.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def intervals(scenario: Scenario, job: JobSpec) -> dict[str, Any]:
    """The interval between checkpoints, and the best ones for the cost of one, in seconds; None where there is none."""
    checkpoint, mtbf = faults_of(scenario).checkpoint, mtbf_of(job.sources, job.horizon)
    every = None if checkpoint is None or job.saving.every is None else to_seconds(job.saving.every)
    cost = float(checkpoint.stop) if checkpoint else 0.0
    best: Mapping[str, float] | None = None
    if cost and mtbf:
        best = {"young": young(cost, mtbf), "daly": daly(cost, mtbf), "exact": best_interval(cost, mtbf)}
    return {"checkpoint_interval_s": every, "best_interval_s": best}


def spares_availability(scenario: Scenario, job: JobSpec) -> float | None:
    """The probability that there are enough spares, by the binomial distribution.

    None unless all failures that take down a node take down a single one, at a constant rate, with one repair time.
    """
    spares = faults_of(scenario).spares
    takers = [source for source in job.sources if source.stops and any(source.parts)]
    plain = all(source.shape == 1 and source.mean for source in takers)
    alone = all(len(places) <= 1 for source in takers for places in source.parts)
    if spares is None or not takers or not plain or not alone or len({source.repair for source in takers}) != 1:
        return None
    nodes, repair = len(job.replicas), takers[0].repair or 0
    mtbf = nodes / sum(source.rate(job.horizon) for source in takers)
    return at_most(spares.nodes, nodes + spares.nodes, share_down(mtbf, to_seconds(repair)))


def share_down(mtbf: float, repair: float) -> float:
    """The share of time in which a node is being repaired."""
    return repair / (repair + mtbf)


def at_most(down: int, nodes: int, share: float) -> float:
    """The probability that at most `down` of independent nodes are down: P(Binomial(nodes, share) ≤ down)."""
    if share == 0:
        return 1.0
    each = math.log(share), math.log1p(-share)
    ways = (math.lgamma(nodes + 1) - math.lgamma(k + 1) - math.lgamma(nodes - k + 1) for k in range(nodes + 1))
    return math.fsum(
        math.exp(way + k * each[0] + (nodes - k) * each[1]) for k, way in zip(range(down + 1), ways, strict=False)
    )


def warnings_of(scenario: Scenario, job: JobSpec) -> list[str]:
    """Warnings about values that are possible but hardly intended, one line each."""
    mtbf, saving = mtbf_of(job.sources, job.horizon), job.saving
    takes = to_seconds(saving.stop + saving.write)
    if mtbf is None or not saving.ever or takes <= mtbf:
        return []
    longer = f"one takes {takes:g} s, longer than the mean time between failures, {mtbf:.4g} s"
    return [f"{scenario.name}: faults.checkpoint: {longer}"]


def goodput_columns(steps: Steps) -> dict[str, Any]:
    """The summary of the weeks of a scenario with `faults`, as columns that are added to a sweep.

    Raises:
        HybridDesError: it cannot be simulated.
    """
    job, count = job_of(steps.scenario), faults_of(steps.scenario).replications
    return summary(steps, job, replicate(job, steps, range(count)))


def bill_of_weeks(steps: Steps, job: JobSpec, outcomes: Sequence[Replication]) -> dict[str, Any]:
    """The summary's `bill`; nothing without `train`, nor if no step is ever kept: such a training has no end."""
    scenario, wall = steps.scenario, job.horizon * len(outcomes)
    useful, again = (sum(one.ledger[cause] for one in outcomes) for cause in (USEFUL, "rework"))
    if scenario.train is None or not useful:
        return {}
    step = Fraction(steps.healthy.useful * wall, useful * PICOSECONDS_PER_SECOND)
    busy = steps.busy * Fraction(useful + again, wall)
    return {"bill": bill(scenario, step, busy, spares=job.spares, assumes=_assumptions(steps, job))}


def _assumptions(steps: Steps, job: JobSpec) -> list[str]:
    """What is taken for granted about time and spares."""
    faults, days = faults_of(steps.scenario), to_seconds(job.horizon) / 86400
    count = f"{faults.replications:,} replication{'s' if faults.replications > 1 else ''}"
    said = [f"goodput stays that of {days:.4g} days in {count}, restarts included; no evaluations"]
    if unknown := sorted(set(unknown_causes(steps.scenario).values())):
        said.append(f"what {', '.join(unknown)} would state is taken as zero, so the cost is a lower bound")
    if job.spares:
        said.append(f"{job.spares:,} spare node{'s' if job.spares > 1 else ''} held all the time, idle")
    if steps.scenario.power is not None:
        said.append("GPUs compute in kept and repeated steps as in a step without failures, and wait all other time")
    return said
