"""Messages: what they are for, the mailboxes in which they arrive, and meetings without a link."""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappush
from typing import Any

from hybrid_des.engine.bookings import Arrival, Delivered, receive_at
from hybrid_des.engine.clock import Environment

MOST_MESSAGES = 2**40 - 1  # of a flow


@dataclass(slots=True, eq=False)
class Message:
    """Bytes on the wire, how many of them are a codec's scales, and the arrays, if any.

    Messages without data are sent many times; treat them as constants.

    Attributes:
        count: its bytes and, below `MOST_MESSAGES`, 1: what a flow sums in one number instead of two.
    """

    size: int
    scales: int = 0
    data: Any = None
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = int(self.size) * (MOST_MESSAGES + 1) + 1


class Mailbox:
    """The mailbox of one flow, whose messages are read in the order in which they were sent."""

    __slots__ = ("_behind", "_env", "_first")

    def __init__(self, env: Environment) -> None:
        self._env = env
        # Pairs of a time of arrival and a message, or `Arrival`s that wait for messages; never both. A single one, the
        # usual case, needs no list.
        self._first: Any = None
        self._behind: list[Any] | None = None

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        first = self._first
        if first is None:
            self._first = at, message
        elif first.__class__ is tuple:
            self._keep((at, message))
        else:
            self._first = self._behind.pop(0) if self._behind else None
            first.value = message  # what `first.happen` does
            agenda = self._env.agenda
            booked = agenda.booked
            if at in booked:
                booked[at].append(first)
            else:
                booked[at] = [first]
                heappush(agenda.times, at)

    def receive(self) -> Arrival | Delivered:
        """The next message, as an event to yield; its value is a `Message`."""
        first = self._first
        if first is not None and first.__class__ is tuple:
            self._first = self._behind.pop(0) if self._behind else None
            at, message = first
            return receive_at(self._env, at, message)
        arrival = Arrival()
        arrival.env = self._env
        arrival.callbacks = arrival
        if first is None:
            self._first = arrival
        else:
            self._keep(arrival)
        return arrival

    def unread(self) -> int:
        """Number of messages not received yet."""
        return sum(isinstance(held, tuple) for held in (self._first, *(self._behind or ())))

    def _keep(self, held: Any) -> None:
        """Append a message or an `Arrival` to the others."""
        if self._first is None:
            self._first = held
        elif self._behind is None:
            self._behind = [held]
        else:
            self._behind.append(held)


class TaggedMailbox:
    """The mailbox of one GPU's pipeline messages of one purpose, each read by its tag."""

    __slots__ = ("_env", "_held")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._held: dict[int, Any] = {}  # tag → when a message arrives and the message, or its `Arrival`

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        waiting = self._held.pop(tag, None)
        if waiting is None:
            self._held[tag] = (at, message)
        else:
            waiting.value = message  # what `waiting.happen` does
            agenda = self._env.agenda
            booked = agenda.booked
            if at in booked:
                booked[at].append(waiting)
            else:
                booked[at] = [waiting]
                heappush(agenda.times, at)

    def receive(self, tag: int) -> Arrival | Delivered:
        """The message with this tag, as an event to yield; its value is a `Message`."""
        arrived = self._held.pop(tag, None)
        if arrived is not None:
            at, message = arrived
            return receive_at(self._env, at, message)
        arrival = self._held[tag] = Arrival()
        arrival.env = self._env
        arrival.callbacks = arrival
        return arrival

    def unread(self) -> int:
        """Number of messages not received yet."""
        return sum(isinstance(held, tuple) for held in self._held.values())


class Handoff(Mailbox):
    """A queue between two phases of a collective on one GPU; it uses no link."""

    __slots__ = ()

    def hand(self, work: Any) -> None:
        """Put an item in, now."""
        self.put(work, 0, self._env.now)


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
