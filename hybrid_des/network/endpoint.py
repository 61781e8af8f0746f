"""What one GPU sees of the network: its inbox, streams to its pipeline neighbours, and its groups."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from hybrid_des.network.message import Parcel
from hybrid_des.network.sharing import Stream
from hybrid_des.network.transport import Mailbox, Network, TaggedMailbox, step_label


class Relay(Mailbox):
    """Where one part of a collective hands its work to another on the same GPU; nothing travels."""

    __slots__ = ()

    def hand(self, work: Any) -> None:
        """Hand something over, now."""
        self.put(work, 0, int(self._env._now))


class Group:
    """One GPU's place among the GPUs that work on a collective together.

    Attributes:
        members: global ranks of the group, in the group's order; behind them whoever serves it (parameter servers,
            a switch that adds up).
        me: this GPU's place in it.
        size: how many members have a buffer, the servers left out.
    """

    __slots__ = (
        "_chunk_of",
        "_in",
        "_kind",
        "_label",
        "_lane",
        "_network",
        "_out",
        "_stage",
        "me",
        "members",
        "servers",
        "size",
    )

    def __init__(
        self,
        network: Network,
        members: Sequence[int],
        me: int,
        kind: str,
        stage: int,
        chunk_of: Sequence[int],
        servers: int = 0,
        lane: int = 0,
    ) -> None:
        self.members = members
        self.me = me
        self.servers = servers
        self.size = len(members) - servers
        self._network = network
        self._kind = kind
        self._stage = stage
        self._chunk_of = chunk_of
        self._lane = lane
        self._out: dict[int, Stream] = {}
        self._in: dict[int, Mailbox] = {}
        self._label = 0

    @property
    def nodes(self) -> list[int]:
        """The node of each member."""
        return [self._network.node_of(rank) for rank in self.members[: self.size]]

    def to(self, peer: int) -> Stream:
        """The stream to another member, by its place in the group."""
        if peer not in self._out:
            ends = self.members[self.me], self.members[peer]
            chunk = self._chunk_of[self.me]
            stream, _ = self._network.stream(*ends, self._kind, self._stage, chunk, self._lane)
            stream.label = self._label
            self._out[peer] = stream
        return self._out[peer]

    def from_(self, peer: int) -> Mailbox:
        """The mailbox of what another member sends here, by its place in the group."""
        if peer not in self._in:
            ends = self.members[peer], self.members[self.me]
            chunk = self._chunk_of[peer]
            _, self._in[peer] = self._network.stream(*ends, self._kind, self._stage, chunk, self._lane)
        return self._in[peer]

    def among(self, places: Sequence[int], lane: int = 0) -> Group:
        """Some of the members, this one among them, as a group of their own."""
        members, chunks = ([of[place] for place in places] for of in (self.members, self._chunk_of))
        group = Group(self._network, members, places.index(self.me), self._kind, self._stage, chunks, lane=lane)
        group._label = self._label
        return group

    def lane(self, number: int) -> Group:
        """The same members in a conversation of its own, read apart from the others between the same two."""
        return self.among(range(self.size), number)

    def together(self, *parts: Generator[Any, Any, None]) -> simpy.Event:
        """Run parts of a collective side by side; the event, to be yielded, that all are done."""
        env = self._network.env
        return env.all_of([env.process(part) for part in parts])

    def relay(self) -> Relay:
        """A place where one of them hands its work to another."""
        return Relay(self._network.env)

    def meet(self, parcel: Parcel, delay: int) -> simpy.Event:
        """Wait until all members have come and `delay` picoseconds more; the event's value is all their parcels."""
        meeting = self._network.meeting(self._kind, self._stage, self.members)
        return meeting.come(self.me, parcel, delay)

    def begin(self, step: int) -> None:
        """Mark what is sent from now on as this training step's."""
        self._label = step_label(step)
        for stream in self._out.values():
            stream.label = self._label


class Comm:
    """One GPU's ends of the network.

    Attributes:
        inbox: pipeline messages that come to it.
        receipts: pipeline messages of its own that are through, where the network hands out receipts.
    """

    def __init__(self, network: Network, rank: int) -> None:
        self._network = network
        self._rank = rank
        self.inbox: TaggedMailbox = network.inbox(rank)
        self.receipts: TaggedMailbox = network.outbox(rank)
        self._out: dict[tuple[int, str], Stream] = {}

    def to(self, receiver: int, kind: str) -> Stream:
        """The stream of pipeline messages of one kind (activation, gradient) to another GPU."""
        key = (receiver, kind)
        if key not in self._out:
            self._out[key] = self._network.pipeline_stream(self._rank, receiver, kind)
        return self._out[key]

    def group(self, members: Sequence[int], kind: str, stage: int, chunk_of: Sequence[int], servers: int = 0) -> Group:
        """This GPU's place in a group, of which the last `servers` only serve.

        `chunk_of` says for each member which of its chunks the collective is for.
        """
        return Group(self._network, members, members.index(self._rank), kind, stage, chunk_of, servers)
