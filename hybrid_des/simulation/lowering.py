"""Lowering: a pipeline rank's actions become tasks with times, messages and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from hybrid_des.engine.recorder import CHUNK, OPTIMIZER, pipeline_tag
from hybrid_des.gradients.buckets import Bucket
from hybrid_des.network.message import Message
from hybrid_des.network.purpose import Purpose, purpose_named
from hybrid_des.pipeline.op import Action, Op, Place, carried
from hybrid_des.pipeline.plan import Plan
from hybrid_des.simulation.pace import Pace
from hybrid_des.simulation.tasks import Communicate, Compute, Fill, Input, Join, Output, Program, Segment, Task, Work
from hybrid_des.workload.costs import Costs


@dataclass(frozen=True)
class Lowering:
    """Parameters of lowering shared by all ranks of a run.

    Attributes:
        buckets: stage → its buckets, for stages whose gradients are reduced.
        overlap: whether a bucket is reduced as soon as it is filled, not after the pipeline.
        blocking: whether a task ends when its messages have arrived, as in Megatron's plain 1F1B.
    """

    plan: Plan
    costs: Costs
    buckets: Mapping[int, Sequence[Bucket]]
    overlap: bool
    blocking: bool

    def lower(self, rank: int, pace: Pace) -> Program:
        """The program of a pipeline rank at a pace."""
        held = {self.plan.stage_of[rank, chunk] for chunk in self.plan.chunks_of(rank)}
        reduced = [stage for stage in sorted(held, reverse=True) if stage in self.buckets]  # deepest first
        gradient = [Communicate(stage, i) for stage in reduced for i in range(len(self.buckets[stage]))]
        fills = [] if self.overlap else [Fill(segment.stage) for segment in gradient]
        optimizer = pace.duration(self.costs.optimizer[rank])
        return Program(
            compute=tuple(self._tasks(rank, pace)),
            reduction=(*fills, Join("gradient")) if reduced else (),
            update=(Task(OPTIMIZER, (), Work(segments=(Compute(optimizer),))),) if optimizer else (),
            gradient=tuple(gradient),
        )

    def _tasks(self, rank: int, pace: Pace) -> list[Task]:
        path_of = self.plan.path_of
        completes = self._completes(rank) if self.overlap else {}
        works: dict[tuple[Any, ...], Work] = {}
        tasks = []
        for index, action in enumerate(self.plan.programs[rank]):
            stages = completes.get(index, ())
            alike = (*[(op.kind, op.chunk, path_of[op.microbatch]) for op in action], *stages)
            work = works.get(alike)
            if work is None:
                work = works[alike] = self._work(rank, action, pace, stages)
            tasks.append(Task(index, action, work))
        return tasks

    def _completes(self, rank: int) -> dict[int, list[int]]:
        """Map each action that completes the weight gradients of stages with buckets to those stages."""
        last: dict[int, int] = {}
        for index, action in enumerate(self.plan.programs[rank]):
            last.update({self.plan.stage_of[rank, op.chunk]: index for op in action if op.kind in "BW"})
        complete: dict[int, list[int]] = {}
        for stage, index in last.items():
            if stage in self.buckets:
                complete.setdefault(index, []).append(stage)
        return complete

    def _work(self, rank: int, action: Action, pace: Pace, completes: Sequence[int]) -> Work:
        costs = [self.costs.stages[rank, op.chunk] for op in action]
        parts = sum(cost.time(op.kind) for cost, op in zip(costs, action, strict=True))
        duration = pace.duration(parts if len(action) == 1 else self.plan.fused_time * parts)
        each = list(zip(costs, (op.kind for op in action), strict=True))
        kept = [cost.kept for cost, kind in each if kind == "F"]
        outputs = tuple(filter(None, (self._output(rank, op, place) for place, op in enumerate(action))))
        return Work(
            stages=tuple(self.plan.stage_of[rank, op.chunk] for op in action),
            inputs=tuple(filter(None, (self._input(rank, op, place) for place, op in enumerate(action)))),
            segments=_segments(duration, {stage: self.buckets[stage] for stage in completes}),
            outputs=outputs,
            confirms=outputs if self.blocking else (),
            holds=(sum(kept), CHUNK * len(kept)),
            frees=(
                sum(cost.freed(kind, cost.kept) for cost, kind in each),
                sum(cost.freed(kind, CHUNK) for cost, kind in each),
            ),
        )

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


def _segments(duration: int, filled: Mapping[int, Sequence[Bucket]]) -> tuple[Segment, ...]:
    """Compute for `duration`, filling each bucket when its gradients are complete."""
    fills = sorted((ceil(duration * bucket.leaves), stage) for stage, of in filled.items() for bucket in of)
    segments: list[Segment] = []
    done = 0
    for at, stage in fills:
        segments += [Compute(at - done), Fill(stage)]
        done = at
    return (*segments, Compute(duration - done))


def _purpose(op: Op) -> Purpose:
    return purpose_named(carried(op))
