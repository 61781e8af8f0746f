"""Several scenarios simulated together, each on its own GPUs of one fabric."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from hybrid_des.cluster.fabric import Fabric, placed
from hybrid_des.cluster.transport import Links
from hybrid_des.engine.causes import Causes
from hybrid_des.engine.recorder import move
from hybrid_des.errors import UsageError
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.background import Traffic
from hybrid_des.simulation.jobs import How, Job, Network, network_of, started
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.repetition import Repetition
from hybrid_des.simulation.run import Running, carry_out, check_memory, reduced_gc, run_of
from hybrid_des.simulation.watch import Watch

NetworkOf = Callable[[Scenario, Parts, Links, How], Network]


class JobRequest(NamedTuple):
    """A job to simulate with others.

    Attributes:
        scenario: what it does, on its own GPUs (`Scenario.placed`).
        start: when it starts, in picoseconds; the times of its run count from there.
        parts: its parts, if they did not come from planning it on the common links.
        trace: records its causes.
        network: makes what carries its messages on the common links.
    """

    scenario: Scenario
    start: int = 0
    parts: Parts | None = None
    trace: Causes | None = None
    network: NetworkOf = network_of


@reduced_gc()
def run_jobs(
    jobs: Sequence[JobRequest],
    links: Links,
    *,
    repeat: bool = False,
    traffic: Traffic | None = None,
    most_events: float = inf,
) -> list[Run]:
    """Simulate scenarios together on the links of one fabric.

    Collectives that a scenario replays, and an algorithm that it leaves to `auto`, are those of the job alone: exact if
    no link is on the routes of several jobs.

    Args:
        jobs: what to simulate.
        links: links of a new environment.
        repeat: whether jobs that have done their steps repeat them until all have; those with `numerics` or measured
            `durations` do not. The scenario of a run has the number of steps that it took.
        traffic: flows beside the jobs.
        most_events: of all jobs; some may wait for ever, or nearly, for more urgent ones that repeat their steps.

    Raises:
        UsageError: two jobs have a GPU in common.
        TooManyEventsError: they take more events.
        DeadlockError, SimulationError, OutOfMemoryError, PlanError, Refusal: as in `run`.
    """
    began, env = time.perf_counter(), links.env
    used = Counter(gpu for job in jobs for gpu in job.scenario.cluster.placement[: job.scenario.parallel.ranks])
    if twice := [gpu for gpu, count in used.items() if count > 1]:
        raise UsageError(f"jobs: GPU {min(twice)} is given to two jobs")
    planned = [one.parts or parts_of(one.scenario, fabric=_view(links, one.scenario)) for one in jobs]
    repetition, running = Repetition(env, len(jobs)), dict[int, Job]()

    def begin(number: int, _: object = None) -> None:
        (scenario, _, _, trace, made_by), parts = jobs[number], planned[number]
        how = How(trace=trace)
        network = made_by(scenario, parts, links, how)
        ranks = len(network.fold.ranks) if network.fold else scenario.parallel.ranks
        repeats = not (parts.training or parts.durations)
        further = repetition.job(number, ranks, scenario.steps, repeats=repeats, trace=trace)
        running[number] = started(scenario, parts, network, how, further if repeat else None)

    for number, job in enumerate(jobs):
        if job.start:
            env.at(job.start, (partial(begin, number),))
        else:
            begin(number)
    if traffic is not None:
        traffic.begin(Running(running, len(jobs)))
    carry_out(env, running, None if most_events == inf else Watch(most_events=most_events))
    return [_outcome(running[number], job, began) for number, job in enumerate(jobs)]


def _view(links: Links, scenario: Scenario) -> Fabric:
    """The fabric as a job's ranks see it."""
    return placed(links.fabric, scenario.cluster.placement)


def _outcome(job: Job, asked: JobRequest, began: float) -> Run:
    """The run of a job, counted from its start, with the number of steps that it took."""
    check_memory(job)
    move(job.recorder, asked.trace, -asked.start)
    rows = job.recorder.steps.table()
    job = job._replace(scenario=job.scenario.model_copy(update={"steps": int(rows["step"].max()) + 1}))
    return run_of(job, int(rows["end"].max()), began, asked.trace)
