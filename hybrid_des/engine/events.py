"""Events at known times: what processes wait for without another process that makes it happen."""

from collections.abc import Callable
from typing import Any

from simpy.events import Event

from hybrid_des.engine.clock import MOMENT, USUAL, Environment

Callback = Callable[[Any], None]


class Arrival(list[Callback]):
    """A message that a receiver waits for; it is booked as soon as its time is known.

    It has what SimPy asks of an event that a process yields, and nothing else but what a trace notes on it. Its list of
    callbacks is itself: one object less.
    """

    __slots__ = ("__dict__", "_value", "callbacks", "env")

    _ok = True

    __eq__, __ne__ = object.__eq__, object.__ne__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.callbacks: Any = self

    def happen(self, at: int, value: Any) -> None:
        """Wake the receiver at that time, with the message."""
        self._value = value
        self.env.agenda[at << MOMENT | USUAL].append(self)


class Here:
    """A message that has arrived already: a process that yields it continues at once, without an event."""

    __slots__ = ("_value",)
    callbacks = None
    _ok = True

    def __init__(self, value: Any) -> None:
        self._value = value


class KnownHere(Here):
    """The same for a run that is traced, with what it came from."""

    __slots__ = ("origin",)

    def __init__(self, here: Here, origin: int) -> None:
        super().__init__(here._value)
        self.origin = origin


class Booking:
    """An event that calls back and that no process waits for.

    Attributes:
        callbacks: called with the booking; one list may serve many bookings.
    """

    __slots__ = ("callbacks",)
    _ok = True

    callbacks: Any


def receive_at(env: Environment, at: int, value: Any) -> Arrival | Here:
    """A message that has arrived, or is known to arrive at a later time; to be yielded."""
    if at <= env.now:
        return Here(value)
    arrival = Arrival(env)
    arrival._value = value  # what `happen` does, in one call less
    env.agenda[at << MOMENT | USUAL].append(arrival)
    return arrival


def succeed_at(env: Environment, event: Event, at: int, value: Any = None) -> None:
    """Do what `event.succeed(value)` does, at a time that is not past."""
    event._ok = True
    event._value = value
    env.agenda[at << MOMENT | USUAL].append(event)
