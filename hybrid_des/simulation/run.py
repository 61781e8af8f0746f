"""Simulation of a scenario."""

import gc
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from typing import Any

from hybrid_des.engine.causes import Causes, TracedEnvironment, traced
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import CHUNK, Recorder
from hybrid_des.errors import DeadlockError, OutOfMemoryError
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.orbits import Fold, root_of
from hybrid_des.gradients.reducer import Server
from hybrid_des.network.endpoint import Endpoint
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.traced import TracedTransport
from hybrid_des.network.transport import Transport
from hybrid_des.numerics.training import Training
from hybrid_des.numerics.worker import Worker
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.arithmetic import RealTraining, SizesOnly
from hybrid_des.simulation.changes import Retime, retimed
from hybrid_des.simulation.exchanges import Exchangers
from hybrid_des.simulation.folds import check_size, folded_transport, folds_of, refused
from hybrid_des.simulation.gpu import Gpu, Job
from hybrid_des.simulation.meeting import barrier_of, meetings_of
from hybrid_des.simulation.memory import MemoryLedger, gpus_of, memory_parts, misfit, nodes_of, worst_peak
from hybrid_des.simulation.pace import Pace
from hybrid_des.simulation.perturbing import Perturbation, conditions_of
from hybrid_des.simulation.planner import Parts, parts_of
from hybrid_des.simulation.tensor_traffic import TensorTraffic
from hybrid_des.simulation.varying import VaryingGpu, in_parts
from hybrid_des.timeline import Timeline
from hybrid_des.units import format_bytes
from hybrid_des.workload.costs import Costs

UNCONTENDED = "uncontended"  # a sharing that only runs to compare with have


@dataclass(frozen=True)
class Run:
    """The outcome of a simulation; `result` makes tables, pictures and files from it.

    Attributes:
        timeline: the recorded rows, as typed columns.
        messages, bytes_pipeline, bytes_gradients, bytes_scales, bytes_parameters, bytes_tensor, bytes_context,
            bytes_expert: totals over all steps; replayed collectives of these axes send bytes, but no messages.
        duration: simulated picoseconds over all steps.
        ranks: the simulated global ranks.
        peak_activations, peak_memory: one entry for each of them: whole-rank micro-batches, bytes.
        events: SimPy events processed.
        wall_s: real seconds.
        algorithm: the all-reduce used; for `auto` the chosen one.
        numerics: the summary's keys on training, with numerics.
        weights: rank → stage → arrays, with numerics.
        fabric: the wiring.
        trace: what released each op and message, if that was asked for.
        traffic: how collectives of layers were simulated.
        tensor_delay: picoseconds by which a step may be longer than with replayed collectives.
        fold: for which other ranks the simulated ones stand; None if all are simulated.
        unfolded: why replicas do not stand for others, where they were to.
    """

    scenario: Scenario
    plan: Plan
    costs: Costs
    timeline: Timeline
    messages: int
    bytes_pipeline: int
    bytes_gradients: int
    bytes_scales: int
    bytes_parameters: int
    duration: int
    ranks: Sequence[int]
    peak_activations: list[Fraction]
    peak_memory: list[int]
    events: int
    wall_s: float
    algorithm: str = "ring"
    numerics: dict[str, Any] | None = None
    weights: dict[int, dict[int, list[Any]]] | None = None
    fabric: Fabric | None = None
    trace: Causes | None = None
    bytes_tensor: int = 0
    bytes_context: int = 0
    bytes_expert: int = 0
    traffic: TensorTraffic = field(default_factory=TensorTraffic)
    tensor_delay: int = 0
    fold: Fold | None = None
    unfolded: str = ""


@contextmanager
def few_collections() -> Iterator[None]:
    """Collect reference cycles rarely: a run creates almost none (saves 7 to 13 % of its time)."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the threshold is process-wide: concurrent runs could restore a wrong one
        return
    before = gc.get_threshold()
    gc.set_threshold(before[0] and 200_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@few_collections()
def run(
    scenario: Scenario,
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    training: Training | None = None,
    *,
    retime: Retime | None = None,
    trace: Causes | None = None,
    parts: Parts | None = None,
) -> Run:
    """Simulate a scenario.

    Args:
        scenario: what to simulate.
        plan: a user-defined order, instead of the schedule's.
        fabric: a user-defined wiring, instead of the topology's; what is slow for good is expected in it (`slowed`).
        training: a training, such as a self-checking one, instead of the scenario's numerics.
        retime: other durations of ops.
        trace: where causes are recorded, for a run that is explained.
        parts: the parts of a scenario without numerics that differs in seed, jitter, steps and
            what is slow for an interval.

    Raises:
        PlanError: the plan is incomplete.
        DeadlockError: the plan or a collective deadlocks.
        SimulationError: simulated time exceeds 64 bits, or a message is never received.
        OutOfMemoryError: a GPU exceeds its memory, under `on_oom: error`.
        Refusal: the schedule or topology does not support these sizes.
    """
    started = time.perf_counter()
    parts = parts or parts_of(scenario, plan, fabric, training)
    reasons: list[str] = []
    outcome, fold = None, None
    every = trace is not None or retime is not None  # what is explained, or changed rank by rank, is simulated whole
    for fold in () if every else folds_of(scenario, parts, reasons):
        check_size(scenario, fold, reasons)
        try:
            outcome = _simulated(scenario, parts, fold)
            break
        except FoldRefusal as refusal:
            refused(scenario, fold, refusal, reasons)
    if outcome is None:
        check_size(scenario, None, reasons)
        outcome, fold = _simulated(scenario, parts, None, trace, retime), None
    env, recorder, transport, gpus = outcome
    _check_memory(scenario, parts, gpus)
    layout = scenario.parallel.layout
    whole = [CHUNK * parts.plan.visits[layout.coordinate(gpu.rank, "pipeline")] for gpu in gpus]
    return Run(
        scenario,
        parts.plan,
        parts.costs,
        Timeline.of(recorder, parts.plan, layout, fold.order if fold else 1),
        **_sent(parts, transport, scenario.steps),
        duration=env.now,
        ranks=[gpu.rank for gpu in gpus],
        peak_activations=[Fraction(gpu.memory.peak_activations, n) for gpu, n in zip(gpus, whole, strict=True)],
        peak_memory=[gpu.memory.peak_bytes for gpu in gpus],
        events=env.events,
        wall_s=time.perf_counter() - started,
        algorithm=parts.reductions.algorithm,
        numerics=parts.training.progress.summary() if parts.training else None,
        weights={rank: worker.weights for rank, worker in parts.workers.items()} if parts.training else None,
        fabric=parts.fabric,
        trace=trace,
        traffic=parts.traffic,
        tensor_delay=parts.traffic.delay(parts.fabric, transport.carried, scenario.steps),
        fold=fold,
        unfolded=reasons[-1] if reasons and not (fold and fold.kept("data") < layout.sizes["data"]) else "",
    )


def _simulated(
    scenario: Scenario,
    parts: Parts,
    fold: Fold | None,
    trace: Causes | None = None,
    retime: Retime | None = None,
) -> tuple[Environment, Recorder, Transport, list[Gpu]]:
    """Simulate all ranks, or those that a fold keeps."""
    recorder = Recorder(messages=scenario.record == "all")
    transport = _transport(scenario, parts, recorder, fold, trace)
    gpus = _gpus(scenario, parts, transport, recorder, fold, retime)
    servers = parts.reductions.servers(transport, scenario.steps, _lengths(parts.workers))
    _carry_out(transport.env, [*gpus, *servers])
    transport.check_empty()
    return transport.env, recorder, transport, gpus


def _sent(parts: Parts, transport: Transport, steps: int) -> dict[str, int]:
    """What was sent, by messages or in replayed collectives."""
    replayed = {f"bytes_{axis}": size for axis, size in parts.traffic.replayed_bytes.items()}
    replayed |= parts.lowering.carried(0)
    return {key: total + steps * replayed.get(key, 0) for key, total in transport.sent().items()}


def _transport(
    scenario: Scenario, parts: Parts, recorder: Recorder, fold: Fold | None, trace: Causes | None
) -> Transport:
    """The network, in an environment of its own."""
    if fold is not None:
        return folded_transport(scenario, parts, fold, recorder)
    sharing, receipts = scenario.cluster.sharing, parts.lowering.blocking
    conditions = {} if sharing == UNCONTENDED else conditions_of(scenario.slow, parts.fabric)
    if trace is None:
        return Transport(Environment(), parts.fabric, sharing, recorder, receipts, conditions)
    env = TracedEnvironment(trace)
    return TracedTransport(env, parts.fabric, sharing, traced(recorder, trace), receipts, conditions)


def _gpus(
    scenario: Scenario,
    parts: Parts,
    transport: Transport,
    recorder: Recorder,
    fold: Fold | None,
    retime: Retime | None,
) -> list[Gpu]:
    env, layout = transport.env, scenario.parallel.layout
    ranks: Sequence[int] = fold.ranks if fold else range(layout.ranks)
    barrier = barrier_of(env, len(ranks)) if scenario.barrier else None
    job = Job(env, recorder, scenario.steps, barrier)
    lower = cache(parts.lowering.lower)
    layered = parts.lowering.layered
    exchangers = Exchangers(transport, parts.fabric, parts.traffic.messages)
    stages = cache(lambda place: {parts.plan.stage_of[place, chunk]: chunk for chunk in parts.plan.chunks_of(place)})
    meetings = meetings_of(env, layered.traffic.groups, fold) if layered else {}
    memberships = parts.reductions.of(transport, ranks)
    stride, pipeline = layout.strides["pipeline"], parts.plan.pipeline
    perturbation = None
    if scenario.slow or scenario.jitter or parts.durations:
        perturbation = Perturbation(scenario, parts.plan, parts.costs, parts.durations)
    vary = cache(lambda place, pace: in_parts(lower(place, pace)))
    gpus = []
    for rank, node in zip(ranks, nodes_of(scenario.cluster, ranks), strict=True):
        place = layout.coordinate(rank, "pipeline")
        first = rank - place * stride
        usual, varying = Pace(node.speed), None
        if perturbation is not None:
            usual, varying = Pace(node.speed * perturbation.speed(rank)), perturbation.pace(rank)
        make = Gpu if varying is None else partial(VaryingGpu, pace=varying)
        program = lower(place, usual) if varying is None or retime else vary(place, usual)
        if retime:
            program = retimed(program, rank, retime)
            program = program if varying is None else in_parts(program)
        if isinstance(env, LineageEnvironment):
            env.begin(root_of(rank))
        gpus.append(
            make(
                job,
                Endpoint(transport, rank, range(first, first + pipeline * stride, stride)),
                program,
                MemoryLedger(rank, parts.costs.resident[place], recorder.memory),
                memberships[rank],
                RealTraining(parts.workers[rank]) if parts.training else SizesOnly(),
                meetings=meetings.get(rank, ()),
                exchangers=exchangers.of(rank, stages(place)),
            )
        )
    return gpus


def _carry_out(env: Environment, workers: Sequence[Gpu | Server]) -> None:
    """Run until the event queue is empty; processes that are still alive then are deadlocked."""
    env.run()
    stuck = [worker for worker in workers if any(process.is_alive for process in worker.processes)]
    if stuck:
        raise DeadlockError("\n".join(["deadlock: no event is left", *(worker.where() for worker in stuck)]))


def _lengths(workers: Mapping[int, Worker]) -> dict[int, int]:
    """With numerics, the number of elements of each stage's gradient."""
    return {stage: state.gradient.size for worker in workers.values() for stage, state in worker.stages.items()}


def _check_memory(scenario: Scenario, parts: Parts, gpus: Sequence[Gpu]) -> None:
    if scenario.on_oom != "error":
        return
    layout, ranks = scenario.parallel.layout, [gpu.rank for gpu in gpus]
    peak = worst_peak(ranks, [gpu.memory.peak_bytes for gpu in gpus], gpus_of(scenario.cluster, ranks))
    if not peak.fits:
        sizes = f"holds {format_bytes(peak.held)}; its GPU ({peak.gpu.name}) has {format_bytes(peak.gpu.memory)}"
        held = memory_parts(parts.costs, layout.coordinate(peak.rank, "pipeline"), peak.held)
        why = f"does not fit: {misfit(held, peak.gpu.memory)}"
        raise OutOfMemoryError(f"out of memory: rank {peak.rank} {sizes}; {why}")
