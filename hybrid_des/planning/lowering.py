"""Lowering: a pipeline rank's actions become the streams of its program, with times, messages and memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, pairwise
from math import ceil
from typing import Any, ClassVar, NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import CONTEXT, PARAMETERS, REDUCTION, Purpose, purpose_named
from hybrid_des.cost_model.rank_costs import Costs, StageCosts
from hybrid_des.cost_model.stages import bytes_of
from hybrid_des.engine.recorder import AFTER, BEFORE, OPTIMIZER, pipeline_tag
from hybrid_des.pipeline.plan import Action, Kind, Op, Place, Plan, carried
from hybrid_des.planning.buckets import Bucket
from hybrid_des.planning.compute_speed import ComputeSpeed
from hybrid_des.planning.expert_copies import COPIES, Transfers
from hybrid_des.planning.expert_streams import ExpertStreams, at_points
from hybrid_des.planning.fsdp import Fsdp, LayerPass
from hybrid_des.planning.op_bodies import Point, body_of, ends_of
from hybrid_des.planning.program import (
    GRADIENT,
    PARAMETER,
    STEP,
    TOGETHER,
    Begin,
    Block,
    Call,
    Cause,
    Collective,
    Compute,
    Confirm,
    End,
    Group,
    Instruction,
    Program,
    Receive,
    Record,
    Row,
    Send,
    Start,
    Wait,
    block_of,
    call_of,
    filled,
    gathered,
    program_of,
    waiting_for,
)


class _Frame(NamedTuple):
    """What blocks of the same ops have in common, whatever these cost.

    Attributes:
        stages: of the ops.
        receives: the messages that they wait for.
        sends: for each message that they send: the op, peer, purpose and tag, and where its size is known.
        completes: the stages whose last gradients they compute.
        fresh: the stages that they use first.
        sent: sizes → the messages that they send.
    """

    stages: tuple[int, ...]
    receives: tuple[Receive, ...]
    sends: tuple[tuple[int, int, Purpose, int, Place], ...]
    completes: Sequence[int]
    fresh: frozenset[int]
    sent: dict[tuple[int, ...], tuple[Send, ...]]


_Works = dict[tuple[tuple[Kind, int], ...], tuple[Sequence[Instruction], Sequence[StageCosts]]]


class _Shared:
    """What programs of all lanes and steps share: where documents differ, each lane would make it again.

    Attributes:
        frames: what their ops are → the frame of an action.
        works: pace → kinds and costs of its ops → what an action does between its messages, and these costs, which
            stay, so that no others take their place.
        messages: size → a message.
        started: pipeline rank, lane and step → the calls inside its ops that endpoints serve, in their order.
    """

    def __init__(self) -> None:
        self.frames: dict[tuple[Any, ...], _Frame] = {}
        self.works: dict[ComputeSpeed, _Works] = {}
        self.messages: dict[int, Message] = {}
        self.started: dict[tuple[int, int, int], list[tuple[Group, Any]]] = {}


Gather = tuple[Fraction, int, int]  # fraction of the forward before it, part, bucket


@dataclass(frozen=True)
class Lowering:
    """Parameters of lowering shared by all ranks of a run.

    Attributes:
        buckets: stage → part → its buckets, for stages whose gradients are reduced.
        overlap: whether a bucket is reduced as soon as it is filled, not after the pipeline.
        blocking: whether a task ends when its messages have arrived, as in Megatron's plain 1F1B.
        sharded: whether the parameters of these buckets are gathered once per step.
        ahead: whether they are gathered during the forwards of the next step, not after the optimizer.
        layered: lowers ops layer by layer, where gradients or weights are sharded.
        axes: those whose collectives inside ops are messages; those of other axes are replayed.
        barrier: whether no rank begins a step before all have ended the last one.
        streams: lowers ops whose exchanges with experts run on a stream of their own.
        copies: stage → what the placement of its experts sends in the step.
        further: how the steps after the first are lowered, if experts are wanted or placed differently in them.
        lane, step: of the ranks and the training step whose documents are computed, where these differ.
        shared: what programs share.
    """

    plan: Plan
    costs: Costs
    buckets: Mapping[int, Mapping[int, Sequence[Bucket]]]
    overlap: bool
    blocking: bool
    sharded: bool = False
    ahead: bool = False
    fsdp: Fsdp | None = None
    axes: frozenset[str] = frozenset()
    barrier: bool = False
    streams: ExpertStreams | None = None
    copies: Mapping[int, Transfers] = field(default_factory=dict)
    further: Sequence[Lowering] = ()
    lane: int = 0
    step: int = 0
    shared: _Shared = field(default_factory=_Shared, repr=False, compare=False)
    each: ClassVar = False  # whether every rank has a program of its own; those of a pipeline rank share theirs

    @property
    def concurrent(self) -> bool:
        """Whether collectives are under way while ops compute."""
        layered = self.fsdp is not None and (self.fsdp.ahead or self.fsdp.overlapped)
        return layered or self.ahead or (self.overlap and bool(self.buckets)) or self.streams is not None

    @property
    def microbatches(self) -> int:
        """Number of micro-batches per replica and training step."""
        return self.plan.microbatches

    @property
    def pairs(self) -> Collection[tuple[int, int]]:
        """The pipeline ranks that send to each other: activations one way, gradients the other."""
        hops = [(a, b) for path in self.plan.paths for (a, _), (b, _) in pairwise(path) if a != b]
        return {*hops, *((b, a) for a, b in hops)}

    def chunks(self, rank: int) -> Mapping[int, int]:
        """Stage → its chunk, for the stages that a pipeline rank holds."""
        return {self.plan.stage_of[rank, chunk]: chunk for chunk in self.plan.chunks_of(rank)}

    @property
    def steps(self) -> int:
        """Training steps whose programs differ."""
        return 1 + len(self.further) if self.costs.lanes is None else self.costs.lanes.steps

    def at(self, lane: int, step: int) -> Lowering:
        """The same for the documents of a lane, and the loads of experts, in a training step."""
        step %= self.steps
        if self.costs.lanes is not None:
            return replace(self, lane=lane, step=step)
        return self.further[step - 1] if step else self

    def cost(self, position: Place, microbatch: int) -> StageCosts:
        """The costs of a micro-batch on the stage at a pipeline rank and chunk."""
        if self.costs.lanes is None:
            return self.costs.stages[position]
        return self._by_microbatch[microbatch][self.plan.stage_of[position]]

    @cached_property
    def _by_microbatch(self) -> Sequence[Sequence[StageCosts]]:
        """Where documents differ: micro-batch → the costs of its stages."""
        assert self.costs.lanes is not None
        return self.costs.lanes.stages(self.step, self.lane)

    def nominal_durations(self, rank: int, lane: int = 0) -> Callable[[Op, int], int]:
        """The picoseconds of each op of a pipeline rank in a step at speed 1."""
        views = [self.at(lane, step) for step in range(self.steps)]
        return lambda op, step: views[step % len(views)].cost((rank, op.chunk), op.microbatch).time(op.kind)

    @cached_property
    def _programs(self) -> dict[tuple[int, ComputeSpeed, int], Program]:
        return {}

    def lower(self, rank: int, pace: ComputeSpeed, lane: int = 0) -> Program:
        """The program of a pipeline rank at a pace; made once, since what-ifs simulate the same parts again."""
        key = rank, pace, lane
        if key not in self._programs:
            views = [self.at(lane, step) for step in range(self.steps)]
            made = {which: view._program(rank, pace) for which, view in {id(view): view for view in views}.items()}
            first, *further = [made[id(view)] for view in views]
            self._programs[key] = replace(first, further=tuple(further)) if further else first
        return self._programs[key]

    def _program(self, rank: int, pace: ComputeSpeed) -> Program:
        held = sorted(self.chunks(rank))
        reduced = [one for stage in reversed(held) for one in self._reductions(stage)]  # deepest first
        gathers = [(stage, part, number) for stage in held for _, part, number in self.gathers(stage)]
        streams = {GRADIENT: reduced, PARAMETER: list(self._parameters(rank, pace, gathers))}
        others = {name: [call_of(*work)] for name, work in streams.items() if work}
        late = not (self.overlap and self.plan.programs[rank])
        fills = [Record(filled(stage)) for stage in reversed(held) for _ in self._buckets(stage)] if late else []
        last = [] if self.ahead else [_gather(*one, waiting_for(PARAMETERS, AFTER)) for one in gathers]
        back, out = ([one for stage in reversed(held) for one in way(stage)] for way in (self._back, self._out))
        return program_of(
            self._calls(rank, pace),
            others,
            first=[Record(STEP)] if PARAMETER in others else [],
            fills=[*back, *fills],
            optimizer=self._optimizer(rank, pace),
            last=[*last, *out],
            barrier=self.barrier,
        )

    def _back(self, stage: int) -> Iterator[Instruction]:
        """Send the gradients of a stage's copied experts to where these are updated."""
        if sizes := self.copies.get(stage, Transfers()).gradients:
            yield Collective((PARAMETERS.name, stage, COPIES), sizes)

    def _out(self, stage: int) -> Iterator[Instruction]:
        """Send the updated weights to the copies, and to where experts move."""
        if sizes := self.copies.get(stage, Transfers()).weights:
            yield Collective((PARAMETERS.name, stage, COPIES), sizes, cause=waiting_for(PARAMETERS, AFTER))

    def serve(self, group: Group, rank: int, lane: int = 0) -> Program:
        """The program of an endpoint that serves a process group, of which a rank is a member, without being one."""
        name, stage, part = group
        calls: list[Sequence[Any]] = [range(len(self.buckets[stage][part]))] if name == REDUCTION.name else [
            [call for other, call in self._started_in(rank, lane, step) if other == group] for step in range(self.steps)
        ]  # fmt: skip
        each = (call_of(*(Collective(group, call) for call in of_step), stages=(stage,)) for of_step in calls)
        first, *further = [Program({GRADIENT: (of_step,)}) for of_step in each]
        return replace(first, further=tuple(further))

    def _started_in(self, rank: int, lane: int, step: int) -> list[tuple[Group, Any]]:
        known = self.shared.started
        if (rank, lane, step) not in known:
            starts = (call.block.every(Start) for call in self.at(lane, step)._calls(rank, ComputeSpeed()))
            served = [one for one in chain(*starts) if collectives.find(one.call.algorithm).facts["servers"]]
            known[rank, lane, step] = [(one.group, one.call) for one in served]
        return known[rank, lane, step]

    def replayed(self, rank: int) -> Mapping[str, int]:
        """Amounts sent per step by replayed collectives of all ranks, which run the same program as `rank`."""
        return self.fsdp.replayed(self._passes(rank, ComputeSpeed())) if self.fsdp else {}

    def _passes(self, rank: int, pace: ComputeSpeed) -> Iterator[LayerPass]:
        assert self.fsdp is not None
        fresh = self._fresh(rank)
        known: dict[tuple[Any, ...], tuple[LayerPass, ...]] = {}
        for index, action in enumerate(self.plan.programs[rank]):
            costs = self._costs(rank, action)
            each = [(op.kind, op.chunk, id(cost)) for op, cost in zip(action, costs, strict=True)]
            alike = (*each, fresh.get(index), self.fsdp.scatters(action))
            if alike not in known:
                known[alike] = self.fsdp.passes(rank, action, costs, pace, fresh.get(index, frozenset()))
            yield from known[alike]

    def _buckets(self, stage: int) -> list[tuple[int, int]]:
        """The buckets of a stage: the part of each, and its index there."""
        return [(part, number) for part, of in self.buckets.get(stage, {}).items() for number in range(len(of))]

    def _reductions(self, stage: int) -> Iterator[Instruction]:
        """Reduce the buckets of a stage as they are filled."""
        for index, (part, number) in enumerate(self._buckets(stage)):
            yield Wait(filled(stage))
            yield Collective((REDUCTION.name, stage, part), number, Row("reductions", stage, index))

    def _parameters(
        self, rank: int, pace: ComputeSpeed, gathers: Sequence[tuple[int, int, int]]
    ) -> Iterator[Instruction]:
        """The parameter stream."""
        if self.fsdp:
            work = list(self.fsdp.stream(self._passes(rank, pace)))
        else:
            each = ((_gather(*gather), Record(gathered(gather[0]))) for gather in gathers if self.ahead)
            work = list(chain.from_iterable(each))
        if work:
            yield from (Wait(STEP), *work)

    def _optimizer(self, rank: int, pace: ComputeSpeed) -> Iterator[Call]:
        routing = self.costs.routing[self.step] if self.costs.routing else 0
        if duration := pace.duration(self.costs.optimizer[rank] + routing):
            yield Call(block_of((), Begin(), Compute(duration), End()), OPTIMIZER)

    def _calls(self, rank: int, pace: ComputeSpeed) -> Iterator[Call]:
        path_of, lanes = self.plan.path_of, self.costs.lanes
        numbers = lanes.numbers(self.step, self.lane) if lanes is not None else ()
        completes = self._completes(rank) if self.overlap else {}
        fresh = self._fresh(rank)
        # thousands of actions are of few kinds: a block is what an action does, and equal ones share it; a frame is
        # what of it does not depend on durations, so that micro-batches of unequal documents still share that
        blocks: dict[tuple[Any, ...], Block] = {}
        frames, works = self.shared.frames, self.shared.works.setdefault(pace, {})
        pause = block_of((), Compute(self.costs.between))
        for index, action in enumerate(self.plan.programs[rank]):
            if index and self.costs.between:
                yield Call(pause)
            alike: tuple[Any, ...] = (rank,)
            for kind, microbatch, chunk in action:
                alike += kind, chunk, path_of[microbatch]
            if index in completes or index in fresh:
                alike += completes.get(index), fresh.get(index)
            if self.fsdp:
                alike += (self.fsdp.scatters(action),)
            frame = alike
            if numbers:  # documents differ from micro-batch to micro-batch
                alike += tuple([numbers[op.microbatch] for op in action])
            block = blocks.get(alike)
            if block is None:
                if frame not in frames:
                    frames[frame] = self._frame(rank, action, completes.get(index, ()), fresh.get(index, frozenset()))
                block = blocks[alike] = self._block(rank, action, frames[frame], pace, works)
            yield Call(block, index, action)

    def _completes(self, rank: int) -> dict[int, tuple[int, ...]]:
        """Map each action that completes the weight gradients of stages with buckets to those stages.

        The first completes those of stages that no micro-batch visits on this rank: nothing is added to their zeros.
        """
        last = dict.fromkeys(self.chunks(rank), 0)
        for index, action in enumerate(self.plan.programs[rank]):
            last.update({self.plan.stage_of[rank, op.chunk]: index for op in action if op.kind in "BW"})
        complete: dict[int, tuple[int, ...]] = {}
        for stage, index in last.items():
            if stage in self.buckets:
                complete[index] = *complete.get(index, ()), stage
        return complete

    def _fresh(self, rank: int) -> dict[int, frozenset[int]]:
        """Map actions to the stages that they are the first to use, if parameters are gathered for the first use."""
        if not (self.fsdp.once if self.fsdp else self.ahead):
            return {}
        seen: set[int] = set()
        fresh = {}
        for index, action in enumerate(self.plan.programs[rank]):
            fresh[index] = frozenset(self.plan.stage_of[rank, op.chunk] for op in action) - seen
            seen |= fresh[index]
        return fresh

    def planned_peak(self, rank: int) -> int:
        """Peak bytes of a pipeline rank."""
        each = range(1 if self.costs.lanes is None else self.microbatches)
        mine = {chunk: [self.cost((rank, chunk), one) for one in each] for chunk in self.plan.chunks_of(rank)}
        now = most = self.costs.held(rank, self.lane)
        for kept, _, freed in bytes_of(self.plan, rank, mine):
            most = max(most, now + kept)
            now += kept - freed
        return most

    def _frame(self, rank: int, action: Action, completes: Sequence[int], fresh: frozenset[int]) -> _Frame:
        sources = filter(None, (self._source(rank, op, place) for place, op in enumerate(action)))
        sends = filter(None, (self._destination(rank, op, place) for place, op in enumerate(action)))
        return _Frame(
            tuple(self.plan.stage_of[rank, op.chunk] for op in action),
            tuple(Receive(place, *source) for place, source in enumerate(sources)),
            tuple(sends),
            completes,
            fresh,
            {},
        )

    def _block(self, rank: int, action: Action, frame: _Frame, pace: ComputeSpeed, works: _Works) -> Block:
        """The block of an action, which those of other micro-batches share if they cost the same."""
        costs = self._costs(rank, action)
        if frame.completes or frame.fresh or self.axes or self.streams or self.fsdp:
            needs, body = self._body(rank, action, costs, pace, frame)
            begin, end = ends_of(action, costs)
            work: Sequence[Instruction] = block_of(frame.stages, *needs, begin, *body, end).instructions
        else:  # it only computes
            alike = tuple([(op.kind, id(cost)) for op, cost in zip(action, costs, strict=True)])
            if alike not in works:
                begin, end = ends_of(action, costs)
                duration = self._duration(action, costs, pace)
                works[alike] = (begin, Compute(duration, whole=duration), end), costs
            work = works[alike][0]
        lanes = self.costs.lanes
        meets = self._meets(action) if lanes is not None and lanes.meetings else ()
        sizes = tuple([self.cost(size, action[slot].microbatch).message for slot, *_, size in frame.sends])
        sends = frame.sent.get(sizes) or frame.sent.setdefault(sizes, tuple(self._sends(frame, sizes)))
        confirms = [Confirm(slot, purpose, tag) for slot, _, purpose, tag, _ in frame.sends if self.blocking]
        return Block(frame.stages, (*frame.receives, *meets, *work, *sends, *confirms))

    def _sends(self, frame: _Frame, sizes: Sequence[int]) -> Iterator[Send]:
        for size, (slot, peer, purpose, tag, _) in zip(sizes, frame.sends, strict=True):
            yield Send(slot, peer, purpose, tag, self.shared.messages.setdefault(size, Message(size)))

    def _meets(self, action: Action) -> Iterator[Instruction]:
        """Wait for the other lanes that share the documents of an action, if these change with the micro-batch."""
        assert self.costs.lanes is not None
        for op in action:
            lanes = self.costs.lanes.together(self.step, self.lane, op.microbatch)
            if lanes is not None and op.kind != "W":
                yield Collective((TOGETHER, *lanes), None, cause=waiting_for(CONTEXT, BEFORE))

    def _costs(self, rank: int, action: Action) -> list[StageCosts]:
        """The costs of the ops of an action."""
        return [self.cost((rank, op.chunk), op.microbatch) for op in action]

    def _body(
        self,
        rank: int,
        action: Action,
        costs: Sequence[StageCosts],
        pace: ComputeSpeed,
        frame: _Frame,
    ) -> tuple[Sequence[Instruction], Sequence[Instruction]]:
        """What an action waits for before it starts, and what it does then."""
        if self.fsdp:
            return self.fsdp.body(self.fsdp.passes(rank, action, costs, pace, frame.fresh))
        parts = [(stage, cost, op.kind) for stage, cost, op in zip(frame.stages, costs, action, strict=True)]
        duration = self._duration(action, costs, pace)
        points = list(self._points(action, frame, duration))
        points.sort(key=lambda point: (point.at, point.stage))
        # what is needed at once is waited for before the op begins, so that its row does not count the wait as work
        first = [point for point in points if point.needed and not point.at]
        rest = [point for point in points if point not in first]
        needs = [Wait(gathered(point.stage), waiting_for(PARAMETERS, BEFORE)) for point in first]
        if self.streams:
            body = self.streams.body(parts, self._fused(action), pace)
            shares = [(Fraction(point.at, duration or 1), point.instruction) for point in rest]
            return needs, list(at_points(body, shares))
        return needs, body_of(parts, duration, pace, self.axes, rest)

    def _fused(self, action: Action) -> Fraction | int:
        """The time of an action, relative to the sum of those of its ops."""
        return self.plan.fused_time if len(action) > 1 else 1

    def _duration(self, action: Action, costs: Sequence[StageCosts], pace: ComputeSpeed) -> int:
        """Picoseconds of an action on idle links."""
        fused = self._fused(action)
        waits = sum([cost.waits(op.kind) for cost, op in zip(costs, action, strict=True)])
        whole = sum([cost.time(op.kind) for cost, op in zip(costs, action, strict=True)])
        return pace.duration(fused * (whole - waits), fused * waits)

    def _points(self, action: Action, frame: _Frame, duration: int) -> Iterator[Point]:
        """The moments of an action at which buckets are filled, or parameters needed."""
        yield from self._filled_at(frame.completes, frozenset(frame.stages), duration)
        yield from self._needed_at(frame.fresh, action, duration)

    def _filled_at(self, completes: Sequence[int], visited: frozenset[int], duration: int) -> Iterator[Point]:
        """When an action fills the buckets of stages; at once, those of stages that it does not visit."""
        for stage in completes:
            span = duration if stage in visited else 0
            for bucket in chain.from_iterable(self.buckets[stage].values()):
                yield Point(ceil(span * bucket.leaves), stage)

    def _needed_at(self, fresh: frozenset[int], action: Action, duration: int) -> Iterator[Point]:
        """When an action first uses gathered parameters; a fused pair uses those of both ops from its start."""
        for stage in sorted(fresh) if self.ahead else ():
            for at, _, _ in self.gathers(stage):
                yield Point(int(duration * (at if len(action) == 1 else 0)), stage, needed=True)

    def gathers(self, stage: int) -> list[Gather]:
        """The gathers of a stage in the order of use.

        Buckets are in the order of gradients: the last holds the parameters that a forward uses first.
        """
        gathers = [
            (1 - bucket.leaves, part, number)
            for part, buckets in (self.buckets.get(stage, {}) if self.sharded else {}).items()
            for number, bucket in enumerate(buckets)
        ]
        return sorted(gathers, key=lambda gather: (gather[0], gather[1], -gather[2]))

    def _source(self, rank: int, op: Op, slot: int) -> tuple[int, int, Purpose, int] | None:
        """The op, peer, purpose and tag of a message that an op receives."""
        source = self.plan.source(rank, op)
        return None if source is None else (slot, source[0], _purpose(op), self._tag(source))

    def _destination(self, rank: int, op: Op, slot: int) -> tuple[int, int, Purpose, int, Place] | None:
        """The op, peer, purpose and tag of a message that an op sends, and the stage whose activation is as large."""
        here, target = (rank, op.chunk), self.plan.target(rank, op)
        if target is None:
            return None
        return slot, target[0], _purpose(op), self._tag(here), here if op.kind == "F" else target

    def _tag(self, sender: Place) -> int:
        return pipeline_tag(0, self.plan.stage_of[sender], 0)


def planned_peaks(plan: Plan, costs: Costs) -> list[int]:
    """Peak bytes of each pipeline rank; where documents differ, of the lane and step that hold most."""
    lowering = Lowering(plan, costs, {}, overlap=False, blocking=False)
    lanes = 1 if costs.lanes is None else costs.lanes.count
    views = [lowering.at(lane, step) for lane in range(lanes) for step in range(lowering.steps)]
    return [max(view.planned_peak(rank) for view in views) for rank in range(plan.pipeline)]


def _gather(stage: int, part: int, number: int, cause: Cause | None = None) -> Collective:
    return Collective((PARAMETERS.name, stage, part), number, Row("gathers", stage, -1), cause)


def _purpose(op: Op) -> Purpose:
    return purpose_named(carried(op))
