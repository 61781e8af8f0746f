"""One rank's part in the collectives of a replica group, by messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybrid_des.collectives import Collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.engine.clock import Environment
from hybrid_des.errors import NumericsError


class Communicator:
    """A member, or a server, of a process group.

    Args:
        env: the environment.
        group: its view of the group.
        algorithm: the collective.
        buffers: makes the buffers of a step, one per call.
        member: its rank and the stage, for errors; None for a server, which does nothing else meanwhile.
    """

    def __init__(
        self,
        env: Environment,
        group: Group,
        algorithm: Collective,
        buffers: Callable[[], Sequence[Buffer]],
        member: tuple[int, int] | None = None,
    ) -> None:
        self._env, self._group, self._algorithm = env, group, algorithm
        self._make, self._member = buffers, member
        self._step = -1
        self._buffers: Sequence[Buffer] = ()

    def run(self, step: int, call: int) -> Routine:
        """Take part in the collective of one buffer, in messages labelled with a training step."""
        if step != self._step:
            self._step = step
            self._group.begin(step)
            self._buffers = self._make()
        routine = self._algorithm(self._group, self._buffers[call])
        return routine if self._member is None else self._apart(routine, *self._member)

    def _apart(self, routine: Routine, rank: int, stage: int) -> Routine:
        """Run in a process of its own, so that messages need not pass through a chain of `yield from`."""
        try:
            yield self._env.process(routine)
        except NumericsError as error:
            raise NumericsError(f"rank {rank}, step {self._step}, reduction of stage {stage}: {error}") from None
