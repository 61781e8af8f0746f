"""Meetings, at which the members of a group begin a replayed collective together."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from simpy.events import Event

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import Arrival


class Barrier:
    """The barrier of all GPUs at the end of a training step."""

    def __init__(self, env: Environment, parties: int) -> None:
        self._env = env
        self._parties = parties
        self._missing = parties
        self._open = env.event()

    def wait(self) -> Event | Arrival:
        """Arrive at the barrier; the returned event triggers when all have arrived."""
        event = self._open
        self._missing -= 1
        if not self._missing:
            self._missing, self._open = self._parties, self._env.event()
            event.succeed()
        return event

    def run(self, step: int, call: None) -> Generator[Event | Arrival, Any, None]:
        """Wait for all others, as a communicator does."""
        yield self.wait()


class Meeting:
    """A point at which the members of a group begin a collective of known duration together.

    Attributes:
        until: when the latest collective ends.
    """

    def __init__(self, env: Environment, size: int) -> None:
        self._env = env
        self._size = self._missing = size
        self._over = Arrival(env)
        self._periods: list[tuple[int, int]] = []
        self.until = 0

    def join(self, duration: int) -> Arrival:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        over, now = self._over, self._env.now
        self._missing -= 1
        if not self._missing:
            self.until = now + duration
            self._periods.append((now, self.until))
            over.happen(self.until, None)
            self._missing, self._over = self._size, Arrival(self._env)
        return over

    def periods(self, since: int) -> Iterator[tuple[int, int]]:
        """The periods, from `since` until now, during which a collective was under way; the last one first."""
        for start, end in reversed(self._periods):
            if end <= since:
                return
            yield max(start, since), min(end, self._env.now)
