"""From a scenario to a `Run`: the one file that knows everybody."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import simpy

from hybrid_des import codecs, collectives, schedules, topologies
from hybrid_des.comm import Comm
from hybrid_des.cost import Costs, RankCosts, costs_of, rank_costs
from hybrid_des.errors import DeadlockError, OutOfMemoryError
from hybrid_des.fabric import Fabric, service_time
from hybrid_des.gpu import Barrier, Gpu, Job, Reduction
from hybrid_des.memory import Ledger
from hybrid_des.network import Network
from hybrid_des.numerics.training import Training
from hybrid_des.ops import Plan, PlanRequest
from hybrid_des.program import program_of
from hybrid_des.scenario import Scenario, wiring
from hybrid_des.trace import Trace
from hybrid_des.units import format_bytes, to_picoseconds


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
        numerics: the summary's keys on training, with numerics.
        weights: rank → stage → arrays, with numerics.
    """

    scenario: Scenario
    plan: Plan
    costs: Costs
    trace: Trace
    messages: int
    bytes_pipeline: int
    bytes_gradients: int
    bytes_scales: int
    duration: int
    peak_activations: list[Fraction]
    peak_memory: list[int]
    events: int
    wall_s: float
    numerics: dict[str, Any] | None = None
    weights: dict[int, dict[int, list[Any]]] | None = None


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
        OutOfMemoryError: a GPU held more than its memory, under `on_oom: error`.
        Refusal: the schedule or topology does not exist for these sizes.
    """
    started = time.perf_counter()
    ranks = rank_costs(scenario)
    fabric = fabric or fabric_of(scenario)
    plan = plan or plan_of(scenario, ranks, fabric)
    plan.check()
    training = training or training_of(scenario, plan)
    costs = costs_of(ranks, plan, training.parameters if training else None)
    env = simpy.Environment()
    trace = Trace(messages=scenario.record == "all")
    blocking = scenario.schedule.p2p == "blocking"
    network = Network(env, fabric, scenario.cluster.sharing, trace, receipts=blocking)
    gpus = _gpus(scenario, plan, costs, network, trace, training)
    env.run()
    _check_finished(gpus)
    network.check_empty()
    _check_memory(scenario, gpus)
    pipeline, gradients = list(network.pipeline_streams()), list(network.collective_streams())
    scales = sum(stream.scales for stream in gradients)
    return Run(
        scenario=scenario,
        plan=plan,
        costs=costs,
        trace=trace,
        messages=sum(stream.messages for stream in pipeline + gradients),
        bytes_pipeline=sum(stream.bytes for stream in pipeline),
        bytes_gradients=sum(stream.bytes for stream in gradients) - scales,
        bytes_scales=scales,
        duration=env.now,
        peak_activations=[
            Fraction(gpu.ledger.peak_activations, plan.visits[scenario.parallel.place(gpu.rank)[1]]) for gpu in gpus
        ],
        peak_memory=[gpu.ledger.peak_bytes for gpu in gpus],
        events=next(env._eid),
        wall_s=time.perf_counter() - started,
        numerics=training.progress.summary() if training else None,
        weights={gpu.rank: gpu.worker.weights for gpu in gpus if gpu.worker} if training else None,
    )


def fabric_of(scenario: Scenario) -> Fabric:
    """Wire up the scenario's cluster."""
    return wiring.fabric_of(scenario.cluster)


def plan_of(scenario: Scenario, ranks: RankCosts, fabric: Fabric) -> Plan:
    """Ask the scenario's schedule for its plan."""
    schedule, p = scenario.schedule, scenario.parallel.pipeline
    request = PlanRequest(
        pipeline=p,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        forward=ranks.forward,
        input=ranks.input,
        weight=ranks.weight,
        delay=max((_delay(scenario, ranks, fabric, rank) for rank in range(p - 1)), default=0),
        backward_order=schedule.backward_order,
        fused=schedule.fused,
        fused_time=schedule.fused_time,
        max_activations=schedule.max_activations,
    )
    assert schedule.kind is not None
    return schedules.find(schedule.kind).build(request)


def _delay(scenario: Scenario, ranks: RankCosts, fabric: Fabric, rank: int) -> int:
    """What an activation takes from one pipeline rank to the next on idle links."""
    sender, receiver = (scenario.parallel.rank(0, r) for r in (rank, rank + 1))
    route = fabric.route(sender, receiver)
    return route.latency + max(service_time(ranks.message[rank], fabric.links[name].bandwidth) for name in route.links)


def training_of(scenario: Scenario, plan: Plan) -> Training | None:
    """The small model that is trained, where the scenario has one."""
    if scenario.numerics is None:
        return None
    return Training(scenario.numerics, plan, scenario.parallel.data, scenario.seed)


def _gpus(
    scenario: Scenario, plan: Plan, costs: Costs, network: Network, trace: Trace, training: Training | None
) -> list[Gpu]:
    parallel = scenario.parallel
    barrier = Barrier(network.env, parallel.ranks) if scenario.barrier else None
    blocking = scenario.schedule.p2p == "blocking"
    job = Job(network.env, trace, scenario.steps, scenario.gradients.overlap, blocking, barrier)
    programs = [program_of(plan, costs, rank) for rank in range(plan.pipeline)]
    members = _members(scenario, plan)
    gpus = []
    for rank in range(parallel.ranks):
        replica, place = parallel.place(rank)
        comm = Comm(network, rank)

        def rank_of(peer: int, replica: int = replica) -> int:
            return parallel.rank(replica, peer)

        gpus.append(
            Gpu(
                job,
                rank,
                programs[place],
                rank_of,
                comm,
                Ledger(rank, costs.resident[place], trace.memory),
                _reductions(scenario, plan, costs, comm, place, members),
                costs.ranks.optimizer[place],
                training.worker(rank, replica, place) if training else None,
            )
        )
    return gpus


def _members(scenario: Scenario, plan: Plan) -> list[tuple[list[int], list[int]]]:
    """For each stage the GPUs that hold it, in all replicas and copies, and which of their chunks it is."""
    members = []
    for stage in range(plan.stages):
        holders = sorted(
            (scenario.parallel.rank(replica, rank), chunk)
            for replica in range(scenario.parallel.data)
            for rank, chunk in plan.holders(stage)
        )
        members.append(([rank for rank, _ in holders], [chunk for _, chunk in holders]))
    return members


def _reductions(
    scenario: Scenario, plan: Plan, costs: Costs, comm: Comm, place: int, members: list[tuple[list[int], list[int]]]
) -> list[Reduction]:
    """What a GPU reduces, deepest stage first, as the backward pass completes them."""
    gradients = scenario.gradients
    codec = codecs.find(gradients.codec).build()
    algorithm = collectives.find(gradients.algorithm).build
    stages = sorted((plan.stage_of[place, chunk] for chunk in plan.chunks_of(place)), reverse=True)
    return [
        Reduction(
            stage,
            comm.group(members[stage][0], gradients.algorithm, stage, members[stage][1]),
            costs.parameters[stage],
            buckets_of(costs.parameters[stage], codec, gradients.bucket),
            codec,
            algorithm,
            gradients.error_feedback,
        )
        for stage in stages
        if len(members[stage][0]) > 1 and (costs.parameters[stage] or scenario.numerics)
    ]


def buckets_of(parameters: int, codec: codecs.Codec, bucket: int | None) -> int:
    """Into how many buckets of at most `bucket` bytes a stage's gradients are cut."""
    return 1 if bucket is None else max(1, -(-codec.payload_bytes(parameters) // bucket))


def _check_finished(gpus: list[Gpu]) -> None:
    """An empty queue with live processes is a deadlock."""
    stuck = [gpu for gpu in gpus if any(process.is_alive for process in gpu.processes)]
    if stuck:
        raise DeadlockError("deadlock: nothing can happen any more\n" + "\n".join(gpu.where() for gpu in stuck))


def _check_memory(scenario: Scenario, gpus: list[Gpu]) -> None:
    limit = scenario.cluster.gpu.memory
    worst = max(gpus, key=lambda gpu: gpu.ledger.peak_bytes)
    if scenario.on_oom == "error" and worst.ledger.peak_bytes > limit:
        held, name = format_bytes(worst.ledger.peak_bytes), scenario.cluster.gpu.name
        raise OutOfMemoryError(f"out of memory: rank {worst.rank} holds {held}; a {name} has {format_bytes(limit)}")
