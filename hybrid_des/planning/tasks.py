"""The work of a GPU in a training step: streams of tasks, each a sequence of segments.

    compute    F0 ── F1 ── B0 ── … ── fill, join gradient ── optimizer
    gradient   communicate (stage 3, bucket 0) ── communicate (stage 3, bucket 1) ── …
    parameters gather (stage 0) ── gather (stage 1) ── …                            sharded: see `layered` too

Collectives of tensor, context and expert ranks are part of an op's duration, or segments of it (`inside_ops`).

Actions that differ only in their micro-batches share their work, and equal ranks share their program.
"""

from dataclasses import dataclass
from typing import NamedTuple

from hybrid_des.network.message import Message
from hybrid_des.network.purpose import PARAMETERS, REDUCTION, Purpose
from hybrid_des.pipeline.op import Action
from hybrid_des.planning.pace import Slowing


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


class Gather(NamedTuple):
    """Gather the sharded parameters of a bucket in one of the stage's process groups, by messages."""

    stage: int
    part: int
    bucket: int


class Await(NamedTuple):
    """Wait until the parameter stream has gathered the next parameters of a stage."""

    stage: int


class ComputeBeside(NamedTuple):
    """Compute one layer concurrently with the parameter stream, which takes a turn when the layer begins and ends."""

    duration: int
    slowing: Slowing


class Turn(NamedTuple):
    """Wait until the next layer begins or ends."""


class Transfer(NamedTuple):
    """A replayed collective of a layer among the ranks that hold it.

    Attributes:
        durations: picoseconds in the group of all parameters but experts, and in that of experts.
    """

    stage: int
    layer: int
    purpose: Purpose
    durations: tuple[int, ...]


class LayerCollective(NamedTuple):
    """A collective of a layer inside an op, by messages among the ranks along an axis.

    Attributes:
        axis: tensor, context or expert.
        algorithm: as registered.
        size: bytes of a member's buffer.
        launch: picoseconds to start it.
        beside: picoseconds of concurrent computation.
        fills: buckets that fill meanwhile: picoseconds from its start, and their stages.
    """

    axis: str
    stage: int
    algorithm: str
    size: int
    launch: int
    beside: int
    fills: tuple[tuple[int, int], ...] = ()


Segment = Compute | Fill | Communicate | Join | Gather | Await | ComputeBeside | Turn | Transfer | LayerCollective


class Work(NamedTuple):
    """The work of actions that differ only in their micro-batches.

    Attributes:
        stages: the stage of each op.
        inputs: messages to wait for before the start.
        needs: other segments to wait for before the start.
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
    needs: tuple[Segment, ...] = ()


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
        update: next in the compute stream: the optimizer step.
        gathers: last in the compute stream: gathers of updated parameters.
        gradient: the parallel stream that reduces buckets.
        parameters: the parallel stream that gathers parameters, from the beginning of a step.
    """

    compute: tuple[Task, ...]
    reduction: tuple[Segment, ...]
    update: tuple[Task, ...]
    gathers: tuple[Gather, ...]
    gradient: tuple[Communicate, ...]
    parameters: tuple[Segment, ...]


def purpose_of(segment: Segment) -> Purpose:
    """The purpose that a rank's wait for a segment is counted under."""
    if isinstance(segment, Transfer):
        return segment.purpose
    return PARAMETERS if isinstance(segment, Gather | Await) else REDUCTION
