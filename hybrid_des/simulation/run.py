"""From a scenario to a `Run`: the one file that knows everybody."""

from __future__ import annotations

import gc
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import DeadlockError, OutOfMemoryError, SimulationError
from hybrid_des.gradients.groups import Gradients
from hybrid_des.gradients.reducer import Server
from hybrid_des.network.endpoint import Endpoint
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.transport import Transport
from hybrid_des.numerics.training import Training
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.gpu import Barrier, Gpu, Job
from hybrid_des.simulation.lowering import lower
from hybrid_des.simulation.memory import MemoryLedger
from hybrid_des.simulation.planner import fabric_of as fabric_of
from hybrid_des.simulation.planner import plan_of
from hybrid_des.units import format_bytes
from hybrid_des.workload.costs import Costs, costs_of, rank_costs


@dataclass(frozen=True)
class Run:
    """What a simulation leaves behind; `result` makes tables, figures and files from it.

    Attributes:
        trace: the rows written down on the way.
        messages, bytes_pipeline, bytes_gradients, bytes_scales: over all steps.
        duration: picoseconds of simulated time, over all steps.
        peak_activations, peak_memory: one entry a GPU, by global rank: whole-rank micro-batches, bytes.
        events: SimPy events processed.
        wall_s: real seconds.
        algorithm: the collective that added gradients up; what `auto` chose.
        numerics: the summary's keys on training, with numerics.
        weights: rank → stage → arrays, with numerics.
    """

    scenario: Scenario
    plan: Plan
    costs: Costs
    trace: Recorder
    messages: int
    bytes_pipeline: int
    bytes_gradients: int
    bytes_scales: int
    duration: int
    peak_activations: list[Fraction]
    peak_memory: list[int]
    events: int
    wall_s: float
    algorithm: str = "ring"
    numerics: dict[str, Any] | None = None
    weights: dict[int, dict[int, list[Any]]] | None = None


@contextmanager
def few_collections() -> Iterator[None]:
    """Look for reference cycles seldom: what a run makes stays or goes by itself (7 to 13 % of the time of a run)."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the threshold is the whole process's: of several runs at once the last would put a wrong one back
        return
    before = gc.get_threshold()
    gc.set_threshold(before[0] and 200_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@few_collections()
def run(
    scenario: Scenario, plan: Plan | None = None, fabric: Fabric | None = None, training: Training | None = None
) -> Run:
    """Simulate a scenario.

    Args:
        scenario: what to simulate.
        plan: an order of one's own, instead of the schedule's.
        fabric: a wiring of one's own, instead of the topology's.
        training: a training of one's own, such as one that checks itself, instead of the scenario's numerics.

    Raises:
        PlanError: the plan is incomplete.
        DeadlockError: the plan, or a collective, waits in a circle.
        SimulationError: simulated time passes what 64 bits hold, or a message is never received.
        OutOfMemoryError: a GPU held more than its memory, under `on_oom: error`.
        Refusal: the schedule or topology does not exist for these sizes.
    """
    started = time.perf_counter()
    ranks = rank_costs(scenario)
    fabric = fabric or fabric_of(scenario)
    plan = plan or plan_of(scenario, ranks, fabric)
    plan.check()
    training = training or training_of(scenario, plan)
    costs = costs_of(ranks, plan, _counted(scenario, training))
    env = Environment()
    trace = Recorder(messages=scenario.record == "all")
    blocking = scenario.schedule.p2p == "blocking"
    network = Transport(env, fabric, scenario.cluster.sharing, trace, receipts=blocking)
    reduced = Gradients(scenario, plan, costs, fabric)
    gpus = _gpus(scenario, plan, costs, network, trace, reduced, training)
    servers = reduced.servers(network, scenario.steps, _lengths(gpus))
    _carry_out(env, [*gpus, *servers])
    network.check_empty()
    _check_memory(scenario, gpus)
    visits = [plan.visits[scenario.parallel.layout.coordinate(gpu.rank, "pipeline")] for gpu in gpus]
    return Run(
        scenario,
        plan,
        costs,
        trace,
        **network.sent(),
        duration=env.now,
        peak_activations=[Fraction(gpu.ledger.peak_activations, n) for gpu, n in zip(gpus, visits, strict=True)],
        peak_memory=[gpu.ledger.peak_bytes for gpu in gpus],
        events=next(env._eid),
        wall_s=time.perf_counter() - started,
        algorithm=reduced.algorithm,
        numerics=training.progress.summary() if training else None,
        weights={gpu.rank: gpu.worker.weights for gpu in gpus if gpu.worker} if training else None,
    )


def _carry_out(env: Environment, workers: Sequence[Gpu | Server]) -> None:
    """Let simulated time run until nothing happens any more; an empty queue with live processes is a deadlock."""
    try:
        env.run()
    except (OverflowError, struct.error):  # a row of the trace has no room for it
        raise SimulationError("simulated time passes 106 days, more than 64 bits of picoseconds hold") from None
    stuck = [worker for worker in workers if any(process.is_alive for process in worker.processes)]
    if stuck:
        raise DeadlockError("\n".join(["deadlock: nothing can happen any more", *(worker.where() for worker in stuck)]))


def training_of(scenario: Scenario, plan: Plan) -> Training | None:
    """The small model that is trained, where the scenario has one."""
    if scenario.numerics is None:
        return None
    return Training(scenario.numerics, plan, scenario.parallel.data, scenario.seed)


def _counted(scenario: Scenario, training: Training | None) -> Sequence[int] | None:
    """Parameters of each stage of the model that is trained, where the workload does not say how many there are."""
    return None if training is None or "parameters" in scenario.workload.model_fields_set else training.parameters


def _gpus(
    scenario: Scenario,
    plan: Plan,
    costs: Costs,
    network: Transport,
    trace: Recorder,
    gradients: Gradients,
    training: Training | None,
) -> list[Gpu]:
    parallel, layout = scenario.parallel, scenario.parallel.layout
    barrier = Barrier(network.env, parallel.ranks) if scenario.barrier else None
    blocking = scenario.schedule.p2p == "blocking"
    job = Job(network.env, trace, scenario.steps, scenario.gradients.overlap, blocking, barrier)
    program = cache(lambda place, speed: lower(plan, costs, place, gradients.buckets, speed))
    ranks_of = cache(lambda replica: [layout.rank(data=replica, pipeline=place) for place in range(parallel.pipeline)])
    gpus = []
    for rank, node in zip(range(parallel.ranks), scenario.cluster.each_gpu(), strict=False):
        replica, place = layout.coordinate(rank, "data"), layout.coordinate(rank, "pipeline")
        comm = Endpoint(network, rank)
        gpus.append(
            Gpu(
                job,
                rank,
                program(place, node.speed),
                ranks_of(replica),
                comm,
                MemoryLedger(rank, costs.resident[place], trace.memory),
                gradients.of(network, rank, [plan.stage_of[place, chunk] for chunk in plan.chunks_of(place)]),
                round(costs.ranks.optimizer[place] / node.speed),
                training.worker(rank, replica, place) if training else None,
            )
        )
    return gpus


def _lengths(gpus: Sequence[Gpu]) -> dict[int, int]:
    """How many numbers each stage's gradient has, with numerics."""
    return {
        reduction.stage: gpu.worker.gradient(reduction.stage).size
        for gpu in gpus
        for reduction in gpu.reductions
        if gpu.worker
    }


def _check_memory(scenario: Scenario, gpus: list[Gpu]) -> None:
    kinds = [node.gpu for node, _ in zip(scenario.cluster.each_gpu(), gpus, strict=False)]
    worst = max(gpus, key=lambda gpu: gpu.ledger.peak_bytes - kinds[gpu.rank].memory)
    held, kind = worst.ledger.peak_bytes, kinds[worst.rank]
    if scenario.on_oom == "error" and held > kind.memory:
        sizes = f"holds {format_bytes(held)}; its GPU ({kind.name}) has {format_bytes(kind.memory)}"
        raise OutOfMemoryError(f"out of memory: rank {worst.rank} {sizes}")
