"""Points at which the simulated ranks of a folded run wait for each other; each continues in its own event.

Unfolded, one event wakes all members in order of arrival; in a folded run, a simulated member stands for others that
may have arrived before or after the rest.

`LineageMeeting` and `LineageRendezvous` are those of runs in which orders are traced.
"""

from typing import Any

from hybrid_des.cluster.mailbox import Message, ReplayedGroup
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.lineage import LineageArrival, LineageEnvironment


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


class LineageMeeting(SeparateMeeting):
    """A meeting of the simulated members of a group, each of which is woken by an event that descends from its own.

    Unfolded, one event wakes all of them, which the last member books: of those that arrive together, the one whose
    rank starts last. That makes no difference where nothing else is under way: at the barrier, where all ranks meet and
    no time passes. Other meetings count as depending on the order in which ranks start.
    """

    _env: LineageEnvironment

    def join(self, duration: int, value: Any = None) -> Arrival:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        self._env.start_matters |= duration > 0
        return super().join(duration, value)

    def _waiting(self) -> Arrival:
        arrival = LineageArrival.of(self._env)
        arrival.lineage = self._env.born  # until it is booked
        return arrival

    def _wake(self, arrival: Any, at: int, value: Any) -> None:
        env, (chain, root, booked, _) = self._env, arrival.lineage
        with env.births((None, root, -1, -1) if chain is None else (hash((env.now, chain)), root, env.now, booked)):
            arrival.happen(at, value)


class LineageRendezvous(LineageMeeting, SeparateRendezvous):
    """A rendezvous of the simulated members of a group."""
