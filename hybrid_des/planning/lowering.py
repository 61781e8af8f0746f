"""Lowering: a pipeline rank's actions become the streams of its program, with times, messages and memory.

    computing            begin │ compute │ end
    with_buckets         begin │ compute │ "filled" │ compute │ end           or wait for gathered parameters
    with_expert_streams  begin │ compute │ start │ compute │ join │ … │ end   or layer by layer: `with_sharded_layers`
    with_meetings        meet │ begin │ … │ end
    with_sends           receive │ meet │ begin │ … │ end │ send
    program_of           all of a rank's blocks in order, beside its streams of reductions and gathers

Each is a function of a block (of what one action does) that returns another. Thousands of actions are of few kinds, so
each kind is lowered once, and its actions share the block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, ClassVar

from hybrid_des import collectives
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import CONTEXT, PARAMETERS, REDUCTION
from hybrid_des.cost_model.rank_costs import Costs, StageCosts, UnequalCosts
from hybrid_des.cost_model.stages import bytes_of
from hybrid_des.engine.recorder import AFTER, BEFORE, OPTIMIZER
from hybrid_des.pipeline.plan import Action, Op, Place, Plan
from hybrid_des.planning import bucket_streams
from hybrid_des.planning.expert_copies import Transfers
from hybrid_des.planning.expert_streams import ExpertStreams, at_points
from hybrid_des.planning.fsdp import Fsdp, LayerPass
from hybrid_des.planning.gradients import Bucket
from hybrid_des.planning.op_bodies import Hops, Part, Point, body_of, ends_of, hops_of, with_sends
from hybrid_des.planning.program import (
    GRADIENT,
    PARAMETER,
    STEP,
    TOGETHER,
    Begin,
    Block,
    Call,
    Collective,
    Compute,
    ComputeSpeed,
    End,
    Group,
    Instruction,
    Program,
    Record,
    Start,
    Wait,
    block_of,
    call_of,
    filled,
    gathered,
    program_of,
    waiting_for,
)


@dataclass(frozen=True, eq=False)
class Task:
    """What actions of a rank have in common that share a block; `action` is one of them.

    Attributes:
        hops: its messages.
        stages, costs: of its ops.
        completes: the stages whose last gradients it computes.
        fresh: the stages that it is the first to use.
        fused: its time, relative to the sum of those of its ops.
        pace: at which it computes.
    """

    rank: int
    hops: Hops
    action: Action
    stages: tuple[int, ...]
    costs: Sequence[StageCosts]
    completes: Sequence[int]
    fresh: frozenset[int]
    fused: Fraction | int
    pace: ComputeSpeed

    @property
    def parts(self) -> list[Part]:
        """Its ops: the stage, the costs and the kind of each."""
        return [(stage, cost, op.kind) for stage, cost, op in zip(self.stages, self.costs, self.action, strict=True)]

    @cached_property
    def duration(self) -> int:
        """Picoseconds that it takes on idle links."""
        each = list(zip(self.costs, self.action, strict=True))
        waits = sum([cost.waits(op.kind) for cost, op in each])
        whole = sum([cost.time(op.kind) for cost, op in each])
        return self.pace.duration(self.fused * (whole - waits), self.fused * waits)


def computing(task: Task) -> Block:
    """An action that only computes."""
    (begin, end), duration = ends_of(task.action, task.costs), task.duration
    return Block(task.stages, (begin, Compute(duration, whole=duration), end))


def with_sharded_layers(task: Task, fsdp: Fsdp) -> Block:
    """An action layer by layer, with the collectives of each."""
    return _around(task, *fsdp.body(fsdp.passes(task.rank, task.action, task.costs, task.pace, task.fresh)))


def with_expert_streams(task: Task, streams: ExpertStreams, points: Sequence[Point]) -> Block:
    """An action whose exchanges with experts run on a stream of their own, and what happens meanwhile."""
    needs, rest = _needed_first(points)
    shares = [(Fraction(point.at, task.duration or 1), point.instruction) for point in rest]
    return _around(task, needs, [*at_points(streams.body(task.parts, task.fused, task.pace), shares)])


def with_buckets(task: Task, axes: Collection[str], points: Sequence[Point]) -> Block:
    """An action with the collectives along some axes as messages, and what happens meanwhile."""
    needs, rest = _needed_first(points)
    return _around(task, needs, body_of(task.parts, task.duration, task.pace, axes, rest))


def with_meetings(block: Block, action: Action, lanes: UnequalCosts, step: int, lane: int) -> Block:
    """The same, which first waits for the other lanes that share its documents, if these change with micro-batches."""
    each = [lanes.together(step, lane, op.microbatch) for op in action if op.kind != "W"]
    meets = [Collective((TOGETHER, *one), None, cause=waiting_for(CONTEXT, BEFORE)) for one in each if one is not None]
    return Block(block.stages, (*meets, *block.instructions))


def _around(task: Task, needs: Sequence[Instruction], body: Sequence[Instruction]) -> Block:
    """What an action waits for before it begins, and what it does then."""
    begin, end = ends_of(task.action, task.costs)
    return block_of(task.stages, *needs, begin, *body, end)


def _needed_first(points: Sequence[Point]) -> tuple[list[Instruction], list[Point]]:
    """What is needed at once is waited for before an op begins, so that its row does not count the wait as work."""
    first = [point for point in points if point.needed and not point.at]
    needs: list[Instruction] = [Wait(gathered(one.stage), waiting_for(PARAMETERS, BEFORE)) for one in first]
    return needs, [point for point in points if point not in first]


class _Shared:
    """What programs of all lanes and steps share: where documents differ, each lane would make it again.

    Attributes:
        hops: what their ops are → the messages of actions.
        messages: size → a message.
        started: pipeline rank, lane and step → the calls inside its ops that endpoints serve, in their order.
    """

    def __init__(self) -> None:
        self.hops: dict[tuple[Any, ...], Hops] = {}
        self.messages: dict[int, Message] = {}
        self.started: dict[tuple[int, int, int], list[tuple[Group, Any]]] = {}


@dataclass(frozen=True, eq=False)
class Lowering:
    """Parameters of lowering shared by all ranks of a run.

    Attributes:
        buckets: stage → part → its buckets, for stages whose gradients are reduced.
        overlap: whether a bucket is reduced as soon as it is filled, not after the pipeline.
        blocking: whether a task ends when its messages have arrived, as in Megatron's plain 1F1B.
        sharded: whether the parameters of these buckets are gathered once per step.
        ahead: whether they are gathered during the forwards of the next step, not after the optimizer.
        fsdp: lowers ops layer by layer, where gradients or weights are sharded.
        axes: those whose collectives inside ops are instructions; of other axes, ops include their time.
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
            made = {view: view._program(rank, pace) for view in dict.fromkeys(views)}
            first, *further = map(made.__getitem__, views)
            self._programs[key] = replace(first, further=tuple(further)) if further else first
        return self._programs[key]

    def _program(self, rank: int, pace: ComputeSpeed) -> Program:
        held, after = sorted(self.chunks(rank)), waiting_for(PARAMETERS, AFTER)
        deepest_first = [(stage, self.buckets.get(stage, {})) for stage in reversed(held)]
        reduces = [one for stage, buckets in deepest_first for one in bucket_streams.reductions(stage, buckets)]
        fills = [Record(filled(stage)) for stage, buckets in deepest_first for _ in bucket_streams.numbered(buckets)]
        gathers = [one for stage in held for one in bucket_streams.gathers(stage, self._sharded(stage), after)]
        copies = [(stage, self.copies[stage]) for stage in reversed(held) if stage in self.copies]
        back = [one for stage, of in copies for one in bucket_streams.copied(stage, of.gradients)]
        out = [one for stage, of in copies for one in bucket_streams.copied(stage, of.weights, after)]
        streams = {GRADIENT: reduces, PARAMETER: list(self._parameters(rank, pace, held))}
        others = {name: [call_of(*work)] for name, work in streams.items() if work}
        late = not (self.overlap and self.plan.programs[rank])
        return program_of(
            self._calls(rank, pace),
            others,
            first=[Record(STEP)] if PARAMETER in others else [],
            fills=[*back, *(fills if late else ())],
            optimizer=self._optimizer(rank, pace),
            last=[*(() if self.ahead else gathers), *out],
            barrier=self.barrier,
        )

    def _sharded(self, stage: int) -> Mapping[int, Sequence[Bucket]]:
        """The buckets of a stage whose parameters are gathered."""
        return self.buckets.get(stage, {}) if self.sharded else {}

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

    @property
    def replayed(self) -> Mapping[str, int]:
        """Amounts sent per step by replayed collectives of all ranks; those of a pipeline rank run the same program."""
        if self.fsdp is None:
            return {}
        ranks = range(self.plan.pipeline)
        return self.fsdp.replayed(one for rank in ranks for one in self._passes(rank, ComputeSpeed()))

    def _passes(self, rank: int, pace: ComputeSpeed) -> Iterator[LayerPass]:
        assert self.fsdp is not None
        known: dict[Task, Sequence[LayerPass]] = {}
        for task in self._tasks(rank, pace):
            if task not in known:
                known[task] = self.fsdp.passes(rank, task.action, task.costs, pace, task.fresh)
            yield from known[task]

    def _parameters(self, rank: int, pace: ComputeSpeed, stages: Sequence[int]) -> Iterator[Instruction]:
        """The parameter stream."""
        if self.fsdp:
            work = list(self.fsdp.stream(self._passes(rank, pace)))
        else:
            of_stages = [(stage, self._sharded(stage)) for stage in stages if self.ahead]
            gathers = ((stage, one) for stage, of in of_stages for one in bucket_streams.gathers(stage, of))
            work = [part for stage, gather in gathers for part in (gather, Record(gathered(stage)))]
        if work:
            yield from (Wait(STEP), *work)

    def _optimizer(self, rank: int, pace: ComputeSpeed) -> Iterator[Call]:
        routing = self.costs.routing[self.step] if self.costs.routing else 0
        if duration := pace.duration(self.costs.optimizer[rank] + routing):
            yield Call(block_of((), Begin(), Compute(duration), End()), OPTIMIZER)

    def _tasks(self, rank: int, pace: ComputeSpeed) -> Iterator[Task]:
        """What each action of a rank is; equal ones are one object."""
        plan, lanes, hops = self.plan, self.costs.lanes, self.shared.hops
        numbers = lanes.numbers(self.step, self.lane) if lanes is not None else ()
        completes = bucket_streams.completed(plan, rank, self.buckets) if self.overlap else {}
        once = self.fsdp.once if self.fsdp else self.ahead  # parameters are gathered for their first use
        fresh = bucket_streams.first_used(plan, rank) if once else {}
        tasks: dict[tuple[Any, ...], Task] = {}
        for index, action in enumerate(plan.programs[rank]):
            ends: tuple[Any, ...] = (rank,)
            for kind, microbatch, chunk in action:
                ends += kind, chunk, plan.path_of[microbatch]
            alike = ends
            if index in completes or index in fresh:
                alike += completes.get(index), fresh.get(index)
            if self.fsdp:
                alike += (self.fsdp.scatters(rank, action),)
            if numbers:  # documents differ from micro-batch to micro-batch
                alike += tuple([numbers[op.microbatch] for op in action])
            if alike not in tasks:
                if ends not in hops:
                    hops[ends] = hops_of(plan, rank, action)
                tasks[alike] = Task(
                    rank,
                    hops[ends],
                    action,
                    tuple([plan.stage_of[rank, op.chunk] for op in action]),
                    [self.cost((rank, op.chunk), op.microbatch) for op in action],
                    completes.get(index, ()),
                    fresh.get(index, frozenset()),
                    plan.fused_time if len(action) > 1 else 1,
                    pace,
                )
            yield tasks[alike]

    def _calls(self, rank: int, pace: ComputeSpeed) -> Iterator[Call]:
        """The ops of a rank, with the pauses between them."""
        blocks: dict[Task, Block] = {}
        pause = block_of((), Compute(self.costs.between))
        for index, (task, action) in enumerate(zip(self._tasks(rank, pace), self.plan.programs[rank], strict=True)):
            if index and self.costs.between:
                yield Call(pause)
            if task not in blocks:
                blocks[task] = self._block(task)
            yield Call(blocks[task], index, action)

    def _block(self, task: Task) -> Block:
        """The block of an action, pass by pass."""
        lanes = self.costs.lanes
        if self.fsdp:
            block = with_sharded_layers(task, self.fsdp)
        elif self.streams:
            block = with_expert_streams(task, self.streams, self._points(task))
        elif task.completes or task.fresh or self.axes:
            block = with_buckets(task, self.axes, self._points(task))
        else:
            block = computing(task)
        if lanes is not None and lanes.meetings:
            block = with_meetings(block, task.action, lanes, self.step, self.lane)
        sizes = tuple([self.cost(like, task.action[send.op].microbatch).message for send, like in task.hops.sends])
        return with_sends(block, task.hops, sizes, self.shared.messages, blocking=self.blocking)

    def _points(self, task: Task) -> list[Point]:
        """The moments of an action at which buckets are filled, or parameters needed, in order."""
        fills = bucket_streams.filled_at(self.buckets, task.completes, task.stages, task.duration)
        sharded = self.buckets if self.sharded and self.ahead else {}
        needs = bucket_streams.needed_at(sharded, task.fresh, task.action, task.duration)
        return sorted([*fills, *needs], key=lambda point: (point.at, point.stage))

    def planned_peak(self, rank: int) -> int:
        """Peak bytes of a pipeline rank."""
        each = range(1 if self.costs.lanes is None else self.microbatches)
        mine = {chunk: [self.cost((rank, chunk), one) for one in each] for chunk in self.plan.chunks_of(rank)}
        now = most = self.costs.held(rank, self.lane)
        for held, _, freed in bytes_of(self.plan, rank, mine):
            most = max(most, now + held)
            now += held - freed
        return most


def planned_peaks(plan: Plan, costs: Costs) -> list[int]:
    """Peak bytes of each pipeline rank; where documents differ, of the lane and step that hold most."""
    lowering = Lowering(plan, costs, {}, overlap=False, blocking=False)
    lanes = 1 if costs.lanes is None else costs.lanes.count
    views = [lowering.at(lane, step) for lane in range(lanes) for step in range(lowering.steps)]
    return [max(view.planned_peak(rank) for view in views) for rank in range(plan.pipeline)]
