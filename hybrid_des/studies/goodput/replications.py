"""The job of a scenario with `faults`, and its replications."""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from hybrid_des.errors import UsageError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.faults import NEVER, OPTIMAL, Checkpoint
from hybrid_des.studies.goodput.failure_sources import Source, faults_of, sources_of
from hybrid_des.studies.goodput.failures import history
from hybrid_des.studies.goodput.intervals import best_interval
from hybrid_des.studies.goodput.process import JobSpec, RenewalProcess, Replication
from hybrid_des.studies.goodput.states import Steps, gpu_stages_of, replicas_of, stages_of
from hybrid_des.studies.goodput.work import Saving
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_picoseconds

MOST_FAILURES = 10**6  # expected in all replications


EVERY_STEP = Saving(steps=1)  # if nothing is known about checkpoints, no work is lost


def job_of(scenario: Scenario) -> JobSpec:
    """The job of a scenario.

    Raises:
        UsageError: it has no `faults`, or more failures than can be simulated.
    """
    faults = faults_of(scenario)
    horizon, sources = to_picoseconds(faults.horizon), sources_of(scenario)
    expected = expected_failures(scenario, sources)
    if expected > MOST_FAILURES:
        message = f"{expected:.3g} failures in all replications are more than can be simulated (at most 1e6)"
        raise UsageError(f"{scenario.name}: faults: {message}")
    stops_nodes = faults.spares is not None
    return JobSpec(
        horizon,
        sources,
        replicas_of(scenario),
        stages_of(scenario),
        gpu_stages_of(scenario),
        spares=faults.spares.nodes if faults.spares else 0,
        replaced=stops_nodes,
        saving=saving_of(faults.checkpoint, mtbf_of(sources, horizon)),
        in_memory=faults.checkpoint is not None and faults.checkpoint.mode == "memory",
        detect=to_picoseconds(faults.detect or 0),
        swap=to_picoseconds((faults.spares and faults.spares.swap) or 0),
        restart=to_picoseconds(faults.restart.time if faults.restart else 0),
        can_fail=faults.restart is None or faults.restart.can_fail,
        fewest=faults.elastic.min_replicas if faults.elastic else None,
    )


def expected_failures(scenario: Scenario, sources: Iterable[Source]) -> float:
    """Expected failures in all replications, including those of spares."""
    faults = faults_of(scenario)
    seconds, each = float(faults.horizon), 0.0
    for source in sources:
        parts = len(source.parts) + len(source.spare_parts)
        each += len(source.times) if source.mean is None else parts * seconds / source.mean
    return each * faults.replications


def mtbf_of(sources: Iterable[Source], horizon: int) -> float | None:
    """Mean time in seconds between failures that stop the job; None if there are none."""
    rate = sum(source.rate(horizon) for source in sources if source.stops)
    return 1 / rate if rate else None


def saving_of(checkpoint: Checkpoint | None, mtbf: float | None) -> Saving:
    """When work is saved; `optimal` is the exact best interval for the time that a checkpoint stops the job."""
    if checkpoint is None:
        return EVERY_STEP
    if checkpoint.every == NEVER or (checkpoint.every == OPTIMAL and mtbf is None):
        return Saving()
    stop, write = to_picoseconds(checkpoint.stop), to_picoseconds(checkpoint.write or 0)
    every: Fraction | str = checkpoint.every
    if every == OPTIMAL and mtbf is not None:
        every = Fraction(best_interval(float(checkpoint.stop), mtbf))
    persist = checkpoint.persist
    return Saving(
        None if isinstance(every, str) else to_picoseconds(every),
        checkpoint.steps,
        stop,
        write,
        to_picoseconds(persist.every) if persist else None,
        to_picoseconds(persist.write) if persist else 0,
    )


def with_interval(job: JobSpec, seconds: float) -> JobSpec:
    """The same job with another time between checkpoints."""
    every = max(round(seconds * PICOSECONDS_PER_SECOND), 1)
    return replace(job, saving=replace(job.saving, every=every, steps=None))


def replicate(job: JobSpec, steps: Steps, numbers: Iterable[int]) -> list[Replication]:
    """Run replications by their numbers, which with the scenario's seed select their random numbers.

    Raises:
        HybridDesError: the step of a state cannot be simulated.
    """
    seed = steps.scenario.seed
    return [RenewalProcess(job, history(job.sources, job.horizon, seed, number), steps).run() for number in numbers]
