"""Points at which the simulated ranks of a folded run wait for each other; each continues in its own event."""

from __future__ import annotations

from typing import Any

from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rendezvous import ReplayedGroup
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.lineage import Lineage, LineageArrival, LineageEnvironment


class LineageMeeting(ReplayedGroup):
    """A meeting of the simulated members of a group, in a folded run.

    Unfolded, one event wakes all members in order of arrival.
    """

    _env: LineageEnvironment

    def __init__(self, env: LineageEnvironment, size: int) -> None:
        super().__init__(env, size)
        self._here: list[tuple[LineageArrival, Lineage]] = []

    def join(self, duration: int, value: Any = None) -> Arrival:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        env, arrival = self._env, LineageArrival.of(self._env)
        self._here.append((arrival, env.born))
        if len(self._here) == self._size:
            for waiting, (chain, root) in self._here:
                with env.births((None if chain is None else hash((env.now, chain)), root)):
                    waiting.happen(env.now + duration, value)
            self._here = []
            self._tell(duration)
        return arrival


class LineageRendezvous(LineageMeeting):
    """A rendezvous of the simulated members of a group."""

    def arrive(self, member: int, message: Message, delay: int) -> Arrival:
        """Arrive with a message; the event's value has those of all members, which are alike."""
        return self.join(delay, [message] * self._size)
