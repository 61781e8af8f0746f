"""The reduction of one stage's gradients, as seen by one GPU or server."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives import Collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs import Codec
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.engine.clock import Environment


@dataclass(frozen=True)
class Reducer:
    """One member of the reduction of a stage's gradients.

    Attributes:
        buckets: number of gradients per bucket.
        error_feedback: whether the error of a lossy codec is kept for the next step.
        trained: whether it reduces the gradients of the small trained model.
    """

    stage: int
    group: Group
    buckets: Sequence[int]
    codec: Codec
    algorithm: Collective
    error_feedback: bool = False
    trained: bool = True

    def buffers(
        self, gradient: NDArray[np.floating] | None = None, residual: NDArray[np.floating] | None = None
    ) -> list[Buffer]:
        """Split the stage's gradient, or only its size, into one buffer per bucket."""
        return Buffer(sum(self.buckets), self.codec, gradient, residual).sections(self.buckets)

    def begin(self, step: int) -> None:
        """Label messages sent from now on with a training step."""
        self.group.begin(step)

    def reduce(self, buffer: Buffer) -> Routine:
        """Reduce one bucket with the rest of the group."""
        return self.algorithm(self.group, buffer)


@dataclass(frozen=True)
class Gatherer:
    """One member of the all-gathers of sharded parameters of a stage.

    Attributes:
        buffers: one per bucket.
    """

    group: Group
    buffers: Sequence[Buffer]
    algorithm: Collective

    def gather(self, step: int, bucket: int) -> Routine:
        """Gather every member's shard of a bucket, in messages labelled with a training step."""
        self.group.begin(step)
        return self.algorithm(self.group, self.buffers[bucket])


class Server:
    """An endpoint that serves a process group without being a member: a parameter server, or in-network reduction.

    Attributes:
        place: its index in the fabric.
        processes: its SimPy processes.
    """

    def __init__(self, env: Environment, place: int, reducer: Reducer, steps: int, length: int | None) -> None:
        """Start serving; `length` is that of the members' arrays, if they have any."""
        self.place = place
        self._reducer = reducer
        self.processes = [env.process(self._serve(steps, length))]

    def _serve(self, steps: int, length: int | None) -> Routine:
        for step in range(steps):
            self._reducer.begin(step)
            for buffer in self._reducer.buffers(None if length is None else np.zeros(length)):
                yield from self._reducer.reduce(buffer)

    def where(self) -> str:
        """Describe where a stuck server is."""
        return f"server {self.place}: in the reduction of stage {self._reducer.stage}'s gradients"
