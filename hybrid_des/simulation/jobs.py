"""Jobs: the GPUs of a scenario, with their programs started on the links of a fabric, and background traffic beside."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from hybrid_des.cluster.endpoint import Endpoint
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rendezvous import ReplayedGroup
from hybrid_des.cluster.traced_transport import TracedTransport
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.communicator import Barrier
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.engine.causes import Causes, TracedEnvironment, TracedView, traced
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.long_rows import LongRows
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.arithmetic import Arithmetic
from hybrid_des.simulation.communicators import Communicators
from hybrid_des.simulation.costs.stages import visits
from hybrid_des.simulation.folding.folded_transport import folded_transport
from hybrid_des.simulation.folding.joint_symmetry import FoldedLinks, JointLinks, JointTransport
from hybrid_des.simulation.folding.symmetry import Fold
from hybrid_des.simulation.folding.traced_fold import TracedJointTransport, traced_fold
from hybrid_des.simulation.gpu import Gpu, RunContext
from hybrid_des.simulation.memory import MemoryLedger
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.simulation.planning.program import BARRIER, Program
from hybrid_des.simulation.repetition import FurtherSteps
from hybrid_des.simulation.ring_links import ring_transport
from hybrid_des.simulation.speeds import DurationOverride, Programs, schedules_of
from hybrid_des.simulation.stretches import Stretches
from hybrid_des.simulation.ways import Way, at_once

UNCONTENDED = "uncontended"  # link sharing of runs made only for comparison


class Job(NamedTuple):
    """A scenario whose programs have been started on links.

    Attributes:
        recorder: its rows.
        transport: its flows and mailboxes.
        gpus: its simulated GPUs, by rank.
        servers: the servers of its process groups: ranks with one stream.
    """

    scenario: Scenario
    parts: Parts
    recorder: Recorder
    transport: Transport
    gpus: Sequence[Gpu]
    servers: Sequence[Gpu]

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
        apart, lanes = {*parts.traffic.messages, *parts.traffic.streams}, parts.costs.lanes
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


def started(
    scenario: Scenario,
    parts: Parts,
    links: Links | None = None,
    *,
    fold: Fold | None = None,
    watched: bool = False,
    trace: Causes | None = None,
    retime: DurationOverride | None = None,
    order: int | None = None,
    scratch: Path | None = None,
    detailed: bool = True,
    further: FurtherSteps | None = None,
    images: FoldedLinks | None = None,
    whole: bool = True,
    way: Way = "by messages",
) -> Job:
    """Start the programs of a scenario on links, which other jobs may share; by default on links of its own.

    Args:
        scenario: what to simulate.
        parts: its parts; their fabric is the job's view of that of the links.
        links: links that other jobs may share; folded runs have their own.
        fold: which ranks are simulated, and for which others they stand; None: all are.
        watched: whether a folded run ends with a `TieError` where messages meet whose order has to be traced.
        trace: records causes, for a run that is explained.
        retime: other durations of ops.
        order: number of a random order in which GPUs start; default: by rank.
        scratch: folder for rows that do not fit into memory.
        detailed: whether rows of ops and memory are kept.
        further: whether it takes steps beyond its own number; None if it does not, and nobody asks.
        images: which ranks are simulated, and what that does to the links that other jobs share.
        whole: whether those of a fold simulate what nothing else can touch, instead of taking it at once.
        way: how collectives are simulated (`ways`).
    """
    rows: Rows | None = None
    if scenario.record == "all":  # jobs that are compared need all rows in memory
        rows = LongRows(MESSAGE_COLUMNS, "start", scratch) if links is None else Rows(MESSAGE_COLUMNS)
    recorder = Recorder(rows, detailed=detailed)
    transport: Any
    if way == "followed":
        transport = ring_transport(scenario, parts, recorder, fold)
    else:
        transport = _transport(scenario, parts, recorder, links, fold=fold, trace=trace, images=images, watched=watched)
    fold = fold if images is None else images.fold
    context = RunContext(transport.env, recorder, scenario.steps, further)
    in_stretches = fold and trace is None and not whole and way != "followed"
    stretches = Stretches(slowed=parts.slowdown is not None) if in_stretches else None
    made_by = Communicators(transport, parts, at_once(way, transport, parts, scenario.cluster.service))
    gpus = _gpus(scenario, parts, made_by, context, fold=fold, retime=retime, order=order, stretches=stretches)
    return Job(scenario, parts, recorder, transport, gpus, _servers(scenario, parts, transport, context))


def _transport(
    scenario: Scenario,
    parts: Parts,
    recorder: Recorder,
    links: Links | None,
    *,
    fold: Fold | None,
    trace: Causes | None,
    images: FoldedLinks | None,
    watched: bool,
) -> Transport:
    """What carries the messages of a scenario; see `started`."""
    fabric, receipts, priority_of = parts.fabric, parts.programs.blocking, scenario.cluster.priority_of
    if images is None and fold is not None:
        groups, sharing = _groups(parts), scenario.cluster.service
        if trace is not None:
            return traced_fold(fabric, sharing, recorder, fold, groups, trace=trace, receipts=receipts, watched=watched)
        met = parts.meeting is not None
        return folded_transport(
            fabric, sharing, recorder, fold, groups, receipts=receipts, ordered=met, watched=watched
        )
    env = None if trace is None else TracedEnvironment(trace)
    on = links_of(scenario, fabric, env) if links is None else links
    record = recorder if trace is None else traced(recorder, trace)
    transport: Transport
    if images is not None:
        assert isinstance(on, JointLinks)
        joint = JointTransport if trace is None else TracedJointTransport
        transport = joint(on, record, images, _groups(parts), receipts, priority_of)
    else:
        plain = Transport if trace is None else TracedTransport
        transport = plain(on, record, fabric, receipts, priority_of)
    if links is not None and trace is not None:
        transport.env = TracedView(links.env, trace)
    return transport


def _groups(parts: Parts) -> tuple[ProcessGroup, ...]:
    """The groups that reduce gradients, and those that programs give."""
    return (*(of for of, _ in parts.reductions.processes), *(given.processes for given in parts.given))


def _gpus(
    scenario: Scenario,
    parts: Parts,
    made_by: Communicators,
    context: RunContext,
    *,
    fold: Fold | None,
    retime: DurationOverride | None,
    order: int | None,
    stretches: Stretches | None,
) -> list[Gpu]:
    """The GPUs of all ranks, or of those that a fold keeps, by rank.

    They are made, and so start, in the order of ranks, or in the random one of this number: of messages that reach a
    link in the same picosecond, `fifo` serves the one first whose process was booked first.
    """
    layout, programs, transport = scenario.parallel.layout, Programs(scenario, parts, retime), made_by.transport
    ranks: Sequence[int] = fold.ranks if fold else range(layout.ranks)
    barrier = Barrier(transport.meeting(ReplayedGroup, len(ranks), range(layout.ranks)))
    communicators = made_by.of(ranks)
    made = list(zip(ranks, scenario.cluster.nodes_of(ranks), strict=True))
    if order is not None:
        Random(order).shuffle(made)
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
                MemoryLedger(rank, parts.costs.held(pipeline_rank, layout.lane(rank)), changes),
                arithmetic=Arithmetic(parts.workers[rank]) if parts.training else None,
                pace=pace,
                computation=made_by.computation.get(rank),
                stretches=stretches.of(program, mine) if stretches and pace is None else {},
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
