"""The network and the GPUs of a run, made from the parts of a scenario."""

from collections.abc import Sequence
from functools import cache, partial

from hybrid_des.engine.causes import Causes, TracedEnvironment, traced
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.orbits import Fold, root_of
from hybrid_des.network.endpoint import Endpoint
from hybrid_des.network.traced import TracedTransport
from hybrid_des.network.transport import Transport
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.arithmetic import Arithmetic
from hybrid_des.simulation.changes import Retime, retimed
from hybrid_des.simulation.exchanges import NO_EXCHANGERS, Exchangers
from hybrid_des.simulation.folds import folded_transport
from hybrid_des.simulation.gpu import Gpu, Job
from hybrid_des.simulation.meeting import barrier_of, meetings_of
from hybrid_des.simulation.memory import MemoryLedger, nodes_of
from hybrid_des.simulation.pace import Pace
from hybrid_des.simulation.perturbing import Perturbation, conditions_of
from hybrid_des.simulation.planner import Parts
from hybrid_des.simulation.varying import VaryingGpu, in_parts

UNCONTENDED = "uncontended"  # a sharing that only runs to compare with have


def network_of(
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


def simulated_gpus(
    scenario: Scenario,
    parts: Parts,
    transport: Transport,
    recorder: Recorder,
    fold: Fold | None,
    retime: Retime | None,
) -> list[Gpu]:
    """The GPUs of all ranks, or of those that a fold keeps."""
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
                Arithmetic(parts.workers[rank]) if parts.training else None,
                meetings=meetings.get(rank, ()),
                exchangers=exchangers.of(rank, stages(place)) if parts.traffic.messages else NO_EXCHANGERS,
            )
        )
    return gpus
