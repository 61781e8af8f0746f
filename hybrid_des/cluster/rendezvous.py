"""Meetings: members begin a replayed collective, exchange messages without a link, or end a training step together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybrid_des.cluster.mailbox import Message
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import Environment


class ReplayedGroup:
    """A point at which the members of a group begin a collective of known duration together.

    Attributes:
        over: the event for which members wait that have arrived, or will.
        listeners: called with its begin and end when a collective begins.
    """

    def __init__(self, env: Environment, size: int) -> None:
        self._env = env
        self._size = self._missing = size
        self.over = Arrival.of(env)
        self.listeners: list[Callable[[int, int], object]] = []

    def join(self, duration: int, value: Any = None) -> Arrival:
        """Arrive; the event, `duration` picoseconds after the last member's arrival, has the value that it brings."""
        over, now = self.over, self._env.now
        self._missing -= 1
        if not self._missing:
            over.happen(now + duration, value)
            self._missing, self.over = self._size, Arrival.of(self._env)
            self._tell(duration)
        return over

    def _tell(self, duration: int) -> None:
        for tell in self.listeners:
            tell(self._env.now, self._env.now + duration)


class Rendezvous(ReplayedGroup):
    """A point at which the members of a group wait for each other and exchange messages."""

    def __init__(self, env: Environment, size: int) -> None:
        super().__init__(env, size)
        self._brought: dict[int, Message] = {}

    def arrive(self, index: int, message: Message, delay: int) -> Arrival:
        """Arrive with a message; the event, `delay` picoseconds after the last arrival, has all in member order."""
        brought = self._brought
        brought[index] = message
        if len(brought) == self._size:
            self._brought = {}
            return self.join(delay, [brought[member] for member in range(self._size)])
        return self.join(delay)
