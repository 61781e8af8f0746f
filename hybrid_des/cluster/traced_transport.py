"""A transport that tells a trace which message or handoff each process waited for, so that a run can be explained."""

from collections import deque
from itertools import count
from typing import Any, ClassVar

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Handoff, Mailbox, Message, TaggedMailbox
from hybrid_des.cluster.sharing.registration import Flow, Put
from hybrid_des.cluster.transport import Transport
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.causes import NOTHING, Causes, TracedEnvironment, code_of


def known(event: Any, origin: int) -> Any:
    """Note on an event the origin of its value."""
    event.origin = origin
    return event


class TracedMailbox(Mailbox):
    """A mailbox that tells the origins of its messages.

    Attributes:
        code: that of the message asked for last; those of a flow are read in the order in which they were sent.
    """

    __slots__ = ("_trace", "code")

    def __init__(self, env: TracedEnvironment) -> None:
        super().__init__(env)
        self._trace = env.trace
        self.code = NOTHING

    def receive(self) -> Any:
        """The next message, as an event to yield."""
        event: Any = Mailbox.receive(self)
        self.code = event.origin = self.code - 1
        return event


class TracedHandoff(Handoff):
    """A handoff whose origin is the process that hands work over."""

    __slots__ = ("_origins", "_trace")

    def __init__(self, env: TracedEnvironment) -> None:
        super().__init__(env)
        self._trace = env.trace
        self._origins: deque[int] = deque()

    def hand(self, work: Any) -> None:
        """Put an item in, now."""
        if self._first.__class__ is Arrival:
            known(self._first, self._trace.here)
        else:
            self._origins.append(self._trace.here)
        super().hand(work)

    def receive(self) -> Any:
        """The next item, as an event to yield."""
        return known(super().receive(), self._origins.popleft() if self._origins else NOTHING)


class TracedTaggedMailbox(TaggedMailbox):
    """A mailbox of pipeline messages that keeps their origins."""

    __slots__ = ("_origins", "_trace")

    def __init__(self, env: TracedEnvironment) -> None:
        super().__init__(env)
        self._trace = env.trace
        self._origins: dict[int, int] = {}

    def put(self, message: Message, tag: int, at: int) -> None:
        """Take a message that arrives at `at`."""
        waiting = self._held.get(tag)
        if waiting is None:
            self._origins[tag] = self._trace.origin
        else:
            known(waiting, self._trace.origin)
        super().put(message, tag, at)

    def receive(self, tag: int) -> Any:
        """The message with this tag, as an event to yield."""
        return known(super().receive(tag), self._origins.pop(tag, NOTHING))


class TracedFlow(Flow):
    """A flow whose sends are recorded."""

    __slots__ = ("_flow", "_number", "_trace")

    def __init__(self, flow: Flow, trace: Causes, number: int) -> None:
        super().__init__(flow.hops, flow.put, None)
        self.pace = flow.pace
        self._flow = flow
        self._trace = trace
        self._number = number

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        trace = self._trace
        sends = trace.sends
        sends.write(sends.pack(self._number, trace.here))
        self._flow.send(message, self.label if tag is None else tag)


class TracedTransport(Transport):
    """A transport all of whose flows and mailboxes are traced; its environment is a `TracedEnvironment`."""

    env: TracedEnvironment
    kinds: ClassVar = {Mailbox: TracedMailbox, TaggedMailbox: TracedTaggedMailbox, Handoff: TracedHandoff}

    def _open(self, channel: Channel, put: Put) -> Flow:
        trace = self.env.trace
        number = trace.open()
        mailbox, codes = getattr(put, "__self__", None), count(code_of(number, 0), -1)

        def noted(message: Message, tag: int, at: int) -> None:
            trace.origin = next(codes)
            put(message, tag, at)

        if isinstance(mailbox, TracedMailbox):
            mailbox.code = code_of(number, 0) + 1
            return TracedFlow(super()._open(channel, put), trace, number)
        return TracedFlow(super()._open(channel, noted), trace, number)
