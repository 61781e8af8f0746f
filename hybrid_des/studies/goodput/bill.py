"""The bill of a whole training of wall time: steps at the goodput of the weeks, failures and restarts included.

    wall time per useful step   time of a step with all replicas at full speed / goodput
    computing                   that step's share, over kept and repeated steps; in all other time GPUs wait

Spare nodes are held, and paid, all the time; they wait.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hybrid_des.analysis.bill import bill
from hybrid_des.studies.goodput.failure_sources import faults_of
from hybrid_des.studies.goodput.ledger import USEFUL, unknown_causes
from hybrid_des.studies.goodput.process import JobSpec, Replication
from hybrid_des.studies.goodput.states import Steps
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_seconds


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
        said.append(f"what {', '.join(unknown)} would state takes no time, so it is the least bill")
    if job.spares:
        said.append(f"{job.spares:,} spare node{'s' if job.spares > 1 else ''} held all the time, idle")
    if steps.scenario.power is not None:
        said.append("GPUs compute in kept and repeated steps as in a step without failures, and wait all other time")
    return said
