"""The plain run of a scenario: all of its ranks, every message, event by event.

`run_jobs` simulates several scenarios together, each on its own GPUs of one fabric.
"""

import gc
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from hybrid_des.cluster.fabric import placed
from hybrid_des.cluster.transport import Links
from hybrid_des.engine.causes import Causes
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import move
from hybrid_des.errors import DeadlockError, OutOfMemoryError, UsageError
from hybrid_des.planning.links_used import links_used
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.program_table import table_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.background import Traffic, refuse_starved
from hybrid_des.simulation.gpu import Gpu
from hybrid_des.simulation.jobs import PLAINLY, How, Job, Network, network_of, started
from hybrid_des.simulation.memory import memory_parts, misfit, worst_peak
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.repetition import FurtherSteps, Repetition
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.simulation.watch import BudgetSpentError, TooLateError, Watch
from hybrid_des.units import format_bytes

NOTHING: Mapping[str, int] = MappingProxyType({})
CONCURRENT = ("fair", "priority-fair")  # models under which a message occupies all links of its route together


@contextmanager
def reduced_gc() -> Iterator[None]:
    """Collect reference cycles rarely: a run creates almost none (saves 7 to 13 % of its time)."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the threshold is process-wide: concurrent runs could restore a wrong one
        return
    before = gc.get_threshold()
    gc.set_threshold(before[0] and 1_000_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def simulated(
    scenario: Scenario,
    parts: Parts,
    network: Network | None = None,
    how: How = PLAINLY,
    watch: Watch | None = None,
) -> Run:
    """Simulate a scenario that has been planned.

    Args:
        scenario: what to simulate.
        parts: its parts.
        network: carries its messages; default: that of all ranks.
        how: how it is simulated.
        watch: shows the progress of the run, and ends it when its budget is spent.

    Raises:
        DeadlockError: the plan or a collective deadlocks.
        SimulationError: simulated time exceeds 64 bits, or a message is never received.
        UnfinishedError: the budget of the watch is spent.
        TooLateError: it does not end before the latest time of the watch.
        OutOfMemoryError: a GPU exceeds its memory, under `on_oom: error`.
    """
    began = time.perf_counter()
    job = started(scenario, parts, network, how)
    traffic = _traffic_of(scenario, job.transport.links) if scenario.background else None
    if traffic:
        refuse_starved(scenario, links_used(scenario, parts), traffic)
        traffic.begin(Running({0: job}, 1))
    carry_out(job.transport.env, {0: job}, watch)
    check_memory(job)
    end = int(job.recorder.steps.table()["end"].max()) if traffic else job.transport.env.now
    return run_of(job, end, began, how.trace, traffic.carried() if traffic else {})


def _traffic_of(scenario: Scenario, links: Links) -> Traffic:
    """The background traffic of a scenario, on links of its own."""
    whole = scenario.placed(range(scenario.cluster.gpus))
    return Traffic(scenario.background, whole.cluster, links, fabric_of(whole))


class Running:
    """Whether some of several jobs are still to start or have processes that are alive; called often."""

    def __init__(self, jobs: Mapping[int, Job], count: int) -> None:
        self._jobs, self._left = jobs, deque(range(count))
        self._processes: list[Any] = []

    def __call__(self) -> bool:
        """Whether any is."""
        while True:
            while self._processes and not self._processes[-1].is_alive:
                self._processes.pop()
            if self._processes or not self._left:
                return bool(self._processes)
            if self._left[0] not in self._jobs:
                return True
            job = self._jobs[self._left.popleft()]
            self._processes += [process for gpu in (*job.gpus, *job.servers) for process in gpu.processes]


def run_of(
    job: Job, duration: int, began: float, trace: Causes | None = None, others: Mapping[str, int] = NOTHING
) -> Run:
    """The outcome of a simulation that began at second `began` and lasted for these simulated picoseconds.

    `others` are the bytes of background traffic by link.
    """
    scenario, parts, recorder, transport, gpus, _, fold = job
    transport.check_empty()
    layout, training = scenario.parallel.layout, parts.training
    carried = Counter(transport.carried()) + Counter(others) if job.reads_links else {}
    table = table_of([program for _, program in sorted(job.programs.items(), key=itemgetter(0))])
    fair = scenario.cluster.sharing in CONCURRENT
    sent, replayed = transport.sent(), parts.replayed
    totals: dict[str, Any] = {key: total + int(scenario.steps * replayed.get(key, 0)) for key, total in sent.items()}
    return Run(
        scenario,
        parts,
        Timeline.of(
            recorder,
            table,
            layout,
            fold.order if fold else 1,
            fair,
            whole=trace is not None,
            latencies_vary=any(not slow.permanent and slow.latency for slow in scenario.slow),
        ),
        **totals,
        duration=duration,
        ranks=[gpu.rank for gpu in gpus],
        peak_chunks=[gpu.memory.peak_activations for gpu in gpus],
        peak_memory=[gpu.memory.peak_bytes for gpu in gpus],
        slowed=None if parts.slowdown is None else job.slowed,
        events=transport.env.events,
        wall_s=time.perf_counter() - began,
        numerics=training.progress.summary() if training else None,
        weights={rank: worker.weights for rank, worker in parts.workers.items()} if training else None,
        trace=trace,
        carried=carried,
        fold=fold,
        any_order=transport.any_order,
    )


def carry_out(env: Environment, jobs: Mapping[int, Job], watch: Watch | None) -> None:
    """Run until no event is left; processes that are still alive are deadlocked."""

    def under_way() -> list[Gpu]:
        gpus = (gpu for job in jobs.values() for gpu in (*job.gpus, *job.servers))
        return [gpu for gpu in gpus if any(process.is_alive for process in gpu.processes)]

    def beat() -> None:
        for rows in (rows for job in jobs.values() for rows in job.recorder.growing):
            rows.spill()
        if watch is not None:
            watch.look(sum(len(job.recorder.ops) for job in jobs.values()), ops, env.events)
            if watch.ends_by(env.now, watched) >= watch.latest and under_way():
                raise TooLateError(f"not done before {watch.latest} picoseconds")

    ops = 0 if watch is None else sum(job.ops for job in jobs.values())
    watched = [] if watch is None else watch.watched(gpu for job in jobs.values() for gpu in job.gpus)
    try:
        env.run(beat=beat)
    except BudgetSpentError:
        assert watch is not None
        raise watch.unfinished(jobs[0]) from None
    if stuck := under_way():
        raise DeadlockError("\n".join(["deadlock: no event is left", *(gpu.where() for gpu in stuck)]))


def check_memory(job: Job) -> None:
    """Check that a job fits, under `on_oom: error`.

    Raises:
        OutOfMemoryError: a GPU exceeds its memory.
    """
    scenario, gpus = job.scenario, job.gpus
    if scenario.on_oom != "error":
        return
    layout, ranks = scenario.parallel.layout, [gpu.rank for gpu in gpus]
    peak = worst_peak(ranks, [gpu.memory.peak_bytes for gpu in gpus], scenario.cluster.gpus_of(ranks))
    if not peak.fits:
        what = f"holds {format_bytes(peak.held)}; its GPU ({peak.gpu.name}) has {format_bytes(peak.gpu.memory)}"
        held = memory_parts(
            job.parts.costs, layout.coordinate(peak.rank, "pipeline"), peak.held, layout.lane(peak.rank)
        )
        why = f"does not fit: {misfit(held, peak.gpu.memory)}"
        raise OutOfMemoryError(f"out of memory: rank {peak.rank} {what}; {why}")


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
    planned = [
        one.parts or parts_of(one.scenario, fabric=placed(links.fabric, one.scenario.cluster.placement)) for one in jobs
    ]
    repetition, running = Repetition(env, len(jobs)), dict[int, Job]()

    def begin(number: int, _: object = None) -> None:
        (scenario, _, _, trace, made_by), parts = jobs[number], planned[number]
        how = How(trace=trace)
        network = made_by(scenario, parts, links, how)
        ranks = len(network.fold.ranks) if network.fold else scenario.parallel.ranks
        repeats = not (parts.training or parts.durations)
        further = FurtherSteps(repetition, number, ranks, scenario.steps, repeats=repeats, trace=trace)
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


def _outcome(job: Job, asked: JobRequest, began: float) -> Run:
    """The run of a job, counted from its start, with the number of steps that it took."""
    check_memory(job)
    move(job.recorder, asked.trace, -asked.start)
    rows = job.recorder.steps.table()
    job = job._replace(scenario=job.scenario.model_copy(update={"steps": int(rows["step"].max()) + 1}))
    return run_of(job, int(rows["end"].max()), began, asked.trace)
