"""The network and the GPUs of a run, made from the parts of a scenario."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from hybrid_des.collectives.communicator import Barrier
from hybrid_des.engine.causes import Causes, TracedEnvironment, traced
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.long_rows import LongRows
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows
from hybrid_des.folding.folded_transport import folded_transport
from hybrid_des.folding.orbits import Fold
from hybrid_des.network.endpoint import Endpoints
from hybrid_des.network.purpose import REDUCTION
from hybrid_des.network.traced import TracedTransport
from hybrid_des.network.transport import Transport
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import BARRIER
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.arithmetic import Arithmetic
from hybrid_des.simulation.communicators import Communicators
from hybrid_des.simulation.gpu import Gpu, RunContext
from hybrid_des.simulation.memory import MemoryLedger
from hybrid_des.simulation.programs import Programs, conditions_of

Item = TypeVar("Item")
UNCONTENDED = "uncontended"  # link sharing of runs made only for comparison


class Network(NamedTuple):
    """The network of a run, the endpoints of its GPUs, and the recorder of both."""

    recorder: Recorder
    transport: Transport
    endpoints: Endpoints


def network_of(
    scenario: Scenario, parts: Parts, fold: Fold | None, trace: Causes | None, scratch: Path | None
) -> Network:
    """The network, in a new environment."""
    rows: Rows | None = None
    if scenario.record == "all":  # explaining a run needs all rows in memory
        rows = LongRows(MESSAGE_COLUMNS, "start", scratch) if trace is None else Rows(MESSAGE_COLUMNS)
    recorder = Recorder(rows)
    transport = _transport(scenario, parts, fold, trace, recorder)
    layout = scenario.parallel.layout
    return Network(recorder, transport, Endpoints(transport, layout, layout.sizes["pipeline"]))


def _transport(
    scenario: Scenario, parts: Parts, fold: Fold | None, trace: Causes | None, recorder: Recorder
) -> Transport:
    sharing, receipts = scenario.cluster.sharing, parts.programs.blocking
    conditions = {} if sharing == UNCONTENDED else conditions_of(scenario.slow, parts.fabric)
    if fold is not None:
        met = parts.meeting is not None
        return folded_transport(parts.fabric, sharing, recorder, fold, receipts=receipts, ordered=met)
    if trace is not None:
        env, told = TracedEnvironment(trace), traced(recorder, trace)
        return TracedTransport(env, parts.fabric, sharing, told, receipts, conditions)
    return Transport(Environment(), parts.fabric, sharing, recorder, receipts, conditions)


def simulated_gpus(
    scenario: Scenario,
    parts: Parts,
    network: Network,
    fold: Fold | None,
    programs: Programs,
    order: int | None = None,
) -> list[Gpu]:
    """The GPUs of all ranks, or of those that a fold keeps, by rank.

    They are made, and so start, in the order of ranks, or in the random one of this number: of messages that reach a
    link in the same picosecond, `fifo` serves the one first whose process was booked first.
    """
    recorder, transport, endpoints = network
    layout = scenario.parallel.layout
    ranks: Sequence[int] = fold.ranks if fold else range(layout.ranks)
    barrier = Barrier(transport.meeting(len(ranks)))
    context = RunContext(transport.env, recorder, scenario.steps)
    communicators = Communicators(transport, parts).of(ranks)
    gpus = []
    made = zip(ranks, scenario.cluster.nodes_of(ranks), strict=True)
    for rank, node in made if order is None else _shuffled(made, order):
        place = layout.coordinate(rank, "pipeline")
        program, pace = programs.of(rank, place, node.speed)
        transport.begin(rank)
        gpus.append(
            Gpu(
                context,
                endpoints.of(rank),
                program,
                {**communicators[rank], BARRIER: barrier},
                MemoryLedger(rank, parts.costs.resident[place], recorder.memory),
                arithmetic=Arithmetic(parts.workers[rank]) if parts.training else None,
                pace=pace,
            )
        )
    return gpus if order is None else sorted(gpus, key=lambda gpu: gpu.rank)


def _shuffled(made: Iterable[Item], order: int) -> list[Item]:
    found = list(made)
    Random(order).shuffle(found)
    return found


def servers_of(scenario: Scenario, parts: Parts, network: Network) -> list[Gpu]:
    """The servers of process groups: ranks with one stream."""
    recorder, transport, endpoints = network
    context = RunContext(transport.env, recorder, scenario.steps)
    return [
        Gpu(
            context,
            endpoints.server(place),
            parts.programs.serve(group.stage, group.part),
            {(REDUCTION.name, group.stage, group.part): communicator},
        )
        for group, place, communicator in Communicators(transport, parts).servers()
    ]
