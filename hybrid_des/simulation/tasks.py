"""The work of a GPU in a training step: streams of tasks, each a sequence of segments.

    compute    F0 ── F1 ── B0 ── … ── fill, join gradient ── optimizer
    gradient   communicate (stage 3, bucket 0) ── communicate (stage 3, bucket 1) ── …

Actions that differ only in their micro-batches share their work, and equal ranks share their program.
"""

from dataclasses import dataclass
from typing import NamedTuple

from hybrid_des.network.message import Message
from hybrid_des.network.purpose import Purpose
from hybrid_des.pipeline.op import Action


class Input(NamedTuple):
    """A message that an op waits for.

    Attributes:
        op: index of the op in its action.
        peer: pipeline rank of the sender.
        tag: tag for micro-batch 0 in training step 0.
    """

    op: int
    peer: int
    purpose: Purpose
    tag: int


class Output(NamedTuple):
    """A message sent after an op; `peer` is the receiver, `op` and `tag` are as in `Input`."""

    op: int
    peer: int
    purpose: Purpose
    tag: int
    message: Message


class Compute(NamedTuple):
    """Compute for `duration` picoseconds."""

    duration: int


class Fill(NamedTuple):
    """Mark the next bucket of a stage as filled, so that the gradient stream may reduce it."""

    stage: int


class Communicate(NamedTuple):
    """Wait for a bucket to be filled, and reduce it in the stage's process group."""

    stage: int
    bucket: int


class Join(NamedTuple):
    """Wait for another stream of this GPU to finish its tasks of this training step."""

    stream: str


Segment = Compute | Fill | Communicate | Join


class Work(NamedTuple):
    """The work of actions that differ only in their micro-batches.

    Attributes:
        stages: the stage of each op.
        inputs: messages to wait for before the start.
        segments: the work itself.
        outputs: messages sent at the end.
        confirms: outputs whose arrival is awaited.
        holds, frees: activations allocated at the start and released at the end: bytes, parts of a chunk (`CHUNK`).
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
        number: index in the rank's program; negative for tasks that are not in the plan.
        ops: the ops it computes.
        work: its inputs, segments and outputs.
    """

    number: int
    ops: Action
    work: Work

    @property
    def name(self) -> str:
        """Its ops, in the notation of plans."""
        return "+".join(f"{s}{op.kind}{op.microbatch}" for s, op in zip(self.work.stages, self.ops, strict=True))


@dataclass(frozen=True)
class Program:
    """The streams of one GPU in every training step.

    Attributes:
        compute: the actions of the plan, in order.
        reduction: next in the compute stream: waiting for the reduction of all gradients.
        update: last in the compute stream: the optimizer step.
        gradient: the parallel stream that reduces buckets.
    """

    compute: tuple[Task, ...]
    reduction: tuple[Segment, ...]
    update: tuple[Task, ...]
    gradient: tuple[Communicate, ...]
