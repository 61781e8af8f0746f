"""Messages between GPUs: streams over routes, and the mailboxes in which they arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappush
from typing import Any

from simpy.events import NORMAL, PENDING, Event

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import STEP_SHIFT, Channel, Trace
from hybrid_des.errors import SimulationError
from hybrid_des.network import sharing
from hybrid_des.network.fabric import Bandwidth, Fabric
from hybrid_des.network.link import Hop, Link, ServiceTimes
from hybrid_des.network.message import Parcel
from hybrid_des.network.sharing import Stream


class Arrival(Event):
    """A message that a receiver waits for; it puts itself on SimPy's queue once its time is known."""

    _ok = True

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.callbacks = []
        self._value = PENDING

    def happen(self, at: int, parcel: Any) -> None:
        """Wake the receiver at that time, with the parcel."""
        self._value = parcel
        env = self.env
        heappush(env._queue, (at, NORMAL, next(env._eid), self))


class Here:
    """A message that is there already: a process that yields it goes on at once, without an event."""

    __slots__ = ("_value",)
    callbacks = None
    _ok = True

    def __init__(self, parcel: Parcel) -> None:
        self._value = parcel


class Mailbox:
    """Where the messages of one stream arrive, read in the order in which they were sent."""

    __slots__ = ("_arrived", "_env", "_waiting")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._arrived: deque[tuple[int, Parcel]] = deque()
        self._waiting: deque[Arrival] = deque()

    def put(self, parcel: Parcel, tag: int, at: int) -> None:
        """Take a message that will be through at `at`."""
        if self._waiting:
            self._waiting.popleft().happen(at, parcel)
        else:
            self._arrived.append((at, parcel))

    def receive(self) -> Event | Here:
        """The next message, to be yielded; its value is a `Parcel`."""
        if self._arrived:
            at, parcel = self._arrived.popleft()
            return receive_at(self._env, at, parcel)
        arrival = Arrival(self._env)
        self._waiting.append(arrival)
        return arrival

    def unread(self) -> int:
        """How many messages nobody has asked for."""
        return len(self._arrived)


class TaggedMailbox:
    """Where the pipeline messages of one GPU arrive, each read by its tag."""

    __slots__ = ("_arrived", "_env", "_waiting")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._arrived: dict[tuple[str, int], tuple[int, Parcel]] = {}
        self._waiting: dict[tuple[str, int], Arrival] = {}

    def put(self, kind: str, parcel: Parcel, tag: int, at: int) -> None:
        """Take a message that will be through at `at`."""
        waiting = self._waiting.pop((kind, tag), None)
        if waiting is None:
            self._arrived[kind, tag] = (at, parcel)
        else:
            waiting.happen(at, parcel)

    def receive(self, kind: str, tag: int) -> Event | Here:
        """The message of this kind and tag, to be yielded; its value is a `Parcel`."""
        arrived = self._arrived.pop((kind, tag), None)
        if arrived is not None:
            return receive_at(self._env, *arrived)
        arrival = self._waiting[kind, tag] = Arrival(self._env)
        return arrival

    def unread(self) -> int:
        """How many messages nobody has asked for."""
        return len(self._arrived)


class Meeting:
    """Where the members of a group wait for each other and learn what each one brought."""

    def __init__(self, env: Environment, size: int) -> None:
        self._env = env
        self._size = size
        self._brought: dict[int, Parcel] = {}
        self._over = Arrival(env)

    def come(self, place: int, parcel: Parcel, delay: int) -> Event:
        """Bring a parcel; the event comes `delay` picoseconds after the last member's, with the parcels in order."""
        self._brought[place] = parcel
        over = self._over
        if len(self._brought) == self._size:
            over.happen(self._env.now + delay, [self._brought[member] for member in range(self._size)])
            self._brought, self._over = {}, Arrival(self._env)
        return over


def receive_at(env: Environment, at: int, parcel: Parcel) -> Event | Here:
    """A message that is here, or known to be here at a later time."""
    if at <= env._now:
        return Here(parcel)
    arrival = Arrival(env)
    arrival.happen(at, parcel)
    return arrival


class Network:
    """Every link, stream and mailbox of a run; each is made when it is first used."""

    def __init__(
        self, env: Environment, fabric: Fabric, sharing_name: str, trace: Trace, receipts: bool = False
    ) -> None:
        self.env = env
        self._receipts = receipts
        self._fabric = fabric
        self._trace = trace
        self._sharing = sharing.find(sharing_name).build(env, trace.messages)
        self._times: dict[Bandwidth, ServiceTimes] = {}
        self._links: dict[str, Link] = {}
        self._streams: dict[tuple[int, int, str, int, int], tuple[Stream, Mailbox]] = {}
        self._pipeline: dict[tuple[int, int, str], Stream] = {}
        self._meetings: dict[tuple[str, int, int], Meeting] = {}
        self._inboxes: dict[int, TaggedMailbox] = {}
        self._outboxes: dict[int, TaggedMailbox] = {}

    def meeting(self, kind: str, stage: int, members: Sequence[int]) -> Meeting:
        """Where the members of a group meet when no link is to carry what they exchange."""
        key = (kind, stage, members[0])
        if key not in self._meetings:
            self._meetings[key] = Meeting(self.env, len(members))
        return self._meetings[key]

    def node_of(self, gpu: int) -> int:
        """The node in which a GPU is."""
        return self._fabric.node_of[gpu]

    def stream(
        self, sender: int, receiver: int, kind: str, stage: int, chunk: int, lane: int = 0
    ) -> tuple[Stream, Mailbox]:
        """The stream of a collective's messages between two GPUs, and the mailbox at its end.

        `chunk` is the sender's; `lane` tells the conversations of one collective apart.
        """
        key = (sender, receiver, kind, stage, lane)
        if key not in self._streams:
            mailbox = Mailbox(self.env)
            hops = self._hops(sender, receiver, kind, stage, chunk)
            self._streams[key] = (self._sharing.stream(hops, mailbox.put), mailbox)
        return self._streams[key]

    def pipeline_stream(self, sender: int, receiver: int, kind: str) -> Stream:
        """The stream of pipeline messages of one kind between two GPUs; they arrive in the receiver's inbox."""
        key = (sender, receiver, kind)
        if key not in self._pipeline:
            inbox, outbox = self.inbox(receiver), self.outbox(sender)

            def put(parcel: Parcel, tag: int, at: int) -> None:
                inbox.put(kind, parcel, tag, at)
                if self._receipts:
                    outbox.put(kind, parcel, tag, at)

            self._pipeline[key] = self._sharing.stream(self._hops(sender, receiver, kind, -1, -1), put)
        return self._pipeline[key]

    def inbox(self, rank: int) -> TaggedMailbox:
        """The mailbox of a GPU's pipeline messages."""
        if rank not in self._inboxes:
            self._inboxes[rank] = TaggedMailbox(self.env)
        return self._inboxes[rank]

    def outbox(self, rank: int) -> TaggedMailbox:
        """The receipts of a GPU's pipeline messages, for a sender that waits until they are through."""
        if rank not in self._outboxes:
            self._outboxes[rank] = TaggedMailbox(self.env)
        return self._outboxes[rank]

    def pipeline_streams(self) -> Iterator[Stream]:
        """Every stream of pipeline messages."""
        return iter(self._pipeline.values())

    def collective_streams(self) -> Iterator[Stream]:
        """Every stream of a collective."""
        return (stream for stream, _ in self._streams.values())

    def check_empty(self) -> None:
        """Hold, at the end of a run, that every message was read."""
        unread = sum(box.unread() for box in (*self._inboxes.values(), *self._outboxes.values()))
        unread += sum(mailbox.unread() for _, mailbox in self._streams.values())
        if unread:
            raise SimulationError(f"{unread} messages were sent but never received")

    def _hops(self, sender: int, receiver: int, kind: str, stage: int, chunk: int) -> tuple[Hop, ...]:
        route = self._fabric.route(sender, receiver)
        return tuple(
            Hop(self._link(name), latency, self._trace.channel(Channel(sender, receiver, kind, stage, chunk, name, i)))
            for i, (name, latency) in enumerate(zip(route.links, route.latencies, strict=True))
        )

    def _link(self, name: str) -> Link:
        if name not in self._links:
            spec = self._fabric.links[name]
            times = self._times.setdefault(spec.bandwidth, ServiceTimes(spec.bandwidth))
            self._links[name] = Link(spec, times)
        return self._links[name]


def step_label(step: int) -> int:
    """The tag that a collective's messages carry in a training step."""
    return step << STEP_SHIFT
