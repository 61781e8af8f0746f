"""Meetings, at which the members of a group begin a replayed collective together, or all GPUs end a training step."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import Arrival


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
