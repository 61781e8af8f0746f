"""Process groups: the GPUs of a collective, and one member's view of the others."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import simpy

from hybrid_des.cluster.channel import Channel, Pace
from hybrid_des.cluster.fabric import by_node
from hybrid_des.cluster.mailbox import Handoff, Mailbox, Message
from hybrid_des.cluster.purposes import REDUCTION, Purpose
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.cluster.transport import Transport, step_label
from hybrid_des.engine.bookings import Arrival
from hybrid_des.errors import UsageError

LANES = 128  # of a group's flows without a pace: more than it has channels
Routine = Generator[Any, Any, None]  # one rank's sends and receives


@dataclass(frozen=True)
class ProcessGroup:
    """The GPUs of a collective, in the group's order, and the endpoints that serve them.

    Attributes:
        kind: name of the collective, as in the timeline.
        stage: the stage whose gradients are reduced; a unique number if there is none.
        ranks: the members, followed by `servers` endpoints that serve the group without being members (parameter
            servers, a switch with in-network reduction).
        part: distinguishes the process groups of one stage.
        chunks: for each rank, the chunk that holds the stage; −1 if none.
        purpose: purpose of its messages.
        channels: the rings that run at once, each an order of the members' places (`cluster.rings`); none: one ring
            in the group's order.
        tuned: what the collective knows about the wiring of the group, if it asks for that.
    """

    kind: str
    stage: int
    ranks: Sequence[int]
    chunks: Sequence[int]
    servers: int = 0
    part: int = 0
    purpose: Purpose = REDUCTION
    channels: Sequence[Sequence[int]] = ()
    tuned: Any = None

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks) - self.servers

    @cached_property
    def rings(self) -> Sequence[tuple[ProcessGroup, Sequence[int]]]:
        """Each channel as a group in the order of its ring, with the place of each member in it."""
        rings = []
        for order in self.channels:
            ranks, chunks = ([of[place] for place in order] for of in (self.ranks, self.chunks))
            places = sorted(range(len(order)), key=order.__getitem__)
            rings.append((replace(self, ranks=ranks, chunks=chunks, servers=0, channels=()), places))
        return rings


def seats(nodes: Iterable[int]) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """The places of a group on each of its nodes; and of each place, the number of its node and its index there."""
    on = list(by_node(nodes).values())
    seat = {place: (node, index) for node, places in enumerate(on) for index, place in enumerate(places)}
    return on, [seat[place] for place in range(len(seat))]


class Group:
    """One member's view of a process group: its place `me` among `size` members, which `servers` servers follow."""

    __slots__ = (
        "_in", "_label", "_lane", "_nodes", "_out", "_paced", "_processes", "_rings", "_served",
        "_transport", "me", "paces", "servers", "size",
    )  # fmt: skip

    def __init__(self, transport: Transport, processes: ProcessGroup, me: int, lane: int = 0) -> None:
        self.me = me
        self.size = processes.size
        self.servers = processes.servers
        self._transport = transport
        self._processes = processes
        self._lane = lane
        self._out: dict[int, Flow] = {}
        self._in: dict[int, Mailbox] = {}
        self._rings: list[Group] = []
        self._served: Sequence[int] = ()
        self.paces: tuple[Pace, Pace] | None = None  # of its messages, within nodes and between them
        self._paced: dict[int, Group] = {}
        self._label = 0
        self._nodes: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """The rank of this member."""
        return self._processes.ranks[self.me]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of each member."""
        if not self._nodes:
            self._nodes = tuple(self._transport.node_of(rank) for rank in self._processes.ranks[: self.size])
        return self._nodes

    @property
    def tuned(self) -> Any:
        """What the collective knows about the wiring of the group."""
        return self._processes.tuned

    def is_of(self, processes: ProcessGroup) -> bool:
        """Whether it is a view of this group, or of an equal one."""
        return self._processes is processes or self._processes == processes

    def to(self, peer: int) -> Flow:
        """The flow to another member, by its place in the group."""
        if peer not in self._out:
            self._out[peer], _ = self._between(self.me, peer)
            self._out[peer].label = self._label
        return self._out[peer]

    def from_(self, peer: int) -> Mailbox:
        """The mailbox for messages from another member, by its place in the group."""
        if peer not in self._in:
            _, self._in[peer] = self._between(peer, self.me)
        return self._in[peer]

    def end_of(self, peer: int) -> Mailbox:
        """The mailbox at the end of the flow to another member."""
        return self._between(self.me, peer)[1]

    def on(self, transport: Transport) -> Group:
        """The same view in another network."""
        group = Group(transport, self._processes, self.me, self._lane)
        group.paces = self.paces
        return group

    def among(self, places: Sequence[int], lane: int = 0) -> Group:
        """A subgroup of members that includes this one."""
        whole = self._processes
        ranks, chunks = ([of[place] for place in places] for of in (whole.ranks, whole.chunks))
        return self._view(replace(whole, ranks=ranks, chunks=chunks, servers=0), places.index(self.me), lane)

    def lane(self, number: int) -> Group:
        """The same members with separate flows and mailboxes."""
        if self.servers:
            return self.among(range(self.size), number)
        return self._view(self._processes, self.me, number)

    def paced(self, inside: Pace, between: Pace, number: int) -> Group:
        """The same with numbered flows of its own, at these paces within nodes (and to servers) and between them."""
        group = self._paced.get(number)
        if group is None:
            group = self._paced[number] = self._view(self._processes, self.me, self._lane + LANES * (1 + number))
            group.paces = inside, between
        return group

    def pacing(self, peer: int, size: int) -> int:
        """Picoseconds that the pace of the flow to another member requires between messages of `size` bytes."""
        pace = self.to(peer).pace
        return 0 if pace is None else pace[size]

    def pause(self, time: int) -> Arrival:
        """An event after `time` picoseconds that count as communication, not as computation."""
        over = self._transport.arrival()
        over.happen(self._transport.env.now + time, None)
        return over

    @property
    def rings(self) -> Sequence[Group]:
        """This member's view of each channel; only of the group itself if it has one."""
        if not self._rings and len(self._processes.channels) > 1:
            for lane, (ring, places) in enumerate(self._processes.rings, start=1):
                self._rings.append(self._view(ring, places[self.me], lane))
        return self._rings or [self]

    @property
    def in_turn(self) -> Sequence[int]:
        """The numbers of the channels, in the order in which this member serves them.

        That is the order in which their rings come to it on its node, so that members of which each has an adapter of
        its own do the same; on a single node, that of their numbers.
        """
        if not self._served:
            numbers = range(len(self.rings))
            several = len(numbers) > 1 and len(set(self.nodes)) > 1
            self._served = sorted(numbers, key=lambda number: self.rings[number].me) if several else numbers
        return self._served

    def simulated(self, places: Sequence[int]) -> Sequence[int]:
        """Those of several members that are simulated: in a folded run, each stands for others."""
        ranks, transport = self._processes.ranks, self._transport
        return [place for place in places if transport.simulates(ranks[place])]

    def together(self, *parts: Routine) -> simpy.Event:
        """Run phases of a collective concurrently; yield the returned event to wait for all of them."""
        env = self._transport.env
        return env.all_of([env.process(part) for part in parts])

    def handoff(self) -> Handoff:
        """A queue between two phases of a collective on this GPU; it uses no link."""
        return self._transport.make(Handoff)

    def meet(self, message: Message, delay: int) -> Arrival:
        """Rendezvous of all members, plus `delay` picoseconds; the event's value is the list of their messages."""
        processes = self._processes
        rendezvous = self._transport.rendezvous(processes.kind, processes.stage, processes.part, processes.ranks)
        return rendezvous.arrive(self.me, message, delay)

    def begin(self, step: int) -> None:
        """Label messages sent from now on with a training step."""
        self._label = step_label(step)
        for flow in self._out.values():
            flow.label = self._label
        for ring in (*self._rings, *self._paced.values()):
            ring.begin(step)

    def _view(self, processes: ProcessGroup, me: int, lane: int) -> Group:
        group = Group(self._transport, processes, me, lane)
        group._label = self._label
        return group

    def _between(self, sender: int, receiver: int) -> tuple[Flow, Mailbox]:
        whole = self._processes
        ranks = whole.ranks
        for member in (sender, receiver):
            if not 0 <= member < len(ranks):
                raise UsageError(f'collective "{whole.kind}": member {self.me} names member {member} of {self.size}')
        channel = Channel(ranks[sender], ranks[receiver], whole.purpose, whole.kind, whole.stage, whole.chunks[sender])
        if self.paces is not None:
            nodes = {self._transport.node_of(ranks[place]) for place in (sender, receiver) if place < self.size}
            channel = channel._replace(pace=self.paces[len(nodes) - 1])
        return self._transport.flow(channel, self._lane, whole.part)
