"""Events whose time is known ahead: what a process waits for without a process that makes it happen."""

from __future__ import annotations

from heapq import heappush
from typing import Any

from simpy.events import NORMAL, PENDING, Event

from hybrid_des.engine.clock import Environment


class Arrival(Event):
    """A message that a receiver waits for; it puts itself on SimPy's queue once its time is known."""

    _ok = True

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.callbacks = []
        self._value = PENDING

    def happen(self, at: int, value: Any) -> None:
        """Wake the receiver at that time, with the message."""
        self._value = value
        env = self.env
        heappush(env._queue, (at, NORMAL, next(env._eid), self))


class Here:
    """A message that is there already: a process that yields it goes on at once, without an event."""

    __slots__ = ("_value",)
    callbacks = None
    _ok = True

    def __init__(self, value: Any) -> None:
        self._value = value


def receive_at(env: Environment, at: int, value: Any) -> Event | Here:
    """A message that is here, or known to be here at a later time."""
    if at <= env._now:
        return Here(value)
    arrival = Arrival(env)
    arrival.happen(at, value)
    return arrival
