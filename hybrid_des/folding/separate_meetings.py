"""Points at which the simulated ranks of a folded run wait for each other; each continues in its own event.

Unfolded, one event wakes all members in order of arrival; in a folded run, a simulated member stands for others that
may have arrived before or after the rest.
"""

from __future__ import annotations

from typing import Any

from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rendezvous import ReplayedGroup
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import Environment


class SeparateMeeting(ReplayedGroup):
    """A meeting of the simulated members of a group."""

    def __init__(self, env: Environment, size: int) -> None:
        super().__init__(env, size)
        self._here: list[Arrival] = []

    def join(self, duration: int, value: Any = None) -> Arrival:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        arrival = self._waiting()
        self._here.append(arrival)
        if len(self._here) == self._size:
            here, self._here = self._here, []
            for each in here:
                self._wake(each, self._env.now + duration, value)
            self._tell(duration)
        return arrival

    def _waiting(self) -> Arrival:
        return Arrival.of(self._env)

    def _wake(self, arrival: Any, at: int, value: Any) -> None:
        arrival.happen(at, value)


class SeparateRendezvous(SeparateMeeting):
    """A rendezvous of the simulated members of a group."""

    def arrive(self, member: int, message: Message, delay: int) -> Arrival:
        """Arrive with a message; the event's value has those of all members, which are alike."""
        return self.join(delay, [message] * self._size)
