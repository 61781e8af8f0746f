"""Mailboxes that know whether it is certain which came first: a message, or the receiver's asking for it.

Times do not depend on it, but the lineage of the event that wakes the receiver does: it is booked by whoever comes
second.
"""

from collections import deque
from typing import Any, NamedTuple

from simpy.events import Event

from hybrid_des.engine.events import Arrival, Here
from hybrid_des.engine.lineage import Lineage, TracedEnvironment
from hybrid_des.network.mailbox import Handoff, Mailbox, Rendezvous, TaggedMailbox
from hybrid_des.network.message import Message
from hybrid_des.network.purpose import Purpose


class Put(NamedTuple):
    """A message that arrives at `at`, known since `when`."""

    at: int
    message: Message
    when: int
    lineage: Lineage


class Asked(NamedTuple):
    """A receiver that waits since `when`."""

    arrival: Arrival
    when: int
    lineage: Lineage


def wake(env: TracedEnvironment, asked: Asked, at: int, message: Message) -> None:
    """Wake a waiting receiver with a message that is put now."""
    if asked.when == env.now and not env.decided(asked.lineage, env.lineage):
        with env.births((None, env.born[1]) if at <= env.now else env.either(asked.lineage, env.lineage)):
            asked.arrival.happen(at, message)
    else:
        asked.arrival.happen(at, message)


def find(env: TracedEnvironment, put: Put) -> Event | Here:
    """A message that was put before the receiver asks for it, now."""
    undecided = put.when == env.now and not env.decided(put.lineage, env.lineage)
    if put.at <= env.now:
        if undecided:  # in some images the receiver asks first, and is woken by an event
            env.forget()
        return Here(put.message)
    arrival = Arrival(env)
    if undecided:
        with env.births(env.either(put.lineage, env.lineage)):
            arrival.happen(put.at, put.message)
    else:
        arrival.happen(put.at, put.message)
    return arrival


class TracedMailbox(Mailbox):
    """A mailbox of a folded run.

    Args:
        env: the environment.
        unordered: whether a receiver waits for this and other mailboxes in an order that images do not share.
    """

    __slots__ = ("_unordered",)

    _env: TracedEnvironment
    _arrived: deque[Any]
    _waiting: deque[Any]

    def __init__(self, env: TracedEnvironment, unordered: bool = False) -> None:
        super().__init__(env)
        self._unordered = unordered

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        if not self._waiting:
            self._arrived.append(Put(at, message, self._env.now, self._env.lineage))
        elif self._unordered:
            with self._env.births((None, self._env.born[1])):
                self._waiting.popleft().arrival.happen(at, message)
        else:
            wake(self._env, self._waiting.popleft(), at, message)

    def receive(self) -> Event | Here:
        """The next message, to be yielded; its value is a `Message`."""
        if self._arrived:
            put = self._arrived.popleft()
            if self._unordered and put.at > self._env.now:
                with self._env.births((None, self._env.born[1])):
                    arrival = Arrival(self._env)
                    arrival.happen(put.at, put.message)
                return arrival
            return find(self._env, put)
        asked = Asked(Arrival(self._env), self._env.now, self._env.lineage)
        self._waiting.append(asked)
        return asked.arrival


class TracedHandoff(TracedMailbox, Handoff):
    """A queue between two phases on one GPU, in a folded run."""

    __slots__ = ()


class TracedTaggedMailbox(TaggedMailbox):
    """A mailbox of pipeline messages in a folded run."""

    _env: TracedEnvironment
    _arrived: dict[Any, Any]
    _waiting: dict[Any, Any]

    def __init__(self, env: TracedEnvironment) -> None:
        super().__init__(env)

    def put(self, purpose: Purpose, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        asked = self._waiting.pop((purpose, tag), None)
        if asked is None:
            self._arrived[purpose, tag] = Put(at, message, self._env.now, self._env.lineage)
        else:
            wake(self._env, asked, at, message)

    def receive(self, purpose: Purpose, tag: int) -> Event | Here:
        """The message of this purpose and tag, to be yielded; its value is a `Message`."""
        put = self._arrived.pop((purpose, tag), None)
        if put is not None:
            return find(self._env, put)
        asked = self._waiting[purpose, tag] = Asked(Arrival(self._env), self._env.now, self._env.lineage)
        return asked.arrival


class Round:
    """Where the simulated members of a group wait for each other; each goes on in an event of its own.

    Unfolded, one event wakes all members in the order in which they came.
    """

    def __init__(self, env: TracedEnvironment, size: int) -> None:
        self._env = env
        self._size = size
        self._here: list[tuple[Arrival, Lineage]] = []

    def join(self, delay: int, value: Any = None) -> Event:
        """Arrive; the event happens `delay` picoseconds after the last member's arrival."""
        arrival = Arrival(self._env)
        self._here.append((arrival, self._env.born))
        if len(self._here) == self._size:
            for waiting, (chain, root) in self._here:
                with self._env.births((None if chain is None else hash((self._env.now, chain)), root)):
                    waiting.happen(self._env.now + delay, value)
            self._here = []
        return arrival

    @property
    def empty(self) -> bool:
        """Whether nobody is waiting."""
        return not self._here


class TracedRendezvous(Rendezvous):
    """A rendezvous of the simulated members of a group."""

    def __init__(self, env: TracedEnvironment, size: int) -> None:
        super().__init__(env, size)
        self._round = Round(env, size)

    def arrive(self, place: int, message: Message, delay: int) -> Event:
        """Bring a message; the event's value has those of all members, which are alike."""
        return self._round.join(delay, [message] * self._size)
