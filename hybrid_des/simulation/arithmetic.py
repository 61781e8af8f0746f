"""What a simulated GPU computes beside its time: nothing, or the arithmetic of a small model that really trains."""

from __future__ import annotations

from typing import Any

from hybrid_des.collectives.buffer import Buffer
from hybrid_des.gradients.reducer import Reducer
from hybrid_des.network.message import Message
from hybrid_des.numerics.worker import Worker
from hybrid_des.pipeline.op import Action, Op


class SizesOnly:
    """No numbers: messages and buffers have sizes and nothing in them."""

    def receive(self, op: Op, message: Message) -> None:
        """Take an op's input."""

    def compute(self, step: int, ops: Action) -> None:
        """Compute an action on what it has received."""

    def message(self, op: Op, empty: Message) -> Message:
        """The message that follows an op, from one of its size with nothing in it."""
        return empty

    def buffers(self, reducer: Reducer) -> list[Buffer]:
        """The gradients of a stage, bucket by bucket."""
        return reducer.buffers()

    def learn(self, step: int) -> None:
        """Take the optimizer step."""


class RealTraining(SizesOnly):
    """The arithmetic of one GPU: arrays ride along on the messages."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._received: dict[Op, Any] = {}
        self._results: dict[Op, Any] = {}

    def receive(self, op: Op, message: Message) -> None:
        """Keep the array until the op is computed."""
        self._received[op] = message.data

    def compute(self, step: int, ops: Action) -> None:
        """Compute an action; of a fused pair the forward first, held beside what the backward frees."""
        ordered = sorted(ops, key=lambda op: op.kind != "F")
        self._results = {op: self._worker.run(step, op, self._received.pop(op, None)) for op in ordered}

    def message(self, op: Op, empty: Message) -> Message:
        """The message with the op's result in it."""
        return Message(empty.size, 0, self._results[op])

    def buffers(self, reducer: Reducer) -> list[Buffer]:
        """Views of the stage's gradient, which the reduction sums up in place."""
        residual = self._worker.residual(reducer.stage) if reducer.error_feedback else None
        return reducer.buffers(self._worker.gradient(reducer.stage), residual)

    def learn(self, step: int) -> None:
        """Update the weights from the reduced gradients."""
        self._worker.learn(step)
