"""Jobs: the GPUs of a scenario, with their programs started on the links of a fabric, and background traffic beside."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.mailbox import ReplayedGroup
from hybrid_des.cluster.traced_transport import TracedTransport
from hybrid_des.cluster.transport import Endpoint, Links, Transport
from hybrid_des.collectives.communicator import Barrier
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.cost_model.stages import visits
from hybrid_des.engine.causes import Causes, TracedEnvironment, TracedView, traced
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.long_rows import LongRows
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows
from hybrid_des.folding.symmetry import Fold
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import BARRIER, Call, Group, Instruction, Program
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.communicators import CollectiveOverride, Communicators, Participant
from hybrid_des.simulation.gpu import Arithmetic, Device, Gpu, RunContext
from hybrid_des.simulation.memory import MemoryLedger
from hybrid_des.simulation.repetition import FurtherSteps
from hybrid_des.simulation.speeds import DurationOverride, Programs, schedules_of

UNCONTENDED = "uncontended"  # link sharing of runs made only for comparison


class Job(NamedTuple):
    """A scenario whose programs have been started on links.

    Attributes:
        recorder: its rows.
        transport: its flows and mailboxes.
        gpus: its simulated GPUs, by rank.
        servers: the servers of its process groups: ranks with one stream.
        fold: for which other ranks the simulated ones stand; None if all are simulated.
    """

    scenario: Scenario
    parts: Parts
    recorder: Recorder
    transport: Transport
    gpus: Sequence[Gpu]
    servers: Sequence[Gpu]
    fold: Fold | None = None

    @property
    def reads_links(self) -> bool:
        """Whether what each link carries is read after the run: replayed collectives may disturb messages there."""
        return bool(self.parts.traffic.disturbed) and self.recorder.detailed

    @property
    def ops(self) -> int:
        """Number of ops of the run, optimizer steps included."""
        return self.scenario.steps * sum(gpu.ops for gpu in self.gpus)

    @property
    def slowed(self) -> int:
        """Picoseconds by which computation took longer beside collectives, replayed ones of layers included."""
        parts, layout = self.parts, self.scenario.parallel.layout
        apart, lanes = parts.traffic.recorded, parts.costs.lanes
        every = [parts.costs, *parts.further]
        replayed = Counter[tuple[int, int]]()
        for visit in (visit for costs in every for visit in visits(parts.plan, costs)):
            slowed = sum(one.slowed for one in visit.costs.traffic if one.axis not in apart)
            replayed[visit.position[0], visit.lane] += visit.times * slowed
        of_layers = sum(replayed[self._place(gpu), layout.lane(gpu.rank) if lanes else 0] for gpu in self.gpus)
        steps = len(every) if lanes is None else lanes.steps
        of_gpus = sum(gpu.computation.slowed for gpu in self.gpus if gpu.computation)
        return self.scenario.steps * of_layers // steps + of_gpus

    @property
    def programs(self) -> Mapping[int, Program]:
        """Pipeline rank → what it runs, or one of them, where several do."""
        return {self._place(gpu): gpu.program for gpu in self.gpus}

    def _place(self, gpu: Gpu) -> int:
        return self.scenario.parallel.layout.coordinate(gpu.rank, "pipeline")


def links_of(scenario: Scenario, fabric: Fabric, env: Environment | None = None) -> Links:
    """The links of a fabric, slow as in the scenario; in a new environment, if none is given."""
    cluster = scenario.cluster
    if scenario.background:  # of the only job
        cluster = cluster.urgent(cluster.urgency, [flow.level for flow in scenario.background])
    sharing = cluster.service
    schedules = {} if sharing == UNCONTENDED else schedules_of(scenario.slow, fabric)
    return Links(env or Environment(), fabric, sharing, schedules)


def groups_of(parts: Parts) -> tuple[ProcessGroup, ...]:
    """The groups that reduce gradients, and those that programs give."""
    return (*(of for of, _ in parts.reductions.processes), *(given.processes for given in parts.given))


@dataclass(frozen=True)
class How:
    """How a scenario is simulated, beyond what it says itself.

    Attributes:
        retime: other durations of ops.
        trace: records causes, for a run that is explained.
        order: number of a random order in which GPUs start, which decides ties at links; default: by rank.
        scratch: folder for rows that do not fit into memory; default: the system's folder for temporary files.
        detailed: whether rows of ops and memory are kept; without them, a run has its end, peaks and totals, but not
            those of links, nor what groups of replicas exchange.
    """

    retime: DurationOverride | None = None
    trace: Causes | None = None
    order: int | None = None
    scratch: Path | None = None
    detailed: bool = True


PLAINLY = How()


class Network(NamedTuple):
    """What carries the messages of a job, before its programs start.

    Attributes:
        recorder: its rows.
        transport: its flows and mailboxes.
        fold: which ranks are simulated, and for which others they stand; None: all are.
        override: does collectives otherwise than by their messages; None: nothing does.
        instead: the instructions of some calls of a program, given its communicators, instead of those of their blocks.
    """

    recorder: Recorder
    transport: Transport
    fold: Fold | None = None
    override: CollectiveOverride | None = None
    instead: Callable[[Program, Mapping[Group, Participant]], Mapping[Call, Sequence[Instruction]]] | None = None


def recorder_of(scenario: Scenario, how: How, *, alone: bool = True) -> Recorder:
    """The rows of a job; jobs that share links, and are compared, need all of them in memory."""
    rows: Rows | None = None
    if scenario.record == "all":
        rows = LongRows(MESSAGE_COLUMNS, "start", how.scratch) if alone else Rows(MESSAGE_COLUMNS)
    return Recorder(rows, detailed=how.detailed)


def network_of(scenario: Scenario, parts: Parts, links: Links | None = None, how: How = PLAINLY) -> Network:
    """The network of all ranks, on links that other jobs may share; by default on links of its own."""
    recorder, trace = recorder_of(scenario, how, alone=links is None), how.trace
    env = None if trace is None else TracedEnvironment(trace)
    on = links_of(scenario, parts.fabric, env) if links is None else links
    kind = Transport if trace is None else TracedTransport
    record = recorder if trace is None else traced(recorder, trace)
    transport = kind(on, record, parts.fabric, parts.programs.blocking, scenario.cluster.priority_of)
    if links is not None and trace is not None:
        transport.env = TracedView(links.env, trace)
    return Network(recorder, transport)


def started(
    scenario: Scenario,
    parts: Parts,
    network: Network | None = None,
    how: How = PLAINLY,
    further: FurtherSteps | None = None,
) -> Job:
    """Start the programs of a scenario.

    Args:
        scenario: what to simulate.
        parts: its parts; their fabric is the job's view of that of the links.
        network: carries its messages; default: that of all ranks, on links of its own.
        how: how it is simulated.
        further: whether it takes steps beyond its own number; None if it does not, and nobody asks.
    """
    network = network or network_of(scenario, parts, how=how)
    context = RunContext(network.transport.env, network.recorder, scenario.steps, further)
    gpus = _gpus(scenario, parts, network, context, how)
    servers = _servers(scenario, parts, network.transport, context)
    return Job(scenario, parts, network.recorder, network.transport, gpus, servers, network.fold)


def _gpus(scenario: Scenario, parts: Parts, network: Network, context: RunContext, how: How) -> list[Gpu]:
    """The GPUs of the simulated ranks, by rank.

    They are made, and so start, in the order of ranks, or in the random one of this number: of messages that reach a
    link in the same picosecond, `fifo` serves the one first whose process was booked first.
    """
    layout, programs, transport = scenario.parallel.layout, Programs(scenario, parts, how.retime), network.transport
    ranks: Sequence[int] = network.fold.ranks if network.fold else range(layout.ranks)
    made_by = Communicators(transport, parts, network.override)
    barrier = Barrier(transport.meeting(ReplayedGroup, len(ranks), range(layout.ranks)))
    communicators = made_by.of(ranks)
    made = list(zip(ranks, scenario.cluster.nodes_of(ranks), strict=True))
    if how.order is not None:
        Random(how.order).shuffle(made)
    gpus, changes = list[Gpu](), context.recorder.memory if context.recorder.detailed else None
    for rank, node in made:
        pipeline_rank = layout.coordinate(rank, "pipeline")
        program, pace = programs.of(rank, pipeline_rank, node.speed)
        transport.begin(rank)
        mine = {**communicators[rank], BARRIER: barrier}
        gpus.append(
            Gpu(
                context,
                Endpoint(transport, rank, layout.line(rank, "pipeline")),
                program,
                mine,
                Device(
                    MemoryLedger(rank, parts.costs.held(pipeline_rank, layout.lane(rank)), changes),
                    Arithmetic(parts.workers[rank]) if parts.training else None,
                    pace,
                    made_by.computation.get(rank),
                ),
                network.instead(program, mine) if network.instead and pace is None else {},
            )
        )
    return sorted(gpus, key=lambda gpu: gpu.rank)


def _servers(scenario: Scenario, parts: Parts, transport: Transport, context: RunContext) -> list[Gpu]:
    layout, shared = scenario.parallel.layout, not parts.programs.each
    servers = []
    for server, group, members, communicator in Communicators(transport, parts).servers():
        rank = layout.coordinate(members[0], "pipeline") if shared else members[0]
        transport.begin(server, members)
        program = parts.programs.serve(group, rank, layout.lane(members[0]))
        servers.append(Gpu(context, Endpoint(transport, server, ()), program, {group: communicator}))
    return servers
