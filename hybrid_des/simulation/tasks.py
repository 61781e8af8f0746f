"""What a GPU does in a training step: streams of tasks, each a sequence of segments.

    compute    F0 ── F1 ── B0 ── … ── fill, join gradient ── optimizer
    gradient   communicate (stage 3, bucket 0) ── communicate (stage 3, bucket 1) ── …

Actions that do the same for different micro-batches share their work, and equal ranks share their program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hybrid_des.network.message import Message
from hybrid_des.network.purpose import Purpose
from hybrid_des.pipeline.op import Action


class Input(NamedTuple):
    """A message that an op waits for.

    Attributes:
        op: the place of the op in its action.
        peer: the pipeline rank that sends it.
        tag: that of micro-batch 0 in training step 0.
    """

    op: int
    peer: int
    purpose: Purpose
    tag: int


class Output(NamedTuple):
    """A message that follows an op; `op`, `peer` (which receives it) and `tag` as in `Input`."""

    op: int
    peer: int
    purpose: Purpose
    tag: int
    message: Message


class Compute(NamedTuple):
    """Work on the GPU alone, for so many picoseconds."""

    duration: int


class Fill(NamedTuple):
    """The next bucket of a stage's gradients is complete: the gradient stream may reduce it."""

    stage: int


class Communicate(NamedTuple):
    """Wait until a bucket is filled, and reduce it in the stage's process group."""

    stage: int
    bucket: int


class Join(NamedTuple):
    """Wait until another stream of this GPU has finished its tasks of this training step."""

    stream: str


Segment = Compute | Fill | Communicate | Join


class Work(NamedTuple):
    """What actions have in common that do the same for different micro-batches.

    Attributes:
        stages: the stage of each op.
        inputs: the messages that are waited for before the start.
        segments: what is done then.
        outputs: the messages that are sent at the end.
        confirms: those of them whose arrival is waited for.
        holds, frees: (bytes, chunks) of activations kept from the start on, and released at the end.
    """

    stages: tuple[int, ...] = ()
    inputs: tuple[Input, ...] = ()
    segments: tuple[Segment, ...] = ()
    outputs: tuple[Output, ...] = ()
    confirms: tuple[Output, ...] = ()
    holds: tuple[int, int] = (0, 0)
    frees: tuple[int, int] = (0, 0)


class Task(NamedTuple):
    """A unit of a stream.

    Attributes:
        number: its place in the rank's program; negative where it is no action of the plan.
        ops: what it computes.
        work: how.
    """

    number: int
    ops: Action
    work: Work

    @property
    def name(self) -> str:
        """Its ops, as a plan writes them."""
        return "+".join(f"{s}{op.kind}{op.microbatch}" for s, op in zip(self.work.stages, self.ops, strict=True))


@dataclass(frozen=True)
class Program:
    """The streams of one GPU, as every training step runs them.

    Attributes:
        compute: the actions of the plan, in order.
        reduction: what the compute stream does after them, until all gradients are reduced.
        update: the tasks after that: the optimizer step.
        gradient: the stream beside it that reduces buckets.
    """

    compute: tuple[Task, ...]
    reduction: tuple[Segment, ...]
    update: tuple[Task, ...]
    gradient: tuple[Communicate, ...]
