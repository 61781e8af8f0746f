"""The arithmetic of a simulated GPU, if a small model is actually trained."""

from __future__ import annotations

from typing import Any

from hybrid_des.cluster.mailbox import Message
from hybrid_des.pipeline.plan import Action, Op
from hybrid_des.planning.training import Worker


class Arithmetic:
    """The arithmetic of one GPU; messages carry arrays."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._received: dict[Op, Any] = {}
        self._results: dict[Op, Any] = {}

    def receive(self, op: Op, message: Message) -> None:
        """Keep the array until the op is computed."""
        self._received[op] = message.data

    def compute(self, step: int, ops: Action) -> None:
        """Compute an action; a fused pair runs its forward first, so that its activations count towards the peak."""
        ordered = sorted(ops, key=lambda op: op.kind != "F")
        self._results = {op: self._worker.run(step, op, self._received.pop(op, None)) for op in ordered}

    def message(self, op: Op, empty: Message) -> Message:
        """The output message with the op's result."""
        return Message(empty.size, 0, self._results[op])

    def learn(self, step: int) -> None:
        """Update the weights from the reduced gradients."""
        self._worker.learn(step)
