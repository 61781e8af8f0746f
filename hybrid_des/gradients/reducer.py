"""The reduction of one stage's gradients, bucket by bucket, as one GPU or server of its group carries it out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid_des.collectives import Collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs import Codec
from hybrid_des.collectives.group import Group
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Rows
from hybrid_des.errors import NumericsError
from hybrid_des.network.mailbox import Handoff

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybrid_des.numerics.worker import Worker


@dataclass(frozen=True)
class Reducer:
    """The gradients of one stage: who adds them up, in which buckets, how.

    Attributes:
        buckets: how many gradients each holds.
    """

    stage: int
    group: Group
    buckets: Sequence[int]
    codec: Codec
    algorithm: Collective
    error_feedback: bool = False

    def run(
        self, env: Environment, step: int, rank: int, filled: Handoff, rows: Rows, worker: Worker | None
    ) -> Generator[Any, Any, None]:
        """Reduce bucket after bucket, each when `filled` says that it may leave, and write down when."""
        self.group.begin(step)
        buffers: list[Buffer] = []
        for number in range(len(self.buckets)):
            yield filled.receive()
            buffers = buffers or self._buffers(worker)
            start = env.now
            try:
                # a process, for each message would pass through every `yield from` between it and SimPy
                yield env.process(self.algorithm(self.group, buffers[number]))
            except NumericsError as error:
                where = f"rank {rank}, step {step}, reduction of stage {self.stage}"
                raise NumericsError(f"{where}: {error}") from None
            rows.add((step, rank, self.stage, number, start, env.now))

    def serve(self, steps: int, length: int | None) -> Generator[Any, Any, None]:
        """Take part as one who only serves; `length` is that of the members' arrays, where they have any."""
        for step in range(steps):
            self.group.begin(step)
            for buffer in self._cut(None if length is None else _zeros(length)):
                yield from self.algorithm(self.group, buffer)

    def _buffers(self, worker: Worker | None) -> list[Buffer]:
        if worker is None:
            return self._cut(None)
        return self._cut(worker.gradient(self.stage), worker.residual(self.stage) if self.error_feedback else None)

    def _cut(self, array: NDArray[Any] | None, residual: NDArray[Any] | None = None) -> list[Buffer]:
        return Buffer(sum(self.buckets), self.codec, array, residual).sections(self.buckets)


class Server:
    """One who works for a group beside its members: a parameter server, or a switch that adds up.

    Attributes:
        place: its number in the fabric.
        processes: what it is at.
    """

    def __init__(self, env: Environment, place: int, reduction: Reducer, steps: int, length: int | None) -> None:
        self.place = place
        self._stage = reduction.stage
        self.processes = [env.process(reduction.serve(steps, length))]

    def where(self) -> str:
        """Say what a stuck server is at, for people."""
        return f"server {self.place}: in the reduction of stage {self._stage}'s gradients"


def _zeros(length: int) -> NDArray[Any]:
    import numpy

    return numpy.zeros(length)
