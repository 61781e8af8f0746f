"""Rings of gradients taken at once: one event per step of a ring at most, instead of two or more per message.

    begin     all members of a ring, at the same time; their links may still serve earlier messages
    steps     of each, the times of all members' messages follow together from those of the step before (`fifo`)
    meeting   links that several rings share serve their messages in the order in which these arrive
    end       members go on at the times that follow; their links are busy as long as messages would keep them

A step that crosses links which others may share is taken when its last message gets there: by then all that reached
these links before is known. Whatever cannot be told ends the run (`DisturbedError`), and all is simulated by messages:

- a message of others that reaches a link which a ring holds, members that begin at different times;
- messages of rings that reach a link at the same time, or of which an earlier one is known too late.

Events of the same picosecond are processed in the order in which they were booked, which decides who is first at a
link. No message of a ring leads to anything but further ones of it, until a member ends. So up to the first end all
other events have the order that they have with messages. After it, or where several steps may repeat, messages of
several flows that reach a link in the same picosecond by different events end the run too (`RingLink.tie`). One order
is certain: what a rank sends in the event that lets its ring begin is before the messages of the ring.

Where replicas share no link but in rings, and start in one order, one is simulated and stands for all until rings end,
and on, if all members of each ring end at the same time (`ring_links.FoldedRings`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import PARAMETERS
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.cluster.transport import Transport
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import FIRST
from hybrid_des.engine.recorder import LAST_TIME
from hybrid_des.simulation.folding.symmetry import Fold
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.simulation.ring_links import (
    DisturbedError,
    FoldedRings,
    RingLink,
    RingTransport,
    is_taken,
    may_queue,
)

Whole = NDArray[np.int64]


def fold_of(transport: Transport, fold: Fold | None) -> Fold | None:
    """Which ranks of a network are simulated, if others are represented."""
    return transport.fold if isinstance(transport, FoldedRings) else fold


class Part:
    """Messages of a ring's steps at one hop, of members whose routes go on alike.

    Attributes:
        places, to: of their senders and receivers.
        links: those of the hop.
        slots: the numbers of the links, if they are shared.
        alone: whether no two of these messages use the same link.
        latency: after the hop.
        last: whether it is the last of their routes.
        free: when the links are, if they are not shared; None where messages never wait.
        reached: when they were last reached.
    """

    def __init__(self, flows: Mapping[int, Flow], hop: int, number: Mapping[Any, int], members: int) -> None:
        hops = [flow.hops[hop] for flow in flows.values()]
        self.places = np.array([*flows])
        self.to = (self.places + 1) % members
        self.links: list[Any] = [one.link for one in hops]
        self.slots = np.array([number[link] for link in self.links]) if self.links[0] in number else None
        self._each = np.arange(len(hops))
        self.alone = len({*self.links}) == len(self.links)
        self.latency = np.array([one.latency for one in hops], dtype=np.int64)
        self.last = len(next(iter(flows.values())).hops) == hop + 1
        self.free: Whole | None = None
        self.reached: Whole = self.latency
        self._times: Whole = self.latency

    def begin(self, sizes: Sequence[int]) -> None:
        """Carry messages of these sizes from now on, after others."""
        rates = [link.own if isinstance(link, RingLink) else link.rate for link in self.links]
        self._times = np.array([[rate[size] for rate in rates] for size in sizes], dtype=np.int64)
        if self.slots is None and may_queue(self.links[0]):
            if any(len(link.rings) > 1 for link in self.links):
                raise DisturbedError("another collective holds a link")
            self.free = np.array([link.free for link in self.links], dtype=np.int64)

    def took(self, step: int, which: Whole | None) -> Whole:
        """How long service of a step's messages takes; `which` are the sizes of shards, if these differ."""
        size: Any = 0 if which is None else which[(self.places - step) % len(which)]
        took: Whole = self._times[size, self._each]
        return took


class Waiting(NamedTuple):
    """Messages on their way to shared links: when they arrive, how long service takes, when it begins (−1: not yet)."""

    part: Part
    arrives: Whole
    took: Whole
    begins: Whole
    first: int


class SharedLinks:
    """Links that several flows of rings use, which serve messages in the order of their arrival.

    Attributes:
        number: link → its number.
        free: when each is.
    """

    def __init__(self, links: Iterable[Any]) -> None:
        self.number = {link: number for number, link in enumerate(links)}
        self.free, self._reached = (np.full(len(self.number), -1, dtype=np.int64) for _ in range(2))
        self._waiting: list[Waiting] = []

    def expect(self, part: Part, arrives: Whole, took: Whole) -> Whole:
        """Serve messages that will reach links; returns when their service begins, to be filled in by then."""
        begins = np.full(len(arrives), -1, dtype=np.int64)
        self._waiting.append(Waiting(part, arrives, took, begins, int(arrives.min())))
        return begins

    def serve(self, until: int) -> None:
        """Serve all messages that reach links up to this time.

        Raises:
            DisturbedError: some reach a link at the same time, or one is known too late.
        """
        ready = [one for one in self._waiting if one.first <= until]
        if not ready:
            return
        some = [np.flatnonzero((one.arrives <= until) & (one.begins < 0)) for one in ready]
        if len(ready) == 1 and ready[0].part.alone:
            self._serve(ready[0], some[0])
        else:
            pairs = [(one, number) for one, numbers in zip(ready, some, strict=True) for number in numbers.tolist()]
            for waiting, number in sorted(pairs, key=lambda pair: int(pair[0].arrives[pair[1]])):
                self._serve(waiting, [number])
        self._waiting = [one for one in self._waiting if one.first > until or (one.begins < 0).any()]

    def _serve(self, waiting: Waiting, some: Any) -> None:
        assert waiting.part.slots is not None
        slots, at = waiting.part.slots[some], waiting.arrives[some]
        if (at <= self._reached[slots]).any():
            raise DisturbedError("messages of rings reach a link at the same time, or in an unknown order")
        waiting.begins[some] = begins = np.maximum(at, self.free[slots])
        self.free[slots], self._reached[slots] = begins + waiting.took[some], at


class Ring:
    """A ring of messages, which is under way at most once at a time.

    Args:
        transport: the network.
        whole: its group.
        flows: that of each member to the next.
        shared: links that several flows of rings use.
    """

    def __init__(
        self,
        transport: RingTransport | FoldedRings,
        whole: ProcessGroup,
        flows: Sequence[Flow],
        shared: SharedLinks,
    ) -> None:
        self._transport, self._env, self._flows, self._shared = transport, transport.env, flows, shared
        self._gathers, self._size = whole.kind == PARAMETERS.name, whole.size
        self._steps = (2 if whole.kind == "ring" else 1) * (whole.size - 1)
        self._parts = [*_parts(flows, shared.number)]
        self._first: list[Any] = [flow.hops[0].link for flow in flows]
        further: dict[Any, None] = dict.fromkeys(hop.link for flow in flows for hop in flow.hops[1:])
        self._further = [link for link in further if may_queue(link) and link not in {*self._first}]
        self._begins = transport.begun(whole.ranks)
        self._begun, self._at, self._under_way = dict[int, Arrival](), 0, False
        self._left: dict[Any, tuple[int, int]] = {}

    def begin(self, me: int, cause: int, over: Arrival) -> bool:
        """Let a member begin now, as follows from an event of this number; whether all have.

        Raises:
            DisturbedError: they begin at different times.
        """
        now = self._env.now
        if not self._begun:
            self._at = now
            for link in self._further:
                self._take(link)
        if self._at != now or me in self._begun or self._under_way:
            raise DisturbedError("members begin at different times")
        self._begun[me] = over
        for link in self._first if self._begins < self._size else self._first[me : me + 1]:
            if may_queue(link):
                self._take(link, cause)
        self._under_way = len(self._begun) == self._begins
        return self._under_way

    def _take(self, link: RingLink, cause: int | None = None) -> None:
        link.begin(self, cause)
        other = self._transport.stand_in(link)
        if other is not link and other is not None:
            other.begin(self, cause)
            link.free = max(link.free, other.free)

    def follow(self, shards: Sequence[Message]) -> Iterator[int]:
        """Follow the messages of all members; yields times up to which those of others must be known.

        Args:
            shards: a message for each.

        Raises:
            DisturbedError: it cannot be told when members end.
        """
        which, begins = self._prepare(shards), np.full(self._size, self._env.now, dtype=np.int64)
        for step in range(self._steps):
            heads, behind, arrives = begins.copy(), np.zeros_like(begins), np.empty_like(begins)
            for part in self._parts:
                at, slowest, took = heads[part.places], behind[part.places], part.took(step, which)
                if part.slots is not None:
                    start = self._shared.expect(part, at, took)
                    yield int(at.max())
                else:
                    start = at if part.free is None else np.maximum(at, part.free)
                free = start + took
                part.free, part.reached = None if part.free is None else free, at
                end = np.maximum(free, at + slowest)
                if part.last:
                    arrives[part.to] = end + part.latency
                else:
                    behind[part.places] = slowest = np.maximum(slowest, took)
                    heads[part.places] = end - slowest + part.latency
            begins = np.maximum(begins, arrives)
        self._end(begins.tolist())
        self._count(shards)

    def _prepare(self, shards: Sequence[Message]) -> Whole | None:
        """Take over the links; returns the sizes of the shards that members send first, if these differ."""
        sizes = [*dict.fromkeys(shard.size for shard in shards)]
        for part in self._parts:
            part.begin(sizes)
            for slot, link in zip(() if part.slots is None else part.slots.tolist(), part.links, strict=False):
                if len(link.rings) == 1:
                    self._shared.free[slot] = link.free
        which = np.array([sizes.index(shard.size) for shard in shards])
        return None if len(sizes) == 1 else np.roll(which, -self._gathers)

    def _end(self, ends: Sequence[int]) -> None:
        """Let members go on at their ends, and leave each link to others before the first of them that may use it."""
        env, last = self._env, max(ends)
        for part in self._parts:
            free = part.reached if part.free is None else part.free
            free = free if part.slots is None else self._shared.free[part.slots]
            for link, *times in zip(part.links, part.reached.tolist(), free.tolist(), strict=True):
                before = self._left.get(link, (0, 0))
                self._left[link] = max(before[0], times[0]), max(before[1], times[1])
        if len(self._begun) < self._size and len({*ends}) > 1:
            raise DisturbedError("members end at different times")
        reached_last = [reached for link, (reached, _) in self._left.items() if may_queue(link)]
        if (reached_last and (env.now >= min(ends) or max(reached_last) >= last)) or last > LAST_TIME:
            raise DisturbedError("members end while links are still reached")
        for at in {*ends}:
            env.at(at, (self._release, at == last), FIRST)
        for me, over in sorted(self._begun.items(), key=itemgetter(0)):
            over.happen(ends[me], None)

    def _release(self, booking: Any) -> None:
        """Leave links to others that no message of the ring reaches any more."""
        _, last = booking
        env: Any = self._env
        env.differs = True
        leaves = [entry for entry in self._left.items() if last or entry[1][0] < env.now]
        for link, (_, free) in leaves:
            del self._left[link]
            number = self._shared.number.get(link)
            link.free = max(link.free, free if number is None else int(self._shared.free[number]))
            if may_queue(link):
                link.end(self)
        self._transport.leave(self, [link for link, _ in leaves if may_queue(link)])
        if last:
            self._begun, self._under_way = {}, False

    def _count(self, shards: Sequence[Message]) -> None:
        """Count the messages of all members."""
        rounds = -(-self._steps // self._size)
        left_out = range(self._steps, rounds * self._size)
        count, scales = sum(one.count for one in shards), sum(one.scales for one in shards)
        for me, flow in enumerate(self._flows):
            not_sent = [shards[(me + self._gathers - step) % self._size] for step in left_out]
            flow.count += rounds * count - sum(one.count for one in not_sent)
            flow.scales += rounds * scales - sum(one.scales for one in not_sent)


def _parts(flows: Sequence[Flow], number: Mapping[Any, int]) -> Iterator[Part]:
    """The hops of a ring's messages, in order; shared links have numbers."""
    for hop in range(max(len(flow.hops) for flow in flows)):
        alike = dict[Any, dict[int, Flow]]()
        for me, flow in enumerate(flows):
            if len(flow.hops) > hop:
                link = flow.hops[hop].link
                alike.setdefault((len(flow.hops) > hop + 1, may_queue(link), link in number), {})[me] = flow
        yield from (Part(some, hop, number, len(flows)) for some in alike.values())


class RingsAtOnce:
    """Takes rings at once.

    Args:
        transport: the network.
        parts: its groups.
    """

    def __init__(self, transport: RingTransport | FoldedRings, parts: Parts) -> None:
        self._transport, self._parts = transport, parts
        self._env: Any = transport.env
        self._rings: dict[int, Ring] = {}

    def of(
        self, reduction: ProcessGroup, group: ProcessGroup, places: Sequence[int], algorithm: Collective
    ) -> Collective:
        """The collective of a group, taken at once if it is a ring (`communicators.AtOnce`)."""
        return partial(self._take, group) if is_taken(reduction) else algorithm

    def _take(self, whole: ProcessGroup, member: Group, buffer: Buffer) -> Routine:
        """Take a member's part in a collective, which follows from the event that let it go on.

        Raises:
            DisturbedError: it cannot be told what happens.
        """
        event, cause = self._env.released
        return self._taken(whole, member.me, buffer, cause if event == self._env.events else self._env.events)

    def _taken(self, whole: ProcessGroup, me: int, buffer: Buffer, cause: int) -> Routine:
        over = self._transport.arrival()
        if id(whole) not in self._rings:
            self._rings[id(whole)] = Ring(self._transport, whole, self._flows(whole), self._shared)
        ring = self._rings[id(whole)]
        if ring.begin(me, cause, over):
            shards = buffer.split(whole.size)
            self._go_on((None, ring.follow([shards.encode(shard) for shard in range(whole.size)])))
        yield over

    @cached_property
    def _shared(self) -> SharedLinks:
        groups = [whole for whole, _ in self._parts.reductions.processes if is_taken(whole)]
        uses = Counter(hop.link for whole in groups for flow in self._flows(whole) for hop in flow.hops)
        return SharedLinks(link for link, times in uses.items() if times > 1 and may_queue(link))

    def _flows(self, whole: ProcessGroup) -> list[Flow]:
        return [Group(self._transport.whole, whole, place).to((place + 1) % whole.size) for place in range(whole.size)]

    def _go_on(self, booking: Any) -> None:
        """Follow a ring until messages of others must be known."""
        course, now = booking[1], self._env.now
        self._shared.serve(now)
        for at in course:
            if at > now:
                self._env.at(at, (self._go_on, course))
                return
            self._shared.serve(now)
