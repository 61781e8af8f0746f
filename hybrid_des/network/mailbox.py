"""Messages: what they are for, the mailboxes in which they arrive, and meetings without a link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybrid_des.engine.clock import Arrival, Environment, Here, receive_at
from hybrid_des.network.fabric import Bandwidth, Route

# The purposes of messages: one entry per purpose, so that no code compares names.
#
# To add a purpose, add an entry; plots, counters and causes of idle time follow from it.


@dataclass(frozen=True, eq=False)
class Purpose:
    """A purpose of messages.

    Attributes:
        name: its name in the timeline, unless a collective's own name is used there.
        label: its name in legends.
        colour: in pictures; no kind of op has it, and all remain distinct to colour-blind readers.
        cause: the cause of idle time that waiting for it counts as, a key of the summary's `idle_s`.
        counter: the summary's key that counts its bytes.
        usual: whether summaries and legends list it even in runs without it.
    """

    name: str
    label: str
    colour: str
    cause: str
    counter: str
    usual: bool = True

    @property
    def key(self) -> str:
        """Its name in `cluster.priorities`; activations and their gradients have one."""
        return self.counter.removeprefix("bytes_")

    def __reduce__(self) -> tuple[Callable[[str], Purpose], tuple[str]]:
        """Remain the table's one entry when copied or sent to another process."""
        return purpose_named, (self.name,)


ACTIVATION = Purpose("activation", "pipeline messages", "#56B4E9", "pipeline_message", "bytes_pipeline")
GRADIENT = Purpose("gradient", "pipeline messages", "#56B4E9", "pipeline_message", "bytes_pipeline")
REDUCTION = Purpose("reduction", "gradient reduction", "#D55E00", "gradient_reduction", "bytes_gradients")
PARAMETERS = Purpose("parameters", "parameter gather", "#999933", "parameter_gather", "bytes_parameters", usual=False)
TENSOR = Purpose("tensor", "tensor ranks", "#882255", "tensor_collective", "bytes_tensor", usual=False)
CONTEXT = Purpose("context", "context ranks", "#BBBB88", "context_collective", "bytes_context", usual=False)
EXPERT = Purpose("expert", "expert ranks", "#8C510A", "expert_collective", "bytes_expert", usual=False)

BACKGROUND = Purpose("background", "background traffic", "#555555", "", "", usual=False)  # no job's

PURPOSES = (ACTIVATION, GRADIENT, REDUCTION, PARAMETERS, TENSOR, CONTEXT, EXPERT)
OF_LAYERS = {purpose.name: purpose for purpose in (TENSOR, CONTEXT, EXPERT)}  # by axis; inside ops, so never idle time


def purpose_named(name: str) -> Purpose:
    """Look a purpose up by its name."""
    return next(purpose for purpose in (*PURPOSES, BACKGROUND) if purpose.name == name)


# The content of a message.


@dataclass(slots=True, eq=False)
class Message:
    """Bytes on the wire, how many of them are a codec's scales, and the arrays, if any.

    Messages without data are sent many times; treat them as constants.
    """

    size: int
    scales: int = 0
    data: Any = None


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
            first.happen(at, message)

    def receive(self) -> Arrival | Here:
        """The next message, as an event to yield; its value is a `Message`."""
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
            waiting.happen(at, message)

    def receive(self, tag: int) -> Arrival | Here:
        """The message with this tag, as an event to yield; its value is a `Message`."""
        arrived = self._held.pop(tag, None)
        if arrived is not None:
            at, message = arrived
            return receive_at(self._env, at, message)
        arrival = self._held[tag] = Arrival(self._env)
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


# Meetings, at which the members of a group begin a replayed collective together, exchange messages without a link, or
# all GPUs end a training step.


class ReplayedGroup:
    """A point at which the members of a group begin a collective of known duration together.

    Attributes:
        told: called with its begin and end when a collective begins.
    """

    def __init__(self, env: Environment, size: int) -> None:
        self._env = env
        self._size = self._missing = size
        self._over = Arrival(env)
        self.told: list[Callable[[int, int], object]] = []

    def join(self, duration: int, value: Any = None) -> Arrival:
        """Arrive; the event, `duration` picoseconds after the last member's arrival, has the value that it brings."""
        over, now = self._over, self._env.now
        self._missing -= 1
        if not self._missing:
            over.happen(now + duration, value)
            self._missing, self._over = self._size, Arrival(self._env)
            self._tell(duration)
        return over

    def _tell(self, duration: int) -> None:
        for tell in self.told:
            tell(self._env.now, self._env.now + duration)


class Rendezvous(ReplayedGroup):
    """A point at which the members of a group wait for each other and exchange messages."""

    def __init__(self, env: Environment, size: int) -> None:
        super().__init__(env, size)
        self._brought: dict[int, Message] = {}

    def arrive(self, place: int, message: Message, delay: int) -> Arrival:
        """Arrive with a message; the event, `delay` picoseconds after the last arrival, has all in member order."""
        brought = self._brought
        brought[place] = message
        if len(brought) == self._size:
            self._brought = {}
            return self.join(delay, [brought[member] for member in range(self._size)])
        return self.join(delay)


# The properties that the recorded messages of one flow on one link share.


class Pace(NamedTuple):
    """How fast a library's channel moves messages over a route, whatever its links could do.

    Attributes:
        bandwidth: bytes per second; None: as the links allow.
        latency: picoseconds from one end to the other, by the library's protocol.
        usual: latency of the route that `latency` includes; a longer one adds to it.
    """

    bandwidth: Bandwidth
    latency: int
    usual: int = 0

    def latencies(self, route: Route) -> tuple[int, ...]:
        """The latencies after the links of a route, all of them after the first."""
        return (self.latency + max(0, route.latency - self.usual), *(0 for _ in route.links[1:]))


class Channel(NamedTuple):
    """One link on the route of one flow.

    Attributes:
        sender, receiver: global ranks; servers are numbered after the ranks.
        purpose: the purpose of its messages.
        kind: their name in the timeline: that of the purpose, or of the collective.
        stage, chunk: those of the gradients that are reduced; −1 for pipeline messages, whose tags give the stage.
        link, hop: the link's name and its place on the route.
        latency: picoseconds after the link.
        pace: that of the flow, if it is not only that of its links.
    """

    sender: int
    receiver: int
    purpose: Purpose
    kind: str
    stage: int = -1
    chunk: int = -1
    link: str = ""
    hop: int = 0
    latency: int = 0
    pace: Pace | None = None

    def on(self, link: str, hop: int, latency: int) -> Channel:
        """The same flow on one of its links."""
        return Channel(*self[:6], link, hop, latency, self.pace)
