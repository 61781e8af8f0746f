"""Rings of gradients that a folded run takes at once: what ones like them took alone, by messages, simply passes.

    begin     all simulated members, on all channels, at the same time; links may still serve earlier messages
    alone     the same on a network of its own: when each member ends; when links are last reached, and free
    at once   rings that begin so send nothing: their members go on at these times, their links are busy so long

What rings do depends on how their flows share links, on the bandwidths and latencies of these and on until when they
serve earlier messages, if no other message reaches one meanwhile. Messages of theirs that reach a link in the same
moment are served in an order that follows from what happened since the begin, or the rings are not taken. Whatever else
happens ends the run; then all is simulated by messages. So does whatever depends on the order of the events by which
members go on, which is not known; what follows from one of them is in order among itself (`engine.lineage`).

Rings of all stages that are wired alike do the same, so those of one are simulated, as often as links are busy for
another time when they begin, and not again where only durations of ops are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import Work
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.collectives.nccl import on_channels
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.lineage import Lineage, LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.folded_transport import FoldedTransport, LineageFlow, LineageLink, folded_transport
from hybrid_des.folding.refusals import FoldRefusal, TieError
from hybrid_des.folding.symmetry import SURE
from hybrid_des.folding.watched_links import WatchedFlow, WatchedLink
from hybrid_des.planning.planner import Parts
from hybrid_des.scenario.definition import Scenario

FEWEST = 32  # messages of a member and phase; fewer take little time in a folded run
RINGS = "ring", "ring-reduce-scatter"  # every member sends to the next one only; the latter with `ring-all-gather`
BOTH, REDUCTIONS, GATHERS = "rings", "reductions around rings", "gathers around rings"


class Outcome(NamedTuple):
    """What rings do alone, in picoseconds from their begin.

    Attributes:
        uses: when each link is last reached by their messages, and when it has served them.
        ends: when the part of each simulated member ends, on each channel.
        sent: what each sends there: `count` and `scales` of its flow.
    """

    uses: Sequence[tuple[int, int]]
    ends: Sequence[int]
    sent: Sequence[tuple[int, int]]


class Part(NamedTuple):
    """The part of a member on a channel, which has begun.

    Attributes:
        ring: its view of the channel.
        elements: of its buffer.
        routine: takes the part in a view.
        flow: to the next member.
        over: the event of its end.
    """

    ring: Group
    elements: int
    routine: Callable[[Group], Routine]
    flow: Flow
    over: Arrival


def kinds_of_rings(scenario: Scenario, parts: Parts, *, tied: bool) -> Sequence[str]:
    """Which rings are taken at once, most first, as far as can be told that nothing disturbs them.

    Messages between stages do where parameters are gathered beside the first forward passes; and mostly where gradients
    are reduced before those of the next chunk, so that it is not worth a try where orders are not traced.

    Args:
        scenario: what is simulated.
        parts: its parts.
        tied: whether messages reach a link at the same moment, so that orders are traced.
    """
    served = scenario.cluster.service in ("fifo", "uncontended")
    if scenario.record == "all" or not served or not any(_is_long(one) for one, _ in parts.reductions.processes):
        return ()
    several = any(len(parts.programs.chunks(rank)) > 1 for rank in range(scenario.parallel.pipeline))
    doubtful = several and scenario.gradients.overlap
    if not parts.reductions.gather or scenario.overlap.parameters:
        return () if doubtful and not tied else (REDUCTIONS,)
    if not doubtful:
        return BOTH, REDUCTIONS
    return (BOTH, GATHERS) if tied else (GATHERS,)


def _is_long(processes: ProcessGroup) -> bool:
    """Whether a group reduces around rings with many messages, or may, as a library decides for each bucket."""
    may_go_around = processes.kind in RINGS or collectives.find(processes.kind).facts["along"] is not None
    return may_go_around and (processes.size - 1) * max(1, len(processes.channels)) >= FEWEST


class RingsAlone:
    """Takes long rings of a folded run at once.

    Args:
        transport: its network.
        parts: those of the run, whose reductions are taken at once.
        kind: which of them.
    """

    def __init__(self, transport: FoldedTransport, parts: Parts, kind: str) -> None:
        self._transport, self._reductions, self._kind = transport, parts.reductions, kind
        self._known: dict[Any, Outcome] = parts.remembered.setdefault("rings alone", {})

    def of_layers(self, whole: ProcessGroup, work_of: Callable[[Any], Work]) -> Callable[[], Callable[[Any], Work]]:
        """Collectives of layers are by messages (`communicators.CollectiveOverride`)."""
        return lambda: work_of

    def of_gradients(
        self, reduction: ProcessGroup, group: ProcessGroup, places: Sequence[int], algorithm: Collective
    ) -> Collective:
        """The collective of a group, taken at once if it goes around long rings."""
        gathers = group is not reduction
        if not _is_long(reduction) or self._kind == (REDUCTIONS if gathers else GATHERS):
            return algorithm
        name = self._reductions.gather if gathers else reduction.kind
        return GroupAtOnce(self._transport, reduction, len(places), (name, algorithm), self._known)


class GroupAtOnce:
    """The rings of a group, taken at once, one bucket after the other.

    Args:
        transport, reduction: as above.
        simulated: the number of its simulated members.
        named: the name of the collective, and what it does.
        known: outcomes of rings with the same codec.
    """

    def __init__(
        self,
        transport: FoldedTransport,
        reduction: ProcessGroup,
        simulated: int,
        named: tuple[str, Collective],
        known: dict[Any, Outcome],
    ) -> None:
        self._transport, self._reduction, self._known = transport, reduction, known
        self._name, self._algorithm = named
        self._all = simulated * max(1, len(reduction.channels))
        self._began, self._begun, self._firsts = 0, list[Part](), set[Any]()

    def __call__(self, group: Group, buffer: Buffer) -> Routine:
        """Take the part of a member: on a channel or, of a library's collective, on all."""
        if group.tuned is None:
            return self._part(self._algorithm, group, buffer)
        along = collectives.find(self._name).facts["along"](group.tuned, buffer.bytes)
        if along is None:
            return self._algorithm(group, buffer)
        return on_channels(group, buffer, replace(along, algorithm=partial(self._part, along.algorithm)))

    def _part(self, algorithm: Collective, ring: Group, buffer: Buffer, *options: Any) -> Routine:
        """Take the part of a member on a channel.

        Raises:
            FoldRefusal: it cannot be told what happens.
        """
        now = self._transport.env.now
        if self._begun and self._began != now:
            raise FoldRefusal("members of a ring begin at different times")
        self._began, flow = now, ring.to((ring.me + 1) % ring.size)
        if isinstance(flow, LineageFlow | WatchedFlow) and flow.link not in self._firsts:
            flow.take_first()
            self._firsts.add(flow.link)

        def routine(view: Group) -> Routine:
            return algorithm(view, buffer, *options)

        over = self._transport.arrival()
        self._begun.append(Part(ring, buffer.elements, routine, flow, over))
        if len(self._begun) == self._all:
            self._begin(now)
        yield over

    def _begin(self, now: int) -> None:
        """Let the time of rings pass, all of whose members have begun."""
        parts, firsts = self._begun, self._firsts
        self._begun, self._firsts = [], set()
        links = _links_of(parts)
        for link in links:
            if link not in firsts and link.shared and link.when >= now:
                raise FoldRefusal(f"other messages reach link {link.spec.name} when a ring begins")
        busy = tuple([max(0, link.free - now) for link in links])
        key = self._name, *_form(parts), busy
        if key not in self._known:
            self._known[key] = self._alone(parts, busy)
        uses, ends, sent = self._known[key]
        for link, (last, free) in zip(links, uses, strict=True):
            link.free = now + free
            link.take(now + last)
        for part, (count, scales) in zip(parts, sent, strict=True):
            part.flow.count += count
            part.flow.scales += scales
        env: Any = self._transport.env
        traced, unknown = isinstance(env, LineageEnvironment), dict[tuple[int, int], Lineage]()
        for part, end in zip(parts, ends, strict=True):
            rank = part.ring.rank
            if traced and (rank, end) not in unknown:  # ends of a member's channels: it goes on after all of them
                unknown[rank, end] = env.unknown(rank)
            with env.births(unknown[rank, end]) if traced else nullcontext():
                part.over.happen(now + end, None)

    def _alone(self, parts: Sequence[Part], busy: Sequence[int]) -> Outcome:
        """What rings do alone if links are busy for so long: watched for ties or, if there are any, with orders traced.

        Raises:
            FoldRefusal: which message is first at a link does not follow from what they do.
        """
        try:
            return self._on_a_network(parts, busy, watched=True)
        except TieError:
            return self._on_a_network(parts, busy, watched=False)

    def _on_a_network(self, parts: Sequence[Part], busy: Sequence[int], *, watched: bool) -> Outcome:
        """The same on one of these networks."""
        fabric, fold, sharing = self._transport.links.fabric, self._transport.fold, "fifo" if busy else "uncontended"
        network = folded_transport(fabric, sharing, Recorder(), fold, [self._reduction], watched=watched)
        env: Any = network.env
        if isinstance(env, LineageEnvironment):
            env.know(Unordered())
        alone = [part._replace(ring=(view := part.ring.on(network)), flow=_next(view)) for part in parts]
        links = _links_of(alone)
        for link, time in zip(links, busy, strict=True):
            link.free = time
        ends = [0] * len(parts)

        def taken(number: int) -> Routine:
            yield from alone[number].routine(alone[number].ring)
            ends[number] = env.now

        for number, part in enumerate(alone):
            network.begin(part.ring.rank)
            env.process(taken(number))
        while not watched and env.peek() == 0:
            if not env.apart.times:
                raise FoldRefusal("messages of a ring arrive when it begins")
            env.step()
        env.run()
        sent = [(part.flow.count, part.flow.scales) for part in alone]
        return Outcome([(_last_at(link), link.free) for link in links], ends, sent)


class Unordered:
    """What is known of the order in which members begin: nothing, but that of what each of them does."""

    def ordered(self, this: int, other: int) -> bool:
        """Whether the order of what descends from two of them is the same in all images."""
        return this == other and this & SURE == SURE

    def joined(self, this: int, other: int) -> int:
        """The certain part of a root that may be either of two."""
        return this if self.ordered(this, other) else this & ~SURE


def _next(ring: Group) -> Flow:
    """The flow of a member to the next one."""
    return ring.to((ring.me + 1) % ring.size)


def _form(parts: Sequence[Part]) -> tuple[Any, ...]:
    """What tells parts from others: their sizes, whom they hear, and the hops of their flows, with numbers for links.

    Raises:
        FoldRefusal: a member hears one that is not simulated and for which no other one of the ring stands.
    """
    number = dict[Any, int]()
    ends = {id(ring.end_of((ring.me + 1) % ring.size)): place for place, (ring, *_) in enumerate(parts)}
    form = []
    for ring, elements, _, flow, _ in parts:
        hears = ends.get(id(ring.from_((ring.me - 1) % ring.size)))
        if hears is None:
            raise FoldRefusal("members of a ring stand for those of another one")
        hops = [(number.setdefault(link, len(number)), link.spec.bandwidth, latency) for link, latency, _ in flow.hops]
        images = flow.images if isinstance(flow, LineageFlow | WatchedFlow) else ()
        form.append((ring.me, ring.size, elements, hears, ring.paces, images, *hops))
    return tuple(form)


def _links_of(parts: Sequence[Part]) -> list[Any]:
    """The links of flows at which messages may wait, each once; none if no message waits for another."""
    links: dict[Any, None] = dict.fromkeys(hop.link for part in parts for hop in part.flow.hops)
    return [link for link in links if isinstance(link, LineageLink | WatchedLink) and link.bandwidth is not None]


def _last_at(link: Any) -> int:
    """When a message last reached a link."""
    last: int = link.last[0] if isinstance(link, LineageLink) and not link.shared else link.when
    return last
