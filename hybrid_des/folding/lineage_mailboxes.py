"""Mailboxes that know whether it is certain which came first: a message, or the receiver's request for it.

Times do not depend on it, but the lineage of the event that wakes the receiver does: the later one books it.
"""

from hybrid_des.cluster.mailbox import Handoff, Mailbox, Message, TaggedMailbox
from hybrid_des.engine.bookings import Arrival, Delivered
from hybrid_des.engine.lineage import Lineage, LineageArrival, LineageEnvironment
from hybrid_des.folding.symmetry import SURE

Put = tuple[int, Message, int, Lineage]  # when a message arrives, and since when and by which event that is known


def wake(env: LineageEnvironment, arrival: LineageArrival, at: int, message: Message) -> None:
    """Wake a waiting receiver with a message that is put now."""
    if arrival.when == env.now and not env.decided(arrival.asked, env.lineage):
        with env.births((None, env.born[1], -1, -1) if at <= env.now else env.either(arrival.asked, env.lineage)):
            arrival.happen(at, message)
    else:
        arrival.happen(at, message)


def find(env: LineageEnvironment, put: Put) -> Arrival | Delivered:
    """A message that was put before the receiver asks for it, now."""
    at, message, when, lineage = put
    undecided = when == env.now and not env.decided(lineage, env.lineage)
    if at <= env.now:
        if undecided:  # in some images the receiver asks first, and is woken by an event
            env.forget()
        return Delivered(message)
    arrival = LineageArrival.of(env)
    if undecided:
        with env.births(env.either(lineage, env.lineage)):
            arrival.happen(at, message)
    else:
        arrival.happen(at, message)
    return arrival


class LineageMailbox(Mailbox):
    """A mailbox of a folded run."""

    __slots__ = ()

    _env: LineageEnvironment

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        env, first = self._env, self._first
        if first is None:
            self._first = at, message, env.now, env.lineage
        elif first.__class__ is tuple:
            self._keep((at, message, env.now, env.lineage))
        else:
            self._first = self._behind.pop(0) if self._behind else None
            if first.when != env.now:
                first.happen(at, message)
            else:
                wake(env, first, at, message)

    def receive(self) -> Arrival | Delivered:
        """The next message, as an event to yield; its value is a `Message`."""
        first = self._first
        if first.__class__ is tuple:
            self._first = self._behind.pop(0) if self._behind else None
            return Delivered(first[1]) if first[0] <= self._env.now != first[2] else find(self._env, first)
        arrival = LineageArrival.of(self._env)
        self._keep(arrival)
        return arrival


class UnorderedMailbox(LineageMailbox):
    """A mailbox whose receiver waits for several senders, in an order that images do not share."""

    __slots__ = ()

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        with self._env.births((None, self._env.born[1], -1, -1)):
            super().put(message, tag, at)

    def receive(self) -> Arrival | Delivered:
        """The next message, as an event to yield; its value is a `Message`."""
        with self._env.births((None, self._env.born[1], -1, -1)):
            return super().receive()


class SwitchMailbox(LineageMailbox):
    """A mailbox of a switch whose members stand for each other.

    It goes on when all of their messages have arrived, by the event of one of them: the times at which that and its
    ancestors were booked are those of all members, but which of them it descends from is known only as far as they
    agree.

    Args:
        env: the environment.
        certain: the number of digits of ranks in which they do, the slowest first.
    """

    __slots__ = ("_certain",)

    def __init__(self, env: LineageEnvironment, certain: int) -> None:
        super().__init__(env)
        self._certain = certain

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        env = self._env
        before = env.lineage, env.born
        known = at > env.now  # otherwise others may arrive after the event of the first
        env.lineage, env.born = (
            (chain if known else None, root & ~SURE | min(root & SURE, self._certain), -1, -1)
            for chain, root, *_ in before
        )
        super().put(message, tag, at)
        env.lineage, env.born = before


class LineageHandoff(LineageMailbox, Handoff):
    """A queue between two phases on one GPU, in a folded run."""

    __slots__ = ()


class LineageTaggedMailbox(TaggedMailbox):
    """A mailbox of pipeline messages in a folded run."""

    _env: LineageEnvironment

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        arrival = self._held.pop(tag, None)
        if arrival is None:
            self._held[tag] = (at, message, self._env.now, self._env.lineage)
        else:
            wake(self._env, arrival, at, message)

    def receive(self, tag: int) -> Arrival | Delivered:
        """The message with this tag, as an event to yield; its value is a `Message`."""
        put = self._held.pop(tag, None)
        if put is not None:
            return Delivered(put[1]) if put[0] <= self._env.now != put[2] else find(self._env, put)
        arrival = self._held[tag] = LineageArrival.of(self._env)
        return arrival
