"""Lowering: a pipeline rank's actions become tasks with times, messages and memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

from hybrid_des.engine.recorder import CHUNK, OPTIMIZER, pipeline_tag
from hybrid_des.gradients.buckets import Bucket
from hybrid_des.network.message import Message
from hybrid_des.network.purpose import Purpose, purpose_named
from hybrid_des.pipeline.op import Action, Op, Place, carried
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.inside_ops import segments_of
from hybrid_des.planning.layered import Layered, LayerPass
from hybrid_des.planning.pace import Pace
from hybrid_des.planning.tasks import (
    Await,
    Communicate,
    Compute,
    Fill,
    Gather,
    Input,
    Join,
    Output,
    Program,
    Segment,
    Task,
    Work,
)
from hybrid_des.workload.costs import Costs


@dataclass(frozen=True)
class Lowering:
    """Parameters of lowering shared by all ranks of a run.

    Attributes:
        buckets: stage → its buckets, for stages whose gradients are reduced.
        overlap: whether a bucket is reduced as soon as it is filled, not after the pipeline.
        blocking: whether a task ends when its messages have arrived, as in Megatron's plain 1F1B.
        gathers: stage → part → the buckets whose sharded parameters are gathered once per step.
        ahead: whether they are gathered during the forwards of the next step, not after the optimizer.
        layered: lowers ops layer by layer, where gradients or weights are sharded.
        axes: those whose collectives inside ops are messages; those of other axes are replayed.
    """

    plan: Plan
    costs: Costs
    buckets: Mapping[int, Sequence[Bucket]]
    overlap: bool
    blocking: bool
    gathers: Mapping[int, Mapping[int, Sequence[Bucket]]] = field(default_factory=dict)
    ahead: bool = False
    layered: Layered | None = None
    axes: frozenset[str] = frozenset()

    def lower(self, rank: int, pace: Pace) -> Program:
        """The program of a pipeline rank at a pace."""
        held = sorted({self.plan.stage_of[rank, chunk] for chunk in self.plan.chunks_of(rank)})
        gathers = tuple(gather for stage in held for _, gather in self._gathers(stage))
        optimizer = pace.duration(self.costs.optimizer[rank])
        beside: tuple[Segment, ...] = gathers if self.ahead else ()
        if self.layered:
            beside = tuple(self.layered.stream(self._passes(rank, pace)))
        reduced = [stage for stage in held[::-1] if stage in self.buckets]  # deepest first
        gradient = tuple(Communicate(stage, i) for stage in reduced for i in range(len(self.buckets[stage])))
        fills = [] if self.overlap and self.plan.programs[rank] else [Fill(segment.stage) for segment in gradient]
        joins = [Join(name) for name, stream in (("gradient", gradient), ("parameters", beside)) if stream]
        return Program(
            compute=tuple(self._tasks(rank, pace)),
            reduction=(*fills, *joins),
            update=(Task(OPTIMIZER, (), Work(segments=(Compute(optimizer),))),) if optimizer else (),
            gathers=() if self.ahead else gathers,
            gradient=gradient,
            parameters=beside,
        )

    def replayed(self, rank: int) -> Mapping[str, int]:
        """Amounts sent per step by replayed collectives of all ranks, which run the same program as `rank`."""
        return self.layered.replayed(self._passes(rank, Pace())) if self.layered else {}

    def _passes(self, rank: int, pace: Pace) -> Iterator[LayerPass]:
        assert self.layered is not None
        fresh = self._fresh(rank)
        known: dict[tuple[Any, ...], tuple[LayerPass, ...]] = {}
        for index, action in enumerate(self.plan.programs[rank]):
            alike = (*[(op.kind, op.chunk) for op in action], fresh.get(index))
            if alike not in known:
                known[alike] = self.layered.passes(rank, action, pace, fresh.get(index, frozenset()))
            yield from known[alike]

    def _tasks(self, rank: int, pace: Pace) -> list[Task]:
        path_of = self.plan.path_of
        completes = self._completes(rank) if self.overlap else {}
        fresh = self._fresh(rank)
        works: dict[tuple[Any, ...], Work] = {}
        tasks = []
        for index, action in enumerate(self.plan.programs[rank]):
            alike: tuple[Any, ...] = ()
            for kind, microbatch, chunk in action:
                alike += kind, chunk, path_of[microbatch]
            if index in completes or index in fresh:
                alike += completes.get(index), fresh.get(index)
            work = works.get(alike)
            if work is None:
                stages, new = completes.get(index, ()), fresh.get(index, frozenset())
                work = works[alike] = self._work(rank, action, pace, stages, new)
            tasks.append(Task(index, action, work))
        return tasks

    def _completes(self, rank: int) -> dict[int, tuple[int, ...]]:
        """Map each action that completes the weight gradients of stages with buckets to those stages.

        The first completes those of stages that no micro-batch visits on this rank: nothing is added to their zeros.
        """
        last = dict.fromkeys((self.plan.stage_of[rank, chunk] for chunk in self.plan.chunks_of(rank)), 0)
        for index, action in enumerate(self.plan.programs[rank]):
            last.update({self.plan.stage_of[rank, op.chunk]: index for op in action if op.kind in "BW"})
        complete: dict[int, tuple[int, ...]] = {}
        for stage, index in last.items():
            if stage in self.buckets:
                complete[index] = *complete.get(index, ()), stage
        return complete

    def _fresh(self, rank: int) -> dict[int, frozenset[int]]:
        """Map actions to the stages that they are the first to use, if parameters are gathered for the first use."""
        if not (self.layered.once if self.layered else self.ahead):
            return {}
        seen: set[int] = set()
        fresh = {}
        for index, action in enumerate(self.plan.programs[rank]):
            fresh[index] = frozenset(self.plan.stage_of[rank, op.chunk] for op in action) - seen
            seen |= fresh[index]
        return fresh

    def _work(self, rank: int, action: Action, pace: Pace, completes: Sequence[int], fresh: frozenset[int]) -> Work:
        costs = [self.costs.stages[rank, op.chunk] for op in action]
        each = list(zip(costs, (op.kind for op in action), strict=True))
        fused = self.plan.fused_time if len(action) > 1 else 1
        waits = sum(cost.waits(kind) for cost, kind in each)
        duration = pace.duration(fused * (sum(cost.time(kind) for cost, kind in each) - waits), fused * waits)
        kept = [cost.kept for cost, kind in each if kind == "F"]
        outputs = tuple(filter(None, (self._output(rank, op, place) for place, op in enumerate(action))))
        points: list[tuple[int, Fill | Await]] = []
        visited = {self.plan.stage_of[rank, op.chunk] for op in action}
        for stage in completes:
            lasts = duration if stage in visited else 0
            points += [(ceil(lasts * bucket.leaves), Fill(stage)) for bucket in self.buckets[stage]]
        for stage in sorted(fresh) if self.ahead else ():
            used = [at if len(action) == 1 else 0 for at, _ in self._gathers(stage)]
            points += [(int(duration * at), Await(stage)) for at in used]
        needs, segments = _segments(duration, points)
        if self.layered:
            needs, segments = self.layered.segments(self.layered.passes(rank, action, pace, fresh))
        elif self.axes:
            stages = (self.plan.stage_of[rank, op.chunk] for op in action)
            parts = [(stage, *part) for stage, part in zip(stages, each, strict=True)]
            inside = sorted((one for one in points if one[0] or isinstance(one[1], Fill)), key=_place)
            segments = segments_of(parts, duration, pace, self.axes, inside)
        return Work(
            stages=tuple(self.plan.stage_of[rank, op.chunk] for op in action),
            inputs=tuple(filter(None, (self._input(rank, op, place) for place, op in enumerate(action)))),
            segments=segments,
            outputs=outputs,
            confirms=outputs if self.blocking else (),
            holds=(sum(kept), CHUNK * len(kept)),
            frees=(
                sum(cost.freed(kind, cost.kept) for cost, kind in each),
                sum(cost.freed(kind, CHUNK) for cost, kind in each),
            ),
            needs=needs,
        )

    def _gathers(self, stage: int) -> list[tuple[Fraction, Gather]]:
        """The gathers of a stage in the order of use, with the fraction of the forward before each.

        Buckets are in the order of gradients: the last holds the parameters that a forward uses first.
        """
        found = [
            (1 - bucket.leaves, Gather(stage, part, number))
            for part, buckets in self.gathers.get(stage, {}).items()
            for number, bucket in enumerate(buckets)
        ]
        return sorted(found, key=lambda one: (one[0], one[1].part, -one[1].bucket))

    def _input(self, rank: int, op: Op, place: int) -> Input | None:
        source = self.plan.source(rank, op)
        return None if source is None else Input(place, source[0], _purpose(op), self._tag(source))

    def _output(self, rank: int, op: Op, place: int) -> Output | None:
        here, target = (rank, op.chunk), self.plan.target(rank, op)
        if target is None:
            return None
        size = message_size(self.costs, rank, op, target)
        return Output(place, target[0], _purpose(op), self._tag(here), Message(size))

    def _tag(self, sender: Place) -> int:
        return pipeline_tag(0, self.plan.stage_of[sender], 0)


def message_size(costs: Costs, rank: int, op: Op, target: Place) -> int:
    """Bytes that an op sends to its target; a gradient is as large as its activation."""
    return costs.stages[(rank, op.chunk) if op.kind == "F" else target].message


def _segments(
    duration: int, points: Iterable[tuple[int, Fill | Await]]
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Compute for `duration`, interrupted by segments at given times; those that wait at 0 precede the start."""
    needs: list[Segment] = []
    segments: list[Segment] = []
    done = 0
    for at, point in sorted(points, key=_place):
        if at == 0 and isinstance(point, Await):
            needs.append(point)
            continue
        segments += [Compute(at - done), point]
        done = at
    return tuple(needs), (*segments, Compute(duration - done))


def _place(point: tuple[int, Fill | Await]) -> tuple[int, int]:
    """Sort key of the points of an op."""
    return point[0], point[1].stage


def _purpose(op: Op) -> Purpose:
    return purpose_named(carried(op))
