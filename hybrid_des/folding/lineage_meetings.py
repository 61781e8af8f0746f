"""Points at which the simulated ranks of a folded run wait for each other; each continues in its own event."""

from __future__ import annotations

from hybrid_des.engine.events import Arrival
from hybrid_des.engine.lineage import Lineage, LineageEnvironment
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.lineage_mailboxes import Round
from hybrid_des.network.meeting import Meeting


class LineageMeeting(Meeting):
    """A meeting of the simulated members of a group, in a folded run.

    How much of a collective is under way at a moment at which one begins depends on which event is first.
    """

    def __init__(self, env: LineageEnvironment, size: int) -> None:
        self._round = Round(env, size)
        self._asked: list[tuple[int, Lineage]] = []
        self._begun: list[tuple[int, Lineage]] = []
        super().__init__(env, size)

    _env: LineageEnvironment

    def join(self, duration: int) -> Arrival:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        event = self._round.join(duration)
        if self._round.empty:
            now = self._env.now
            self._begun = [(now, self._env.lineage)]
            self._check(self._asked)
            self._until = now + duration
            self._periods.append((now, self._until))
        return event

    @property
    def until(self) -> int:
        """When the latest collective ends."""
        if self._asked and self._asked[0][0] < self._env.now:
            self._asked = []
        self._asked.append((self._env.now, self._env.lineage))
        self._check(self._begun)
        return self._until

    @until.setter
    def until(self, time: int) -> None:
        self._until = time

    def _check(self, others: list[tuple[int, Lineage]]) -> None:
        env = self._env
        if any(at == env.now and not env.decided(one, env.lineage) for at, one in others):
            raise FoldRefusal("a collective begins when a layer does, and which comes first differs between replicas")
