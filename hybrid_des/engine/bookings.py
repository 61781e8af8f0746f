"""Events at known times, which processes wait for without another process to trigger them."""

from collections.abc import Callable
from heapq import heappush
from typing import Any, Self

from simpy.events import Event

from hybrid_des.engine.clock import Environment

Callback = Callable[[Any], None]
# What no process waits for: a function, which is called with the booking itself, and what it needs. A tuple takes a
# third of the time of an object with as many attributes.
Booking = tuple[Callable[[Any], object], *tuple[Any, ...]]


class Arrival(list[Callback]):
    """A message that a receiver waits for; it is booked as soon as its time is known.

    It has only what SimPy requires of an event that a process yields, and what a trace notes on it. It is its own list
    of callbacks, which saves an object.

    Attributes:
        env: the environment.
        value: the message.
    """

    __slots__ = ("__dict__", "_value", "callbacks", "env")

    _ok = True

    __eq__, __ne__ = object.__eq__, object.__ne__
    __hash__ = object.__hash__  # type: ignore[assignment]

    env: Environment
    value: Any
    callbacks: Any

    @classmethod
    def of(cls, env: Environment) -> Self:
        """One that waits in an environment; where there is one per message, these lines stand instead of the call."""
        arrival = cls()
        arrival.env = env
        arrival.callbacks = arrival
        return arrival

    def happen(self, at: int, value: Any) -> None:
        """Wake the receiver at that time, with the message."""
        self._value = value
        self.env.agenda.book(at, self)


Arrival.value = Arrival._value  # type: ignore[misc]  # the slot that SimPy reads


class Delivered:
    """A message that has arrived already: a process that yields it continues immediately, without an event.

    Attributes:
        origin: in a traced run, the origin of its value.
    """

    __slots__ = ("_value", "origin")
    callbacks = None
    _ok = True

    def __init__(self, value: Any) -> None:
        self._value = value


def receive_at(env: Environment, at: int, value: Any) -> Arrival | Delivered:
    """A message that has arrived, or is known to arrive at a later time, as an event to yield."""
    if at <= env.now:
        return Delivered(value)
    arrival = Arrival()
    arrival.env = env
    arrival.callbacks = arrival
    arrival._value = value
    agenda = env.agenda
    booked = agenda.booked
    if at in booked:
        booked[at].append(arrival)
    else:
        booked[at] = [arrival]
        heappush(agenda.times, at)
    return arrival


def succeed_at(env: Environment, event: Event, at: int) -> None:
    """Do what `event.succeed()` does, at a time not in the past."""
    event._ok = True
    event._value = None
    env.agenda.book(at, event)
