"""Small jobs with failures: one GPU per node, a step of a chosen length; and what theory expects of them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.studies.goodput.process import JobSpec, Replication, job_of, replicate
from hybrid_des.studies.goodput.states import Steps

S = 10**12  # picoseconds


def weeks(step: Any = 10, *, p: int = 1, d: int = 1, m: int = 1, seed: int = 0, **faults: Any) -> Scenario:
    """A scenario of p × d nodes with one GPU each, whose step of one micro-batch takes `step` seconds per stage.

    Args:
        step: seconds of forward and backward together.
        p, d, m: pipeline ranks, replicas, micro-batches per replica.
        seed: of the scenario.
        faults: the section, key by key.
    """
    return scenario_from(
        {
            "name": "weeks",
            "seed": seed,
            "cluster": {"nodes": p * d, "gpus_per_node": 1},
            "parallel": {"pipeline": p, "data": d},
            "schedule": {"kind": "1f1b", "microbatches": m},
            "workload": {"forward": f"{step / 2}", "backward": f"{step / 2}"},
            "faults": faults,
        }
    )


def lived(scenario: Scenario, numbers: Iterable[int] = (0,)) -> tuple[JobSpec, list[Replication]]:
    """The job of a scenario, and its replications."""
    job = job_of(scenario)
    return job, replicate(job, Steps(scenario), numbers)


def seconds(replication: Replication) -> Mapping[str, float]:
    """The ledger in seconds, without causes that took no time."""
    return {cause: time / S for cause, time in replication.ledger.items() if time}


def within(mean: float, expected: float, deviation: float, count: int) -> bool:
    """Whether a mean of independent values is within four standard errors."""
    return abs(mean - expected) <= 4 * deviation / count**0.5


# Closed forms: L = τ + C is work and its checkpoint, M the mean time between failures, λ = 1/M, R a restart.


def segment_time(length: float, restart: float, mtbf: float, can_fail: bool = True) -> float:
    """Expected time to complete a segment: e^(λR)·(e^(λL) − 1)/λ, or (1/λ + R)·(e^(λL) − 1) if restarts cannot fail.

    Daly (2006), equations 12 and 13.
    """
    lengthened = math.exp(restart / mtbf) * mtbf if can_fail else mtbf + restart
    return lengthened * math.expm1(length / mtbf)


def expected_goodput(interval: float, cost: float, restart: float, mtbf: float, can_fail: bool = True) -> float:
    """Work over wall time with synchronous checkpoints: τ/E[segment]."""
    return interval / segment_time(interval + cost, restart, mtbf, can_fail)
