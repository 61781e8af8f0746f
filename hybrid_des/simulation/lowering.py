"""A pipeline rank's program with everything filled in that its GPU needs: times, messages, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from hybrid_des.engine.recorder import pipeline_tag
from hybrid_des.gradients.buckets import Bucket
from hybrid_des.network.message import Message
from hybrid_des.network.purpose import ACTIVATION, GRADIENT, Purpose
from hybrid_des.pipeline.plan import Action, Kind, Op, Place, Plan
from hybrid_des.workload.costs import Costs


class Output(NamedTuple):
    """A message that follows an op: to which pipeline rank, for which purpose, with which tag (of training step 0)."""

    op: Op
    peer: int
    purpose: Purpose
    tag: int
    message: Message


class Input(NamedTuple):
    """A message that an op waits for: its pipeline rank of origin, purpose and tag (of training step 0)."""

    op: Op
    peer: int
    purpose: Purpose
    tag: int


class Task(NamedTuple):
    """One step of a program.

    Attributes:
        number: its place in the program.
        stages: the stage of each of its ops.
        duration: picoseconds.
        holds, frees: (bytes, chunks) of activations kept from its start on, and let go at its end.
        completes: (picoseconds after its start, stage) for each bucket of gradients that it fills, in order of time.
    """

    number: int
    ops: Action
    stages: tuple[int, ...]
    duration: int
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    holds: tuple[int, int]
    frees: tuple[int, int]
    completes: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """What it does, as a plan writes it."""
        return "+".join(f"{s}{op.kind}{op.microbatch}" for s, op in zip(self.stages, self.ops, strict=True))


class Pattern(NamedTuple):
    """What the steps have in common that do the same for different micro-batches; their tags start at micro-batch 0."""

    stages: tuple[int, ...]
    duration: int
    inputs: tuple[Input | None, ...]
    outputs: tuple[Output | None, ...]
    holds: tuple[int, int]
    frees: tuple[int, int]


def lower(
    plan: Plan, costs: Costs, rank: int, buckets: Mapping[int, Sequence[Bucket]], speed: Fraction | int = 1
) -> list[Task]:
    """Fill in a rank's program.

    `buckets` are those of the stages whose gradients are reduced; times are divided by `speed`.
    """
    last: dict[int, int] = {}  # stage → where its last weight gradient is computed
    for index, step in enumerate(plan.programs[rank]):
        last.update({plan.stage_of[rank, op.chunk]: index for op in step if op.kind in "BW"})
    complete: dict[int, list[int]] = {}  # where → stages whose gradients are all there then
    for stage, index in last.items():
        complete.setdefault(index, []).append(stage)
    patterns: dict[tuple[tuple[Kind, int, int], ...], Pattern] = {}
    program = []
    for index, step in enumerate(plan.programs[rank]):
        alike = tuple([(op.kind, op.chunk, plan.path_of[op.microbatch]) for op in step])
        pattern = patterns.get(alike)
        if pattern is None:
            pattern = patterns[alike] = _pattern(plan, costs, rank, step, speed)
        filled = {stage: buckets[stage] for stage in complete.get(index, ()) if stage in buckets}
        stages, duration, inputs, outputs, holds, frees = pattern
        came = [Input(op, i.peer, i.purpose, i.tag + op.microbatch) for op, i in zip(step, inputs, strict=True) if i]
        gone = [Output(op, o.peer, o.purpose, o.tag + op.microbatch, o.message)
                for op, o in zip(step, outputs, strict=True) if o]  # fmt: skip
        completes = _completes(duration, filled) if filled else ()
        program.append(Task(index, step, stages, duration, tuple(came), tuple(gone), holds, frees, completes))
    return program


def _pattern(plan: Plan, costs: Costs, rank: int, step: Action, speed: Fraction | int) -> Pattern:
    return Pattern(
        stages=tuple(plan.stage_of[rank, op.chunk] for op in step),
        duration=_duration(plan, costs, rank, step, speed),
        inputs=tuple(_input(plan, rank, op) for op in step),
        outputs=tuple(_output(plan, costs, rank, op) for op in step),
        holds=_activations(costs, rank, [op for op in step if op.kind == "F"]),
        frees=_activations(costs, rank, [op for op in step if op.kind in "BW"]),
    )


def _duration(plan: Plan, costs: Costs, rank: int, step: Action, speed: Fraction | int) -> int:
    parts = sum([costs.time[op.kind, rank, op.chunk] for op in step])
    if len(step) == 1 and speed == 1:
        return parts
    return round((1 if len(step) == 1 else plan.fused_time) / Fraction(speed) * parts)


def _completes(duration: int, buckets: Mapping[int, Sequence[Bucket]]) -> tuple[tuple[int, int], ...]:
    """When an op fills each bucket, and of which stage it is."""
    return tuple(
        sorted((ceil(duration * bucket.leaves), stage) for stage, filled in buckets.items() for bucket in filled)
    )


def _activations(costs: Costs, rank: int, ops: list[Op]) -> tuple[int, int]:
    return sum([costs.activation[rank, op.chunk] for op in ops]), len(ops)


def _input(plan: Plan, rank: int, op: Op) -> Input | None:
    """The message an op waits for; nothing is sent between two stages on one GPU."""
    if op.kind == "W":
        return None
    direction = -1 if op.kind == "F" else +1
    producer = plan.neighbour(rank, op, direction)
    if producer is None or producer[0] == rank:
        return None
    return Input(op, producer[0], ACTIVATION if op.kind == "F" else GRADIENT, _tag(plan, producer))


def _output(plan: Plan, costs: Costs, rank: int, op: Op) -> Output | None:
    if op.kind == "W":
        return None
    here = (rank, op.chunk)
    if op.kind == "F":
        consumer, purpose = plan.neighbour(rank, op, +1), ACTIVATION
    else:
        consumer, purpose = plan.neighbour(rank, op, -1), GRADIENT
    if consumer is None or consumer[0] == rank:
        return None
    producer_of_activation = rank if op.kind == "F" else consumer[0]
    message = Message(costs.ranks.message[producer_of_activation])
    return Output(op, consumer[0], purpose, _tag(plan, here), message)


def _tag(plan: Plan, sender: Place) -> int:
    return pipeline_tag(0, plan.stage_of[sender], 0)
