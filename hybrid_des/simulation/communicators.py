"""The communicators of a run: one for every rank and process group, and for every server of a group.

Ranks that share layers have one group for all collectives inside their ops (`layer_group`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

import numpy as np

from hybrid_des import collectives
from hybrid_des.cluster.mailbox import ReplayedGroup
from hybrid_des.cluster.purposes import OF_LAYERS, PARAMETERS, REDUCTION
from hybrid_des.cluster.rings import orders
from hybrid_des.cluster.transport import Transport
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer, Channels
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.collectives.communicator import Barrier, Communicator, Met, OnStream, Replayed, Stream, Work
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.collectives.transfers import Sizes, transfers
from hybrid_des.cost_model.collective_times import ELEMENT, SIXTEEN_BITS, buffer_of, elements_of
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.cost_model.slowdown import NONE_LOST
from hybrid_des.planning import program
from hybrid_des.planning.expert_copies import COPIES
from hybrid_des.planning.fsdp import LAYERS
from hybrid_des.planning.given_collectives import GivenCollective, GivenGroup
from hybrid_des.planning.gradients import ReplicaGroup
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.training import Worker
from hybrid_des.simulation.computation import Computation
from hybrid_des.units import collected, split_evenly

Participant = Communicator | Met | OnStream | Replayed | Barrier
Made = Iterator[tuple[int, program.Group, Participant]]  # rank, key in its program, communicator
Servers = Iterator[
    tuple[int, program.Group, Sequence[int], Communicator]
]  # GPU, key of the group, its members, communicator
Begin = Callable[[], Callable[[Any], Work]]
Arrays = Callable[[], tuple[Any, Any]]  # a gradient and what a lossy codec left of the last one, or None


def _no_arrays() -> tuple[Any, Any]:
    return None, None


class CollectiveOverride(Protocol):
    """Does collectives otherwise than by their messages, with the same outcome."""

    def of_gradients(
        self, reduction: ProcessGroup, group: ProcessGroup, places: Sequence[int], algorithm: collectives.Collective
    ) -> collectives.Collective:
        """What is done instead, or the algorithm as it is.

        Args:
            reduction: the group whose gradients are reduced.
            group: the same, or as it gathers parameters.
            places: those of its simulated members.
            algorithm: what it does.
        """

    def of_layers(self, whole: ProcessGroup, work_of: Callable[[Any], Work]) -> Begin:
        """The `begin` of the communicators of a group whose layers exchange messages."""


class Communicators:
    """Makes the communicators of a run.

    Args:
        transport: carries the messages.
        parts: the process groups, and what they do.
        override: what does collectives otherwise than by messages, if anything does.

    Attributes:
        transport: as given.
        computation: rank → its computation, if collectives slow it.
    """

    def __init__(self, transport: Transport, parts: Parts, override: CollectiveOverride | None = None) -> None:
        self.transport, self._parts, self._reductions = transport, parts, parts.reductions
        self._override = override
        self.computation: dict[int, Computation] = {}

    def of(self, ranks: Collection[int]) -> Mapping[int, Mapping[program.Group, Participant]]:
        """Rank → its communicators."""
        participants: dict[int, dict[program.Group, Participant]] = {rank: {} for rank in ranks}
        if self._parts.slowdown is not None:
            self.computation = {rank: Computation(self.transport.env) for rank in ranks}
        of_layers = self._of_layers, self._met, self._replayed
        for made in (self._of_gradients, *of_layers, self._of_copies, self._of_documents, self._of_traces):
            for rank, key, communicator in made(participants):
                participants[rank][key] = communicator
        for axis in self._parts.traffic.streams:
            self._put_on_streams(axis, participants)
        return participants

    def _put_on_streams(self, axis: str, participants: dict[int, dict[program.Group, Participant]]) -> None:
        """Give every rank a stream for the collectives along an axis, replayed ones included."""
        env, layout = self.transport.env, self._parts.times.layout
        for rank, mine in participants.items():
            stream = Stream(env, self.computation.get(rank))
            for stage in self._parts.programs.chunks(layout.coordinate(rank, "pipeline")):
                known = mine.get((axis, stage, 0))
                carried = known if isinstance(known, Communicator | Met) else None
                mine[axis, stage, 0] = OnStream(env, stream, carried)

    def servers(self) -> Servers:
        """The servers of process groups."""
        states = (state for worker in self._parts.workers.values() for state in worker.stages.items())
        lengths = {stage: state.gradient.size for stage, state in states}
        for processes, group in self._reductions.processes:
            zeros = _no_arrays if group.part or group.stage not in lengths else partial(_zeros, lengths[group.stage])
            begin = self._begin(group, processes.kind, self._reductions.codec, arrays=zeros)
            yield from self._servers_of(processes, (REDUCTION.name, group.stage, group.part), begin)
        for whole in self._layer_groups():
            yield from self._servers_of(whole, (whole.kind, whole.stage, 0), _begin_layers)
        for given in self._parts.given:
            yield from self._servers_of(given.processes, given.key, partial(_work_of_trace, given))

    def _servers_of(self, group: ProcessGroup, key: program.Group, begin: Begin) -> Servers:
        """The servers of a group that are simulated."""
        members = group.ranks[: group.size]
        for position in range(group.size, len(group.ranks)):
            if self.transport.serves(group.ranks[position], members):
                yield group.ranks[position], key, members, self._communicator(group, position, begin)

    def _of_gradients(self, wanted: Collection[int]) -> Made:
        """The reductions of gradients, and the gathers of sharded parameters."""
        reductions, workers = self._reductions, self._parts.workers
        places: dict[int, list[tuple[int, int]]] = {}  # of the same ranks, which reduce several stages
        for processes, group in reductions.processes:
            mine = places.get(id(processes.ranks))
            if mine is None:
                each = enumerate(processes.ranks[: processes.size])
                mine = places[id(processes.ranks)] = [(place, rank) for place, rank in each if rank in wanted]
            if not mine:
                continue
            gathering = replace(processes, kind=PARAMETERS.name, purpose=PARAMETERS)
            lost = self._lost(processes.ranks[: processes.size])
            seats = [place for place, _ in mine]
            ring, back = (processes, processes, seats), (processes, gathering, seats)
            gather = reductions.gather and self._begin(
                group, reductions.gather, codecs.find(SIXTEEN_BITS).build(), lost=lost, ring=back
            )
            reduce = partial(self._begin, group, processes.kind, reductions.codec, lost=lost, ring=ring)
            alike = reduce()
            for position, rank in mine:
                begin, member = alike, (rank, group.stage)
                if rank in workers and not group.part:
                    begin = reduce(arrays=partial(self._arrays, workers[rank], group.stage))
                made = self._communicator(processes, position, begin, member=member)
                yield rank, (REDUCTION.name, group.stage, group.part), made
                if gather:
                    made = self._communicator(gathering, position, gather, member=member)
                    yield rank, (PARAMETERS.name, group.stage, group.part), made

    def _lost(self, ranks: Sequence[int]) -> Fraction:
        """The share of its speed that computation of a rank loses beside a collective of these."""
        slowdown, parts = self._parts.slowdown, self._parts
        if slowdown is None:
            return Fraction(0)
        pipeline_rank = parts.times.layout.coordinate(ranks[0], "pipeline")
        return slowdown.lost(beyond=parts.fabric.apart(ranks), moving=self._moving.get(pipeline_rank, Fraction(0)))

    @cached_property
    def _moving(self) -> Mapping[int, Fraction]:
        """Pipeline rank with stages → the share of its computation that memory bounds."""
        by_rank = collected((place, cost.moving) for (place, _), cost in self._parts.costs.stages.items())
        return {place: sum(shares, Fraction(0)) / len(shares) for place, shares in by_rank.items()}

    def _of_layers(self, wanted: Collection[int]) -> Made:
        """The collectives inside ops, along axes where they are messages."""
        for whole in self._layer_groups():
            begin = _begin_layers if self._override is None else self._override.of_layers(whole, work_of)
            for number, rank in enumerate(whole.ranks[: whole.size]):
                if rank in wanted:
                    key = whole.kind, whole.stage, 0
                    yield rank, key, self._communicator(whole, number, begin, shares=_evenly)

    def _layer_groups(self) -> Iterator[ProcessGroup]:
        """The groups along axes whose collectives are messages, once per stage."""
        layout, traffic = self._parts.times.layout, self._parts.traffic
        for axis, groups in traffic.messages.items():
            for ranks in groups:
                pipeline_rank = layout.coordinate(ranks[0], "pipeline")
                whole = layer_group(self._parts, axis, ranks)
                for stage, chunk in self._parts.programs.chunks(pipeline_rank).items():
                    yield replace(whole, stage=stage, chunks=[chunk] * whole.size + [-1] * whole.servers)

    def _met(self, wanted: Collection[int]) -> Made:
        """The collectives inside ops along axes whose members meet, once per stage."""
        layout, traffic = self._parts.times.layout, self._parts.traffic
        for axis, ranks in ((each, ranks) for each in traffic.met for ranks in traffic.replayed[each]):
            members = [rank for rank in ranks if rank in wanted]
            for stage in self._parts.programs.chunks(layout.coordinate(ranks[0], "pipeline")):
                meeting = self.transport.meeting(ReplayedGroup, len(members), ranks)
                for rank in members:
                    beside = self.computation.get(rank)
                    yield rank, (axis, stage, 0), Met(self.transport.env, meeting, beside)

    def _of_copies(self, wanted: Collection[int]) -> Made:
        """The transfers of copies of experts, and of experts that move."""
        if not self._parts.copied:
            return
        layout = self._parts.times.layout
        for ranks in layout.groups("expert"):
            for stage, chunk in self._parts.programs.chunks(layout.coordinate(ranks[0], "pipeline")).items():
                chunks = [chunk] * len(ranks)
                whole = ProcessGroup("expert copies", stage, ranks, chunks, part=COPIES, purpose=PARAMETERS)
                for number, rank in enumerate(ranks):
                    if rank in wanted:
                        made = self._communicator(whole, number, lambda: _work_of_copies, member=(rank, stage))
                        yield rank, (PARAMETERS.name, stage, COPIES), made

    def _replayed(self, wanted: Collection[int]) -> Made:
        """The collectives of sharded layers: members meet; in a fold, those that are simulated."""
        meetings: dict[int, list[ReplayedGroup | None]] = {}
        groups = self._parts.meeting or ()
        for part, of_part in enumerate(groups):
            for ranks in of_part:
                members = [rank for rank in ranks if rank in wanted]
                meeting = self.transport.meeting(ReplayedGroup, len(members), ranks)
                lost = self._lost(ranks) if members else None
                for rank in members:
                    meetings.setdefault(rank, [None] * len(groups))[part] = meeting
                    if lost:
                        meeting.listeners.append(partial(self.computation[rank].during, lost))
        if self._parts.meeting is not None:
            for rank in wanted:
                yield rank, LAYERS, Replayed(meetings.get(rank, ()))

    def _of_documents(self, wanted: Collection[int]) -> Made:
        """The meetings of ranks that share documents in some micro-batches."""
        lanes, layout = self._parts.costs.lanes, self._parts.times.layout
        for first, count in () if lanes is None else lanes.meetings:
            for ranks in layout.in_lanes(first, count):
                members = [rank for rank in ranks if rank in wanted]
                meeting = self.transport.meeting(ReplayedGroup, len(members), ranks)
                yield from ((rank, (program.TOGETHER, first, count), Barrier(meeting)) for rank in members)

    def _of_traces(self, wanted: Collection[int]) -> Made:
        """The groups of programs that came from a trace: by messages, or members meet and the recorded time passes."""
        for group in self._parts.given:
            members = [rank for rank in group.processes.ranks if rank in wanted]
            if group.replayed:
                meeting = self.transport.meeting(ReplayedGroup, len(members), group.processes.ranks)
                for rank in members:
                    yield rank, group.key, Replayed([meeting])
                continue
            begin = partial(_work_of_trace, group)
            for position, rank in enumerate(group.processes.ranks[: group.processes.size]):
                if rank in wanted:
                    yield rank, group.key, self._communicator(group.processes, position, begin, member=(rank, 0))

    def _communicator(self, group: ProcessGroup, position: int, begin: Begin, **more: Any) -> Communicator:
        beside = self.computation.get(group.ranks[position])
        return Communicator(self.transport.env, Group(self.transport, group, position), begin, beside=beside, **more)

    def _begin(
        self,
        group: ReplicaGroup,
        name: str,
        codec: Codec,
        *,
        arrays: Arrays = _no_arrays,
        lost: Fraction = NONE_LOST,
        ring: tuple[ProcessGroup, ProcessGroup, Sequence[int]] | None = None,
    ) -> Begin:
        """The work of a step: a call per bucket, on parts of the arrays or only of sizes."""
        algorithm = collectives.configured(name, self._reductions.options)
        if ring is not None and self._override is not None:
            algorithm = self._override.of_gradients(*ring, algorithm)
        sizes = [bucket.elements for bucket in group.buckets]

        def begin() -> Callable[[int], Work]:
            buffers = Buffer(sum(sizes), codec, *arrays()).sections(sizes)
            return lambda bucket: Work(algorithm, buffers[bucket], lost=lost)

        return begin

    def _arrays(self, worker: Worker, stage: int) -> tuple[Any, Any]:
        """A stage's gradient, which is reduced in place, and the error that a lossy codec left."""
        return worker.gradient(stage), worker.residual(stage) if self._reductions.error_feedback else None


def _work_of_trace(group: GivenGroup) -> Callable[[GivenCollective], Work]:
    algorithm = collectives.configured(group.algorithm, group.options)
    return lambda call: Work(algorithm, group.buffer(call))


@lru_cache(maxsize=4096)
def work_of(collective: LayerCollective) -> Work:
    """The work of a collective inside an op."""
    buffer = buffer_of(collective.size, collective.held, back=collective.back)
    algorithm = collectives.configured(collective.algorithm, collective.how)
    return Work(algorithm, buffer, collective.launch, collective.lost)


def _work_of_copies(sizes: Sizes) -> Work:
    """The work of transfers of these sizes."""
    return Work(partial(transfers, sizes=sizes), Buffer(0, codecs.find(SIXTEEN_BITS).build()))


def _begin_layers() -> Callable[[LayerCollective], Work]:
    """The work of each collective inside ops, in any step."""
    return work_of


def _evenly(elements: int, members: int, channels: int) -> Sequence[int]:
    """The shares of channels that differ by at most one element."""
    return split_evenly(elements, channels)


def _zeros(length: int) -> tuple[Any, Any]:
    return np.zeros(length), None


def layer_group(parts: Parts, axis: str, ranks: Sequence[int]) -> ProcessGroup:
    """The group of some ranks along an axis: with all that NCCL knows about it, if its layers run NCCL's collectives.

    The switches of its nodes serve it only if NCCL's tuner takes them for one of its all-reduces.
    """
    flows, pipeline_rank = parts.traffic.flows, parts.times.layout.coordinate(ranks[0], "pipeline")
    done = {(one.algorithm, one.size) for one in parts.costs.collectives_of(pipeline_rank) if one.axis == axis}
    if not any(collectives.find(name).facts["tuned"] for name, _ in done):
        rings = () if flows and axis in flows.pairs else orders(parts.fabric, ranks)
        return ProcessGroup(axis, 0, ranks, (), purpose=OF_LAYERS[axis], channels=rings)
    whole = parts.times.process_group("nccl", ranks, Channels())
    choices = [whole.tuned.choice("all-reduce", elements_of(size) * ELEMENT) for name, size in done if name == "nccl"]
    if not any(choice.algorithm.startswith("nvls") for choice in choices):
        whole = replace(whole, ranks=ranks, servers=0)
    return replace(whole, kind=axis, purpose=OF_LAYERS[axis])
