"""Mailboxes: where messages arrive, and where the members of a group meet."""

from typing import Any

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import Arrival, Here, receive_at
from hybrid_des.network.message import Message


class Mailbox:
    """Where the messages of one flow arrive, read in the order in which they were sent."""

    __slots__ = ("_behind", "_env", "_first")

    def __init__(self, env: Environment) -> None:
        self._env = env
        # Messages, each behind its time of arrival, or the `Arrival`s that wait for them; never both, and rarely more
        # than one, which then needs no list.
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
            first.happen(at, message)

    def receive(self) -> Arrival | Here:
        """The next message, to be yielded; its value is a `Message`."""
        first = self._first
        if first.__class__ is tuple:
            self._first = self._behind.pop(0) if self._behind else None
            at, message = first
            return receive_at(self._env, at, message)
        arrival = Arrival(self._env)
        if first is None:
            self._first = arrival
        else:
            self._keep(arrival)
        return arrival

    def unread(self) -> int:
        """Number of messages that nobody has received."""
        return sum(isinstance(held, tuple) for held in (self._first, *(self._behind or ())))

    def _keep(self, held: Any) -> None:
        """Put a message or an `Arrival` behind the others."""
        if self._first is None:
            self._first = held
        elif self._behind is None:
            self._behind = [held]
        else:
            self._behind.append(held)


class TaggedMailbox:
    """Where the pipeline messages of one GPU and purpose arrive, each read by its tag."""

    __slots__ = ("_env", "_held")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._held: dict[int, Any] = {}  # by tag a message and when it arrives, or the `Arrival` that waits for it

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        waiting = self._held.pop(tag, None)
        if waiting is None:
            self._held[tag] = (at, message)
        else:
            waiting.happen(at, message)

    def receive(self, tag: int) -> Arrival | Here:
        """The message of this tag, to be yielded; its value is a `Message`."""
        arrived = self._held.pop(tag, None)
        if arrived is not None:
            at, message = arrived
            return receive_at(self._env, at, message)
        arrival = self._held[tag] = Arrival(self._env)
        return arrival

    def unread(self) -> int:
        """Number of messages that nobody has received."""
        return sum(isinstance(held, tuple) for held in self._held.values())


class Rendezvous:
    """Where the members of a group wait for each other and learn what each one brought."""

    def __init__(self, env: Environment, size: int) -> None:
        self._env = env
        self._size = size
        self._brought: dict[int, Message] = {}
        self._over = Arrival(env)

    def arrive(self, place: int, message: Message, delay: int) -> Arrival:
        """Bring a message; the event, `delay` picoseconds after the last member's arrival, has all of them in order."""
        self._brought[place] = message
        over = self._over
        if len(self._brought) == self._size:
            over.happen(self._env.now + delay, [self._brought[member] for member in range(self._size)])
            self._brought, self._over = {}, Arrival(self._env)
        return over


class Handoff(Mailbox):
    """A queue between two phases of a collective on one GPU; it uses no link."""

    __slots__ = ()

    def hand(self, work: Any) -> None:
        """Put something in, now."""
        self.put(work, 0, self._env.now)
