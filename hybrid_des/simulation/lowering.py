"""Lowering: a pipeline rank's actions become tasks with times, messages and memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from hybrid_des.engine.recorder import OPTIMIZER, pipeline_tag
from hybrid_des.gradients.buckets import Bucket
from hybrid_des.network.message import Message
from hybrid_des.network.purpose import Purpose, purpose_named
from hybrid_des.pipeline.op import Action, Op, Place, carried
from hybrid_des.pipeline.plan import Plan
from hybrid_des.simulation.layered import Layered, LayerPass
from hybrid_des.simulation.pace import Pace
from hybrid_des.simulation.tasks import (
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
        gathers: stage → its parts whose sharded parameters are gathered once a step.
        ahead: whether they are gathered beside the forwards of the next step, not after the optimizer.
        each: whether gradients are reduced after every micro-batch, not only after the last.
        layered: lowers ops layer by layer, where weights are sharded too.
    """

    plan: Plan
    costs: Costs
    buckets: Mapping[int, Sequence[Bucket]]
    overlap: bool
    blocking: bool
    gathers: Mapping[int, Sequence[int]] = field(default_factory=dict)
    ahead: bool = False
    each: bool = False
    layered: Layered | None = None

    def lower(self, rank: int, pace: Pace) -> Program:
        """The program of a pipeline rank at a pace."""
        held = sorted({self.plan.stage_of[rank, chunk] for chunk in self.plan.chunks_of(rank)})
        gathers = tuple(Gather(stage, part) for stage in held for part in self.gathers.get(stage, ()))
        optimizer = pace.duration(self.costs.optimizer[rank])
        gradient, reduction = self._reduction(rank, held[::-1])
        beside: tuple[Segment, ...] = gathers if self.ahead else ()
        if self.layered and self.ahead:
            beside = tuple(self.layered.stream(self._passes(rank, pace)))
        return Program(
            compute=tuple(self._tasks(rank, pace)),
            reduction=(*reduction, Join("parameters")) if beside else reduction,
            update=(Task(OPTIMIZER, (), Work(segments=(Compute(optimizer),))),) if optimizer else (),
            gathers=() if self.ahead else gathers,
            gradient=gradient,
            parameters=beside,
        )

    def carried(self, rank: int) -> Mapping[str, int]:
        """What is sent in a step without messages, by all ranks, which run the same program as `rank`."""
        return self.layered.carried(self._passes(rank, Pace())) if self.layered else {}

    def _passes(self, rank: int, pace: Pace) -> Iterator[LayerPass]:
        assert self.layered is not None
        passes_of = self.layered.passes
        known: dict[tuple[Any, ...], tuple[LayerPass, ...]] = {}
        for action in self.plan.programs[rank]:
            alike = tuple((op.kind, op.chunk) for op in action)
            if alike not in known:
                known[alike] = passes_of(rank, action, pace)
            yield from known[alike]

    def _reduction(self, rank: int, held: Sequence[int]) -> tuple[tuple[Communicate, ...], tuple[Segment, ...]]:
        """The gradient stream, and what the compute stream waits for after its last op; stages are deepest first."""
        program, complete = self.plan.programs[rank], self._completes(rank)
        last = complete.get(len(program) - 1, ())
        if not self.each:
            gradient = self._communicate(held)
        elif self.overlap:
            gradient = self._communicate([stage for index in sorted(complete) for stage in complete[index]])
        else:
            return (), self._reduced_at_once(last)
        fills = () if self.overlap else tuple(Fill(segment.stage) for segment in gradient)
        return gradient, (*fills, Join("gradient")) if gradient else ()

    def _communicate(self, stages: Sequence[int]) -> tuple[Communicate, ...]:
        return tuple(Communicate(stage, i) for stage in stages for i in range(len(self.buckets.get(stage, ()))))

    def _reduced_at_once(self, stages: Sequence[int]) -> tuple[Segment, ...]:
        """Reduction of these stages within the compute stream."""
        return tuple(one for segment in self._communicate(stages) for one in (Fill(segment.stage), segment))

    def _tasks(self, rank: int, pace: Pace) -> list[Task]:
        path_of = self.plan.path_of
        completes = self._completes(rank)
        needs = self._needs(rank, completes)
        works: dict[tuple[Any, ...], Work] = {}
        tasks = []
        for index, action in enumerate(self.plan.programs[rank]):
            stages = completes.get(index, ()) if self.overlap else ()
            needed = needs.get(index, ())
            alike = (*[(op.kind, op.chunk, path_of[op.microbatch]) for op in action], *stages, needed)
            work = works.get(alike)
            if work is None:
                work = self._work(rank, action, pace, stages)
                work = works[alike] = work._replace(needs=work.needs + needed)
            tasks.append(Task(index, action, work))
        return tasks

    def _completes(self, rank: int) -> dict[int, list[int]]:
        """Map each action that completes gradients to be reduced to their stages."""
        last: dict[tuple[int, int], int] = {}
        for index, action in enumerate(self.plan.programs[rank]):
            for op in action:
                if op.kind in "BW":
                    last[self.plan.stage_of[rank, op.chunk], op.microbatch if self.each else 0] = index
        complete: dict[int, list[int]] = {}
        for (stage, _), index in last.items():
            if stage in self.buckets:
                complete.setdefault(index, []).append(stage)
        return complete

    def _needs(self, rank: int, completes: Mapping[int, Sequence[int]]) -> dict[int, tuple[Segment, ...]]:
        """What actions wait for besides their inputs: gathers of their parameters, or reductions before them."""
        needs: dict[int, tuple[Segment, ...]] = {}
        if self.each and not self.overlap:
            needs = {index + 1: self._reduced_at_once(stages) for index, stages in completes.items()}
        seen: set[int] = set()
        for index, action in enumerate(self.plan.programs[rank]) if self.ahead else ():
            stages = {self.plan.stage_of[rank, op.chunk] for op in action} - seen
            seen |= stages
            first = tuple(Await(stage) for stage in sorted(stages) for _ in self.gathers.get(stage, ()))
            if first:
                needs[index] = needs.get(index, ()) + first
        return needs

    def _work(self, rank: int, action: Action, pace: Pace, completes: Sequence[int]) -> Work:
        costs = [self.costs.stages[rank, op.chunk] for op in action]
        parts = sum(cost.time(op.kind) for cost, op in zip(costs, action, strict=True))
        duration = pace.duration(parts if len(action) == 1 else self.plan.fused_time * parts)
        kept = [(cost.kept, op.kind) for cost, op in zip(costs, action, strict=True)]
        holds, frees = ([size for size, kind in kept if kind in kinds] for kinds in ("F", "BW"))
        outputs = tuple(filter(None, (self._output(rank, op, place) for place, op in enumerate(action))))
        needs: tuple[Segment, ...] = ()
        segments = _segments(duration, {stage: self.buckets[stage] for stage in completes})
        if self.layered:
            needs, segments = self.layered.segments(self.layered.passes(rank, action, pace))
        return Work(
            stages=tuple(self.plan.stage_of[rank, op.chunk] for op in action),
            inputs=tuple(filter(None, (self._input(rank, op, place) for place, op in enumerate(action)))),
            segments=segments,
            outputs=outputs,
            confirms=outputs if self.blocking else (),
            holds=(sum(holds), len(holds)),
            frees=(sum(frees), len(frees)),
            needs=needs,
        )

    def _input(self, rank: int, op: Op, place: int) -> Input | None:
        source = self.plan.source(rank, op)
        return None if source is None else Input(place, source[0], _purpose(op), self._tag(source))

    def _output(self, rank: int, op: Op, place: int) -> Output | None:
        here, target = (rank, op.chunk), self.plan.target(rank, op)
        if target is None:
            return None
        size = self.costs.stages[here if op.kind == "F" else target].message  # a gradient is as large as its activation
        return Output(place, target[0], _purpose(op), self._tag(here), Message(size))

    def _tag(self, sender: Place) -> int:
        return pipeline_tag(0, self.plan.stage_of[sender], 0)


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
