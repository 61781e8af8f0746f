"""Collectives of gradients that a folded run takes at once: what one like it took alone, by messages, simply passes.

    begin     all simulated members of a group, at the same time; links may still serve earlier messages
    alone     the same on links of its own: when each member ends, until when each link is reached, and busy
    at once   later ones that begin so send nothing: their members go on at these times, their links are busy so long

That is exact unless a message of others reaches one of the links meanwhile. It ends the run (`DisturbedError`), as does
whatever else cannot be told; then all is simulated by messages (`undisturbed`). Groups whose flows share links of
the same bandwidths in the same way do the same, so of the groups of all stages one is simulated alone.

Orders stay certain (`engine.lineage`). An end descends from the begin of one of the members, and was booked, as its
ancestors were, as long after it as alone, which gives its chain and root. What is decided within the collective depends
on which members' chains are equal; a collective in which different roots are compared is not taken. Events of one
moment are processed in the order in which they were booked: an end is booked in the moment in which it was alone, in
which nothing else may be booked for the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Mailbox
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import on_channels
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import FIRST, LAST
from hybrid_des.engine.lineage import Lineage, LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.folding.folded_transport import TAKEN, LineageLinks, LineageTransport
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.symmetry import SURE, Element, Fold, root_of
from hybrid_des.simulation.folding.ties import DisturbedError
from hybrid_des.simulation.planning.gradients import Reductions
from hybrid_des.simulation.planning.planner import Parts

Ended = TypeVar("Ended")

FEWEST = 32  # members; messages of fewer are hardly more than the events in their place
BEGUN = 2**63  # beyond all hashes: chains of members of a collective alone, from here on

_KNOWN: WeakKeyDictionary[Reductions, dict[Any, Any]] = WeakKeyDictionary()

_DISTURBED: WeakValueDictionary[int, Plan] = WeakValueDictionary()  # by their identity, as plans with ties


def are_many(processes: ProcessGroup) -> bool:
    """Whether a group is so large that its collectives are worth taking at once; switches are not seen to here."""
    return processes.size >= FEWEST and not processes.servers


def takes_at_once(scenario: Scenario, parts: Parts, *, detailed: bool) -> bool:
    """Whether a folded run takes collectives at once: one without rows, whose plan had none disturbed before."""
    if detailed or scenario.record == "all" or scenario.cluster.service != "fifo":
        return False
    large = any(are_many(processes) for processes, _ in parts.reductions.processes)
    return large and _DISTURBED.get(id(parts.plan)) is not parts.plan


def undisturbed(simulate: Callable[[Fold | None], Ended], plan: Plan) -> Callable[[Fold | None], Ended]:
    """Simulate once more if a collective that was taken at once is disturbed, and take none of this plan again."""

    def once_more(fold: Fold | None) -> Ended:
        with suppress(DisturbedError):
            return simulate(fold)
        _DISTURBED[id(plan)] = plan
        return simulate(fold)

    return once_more


class Member(NamedTuple):
    """A member that has begun: when, by the event of which number and lineage, and what happens when its part ends."""

    at: int
    event: int
    lineage: Lineage
    over: Arrival


class End(NamedTuple):
    """The end of a member's part.

    Attributes:
        place: that of the member.
        at: when it ends, in picoseconds from the begin.
        booked: likewise, when its ancestors were booked, and then itself.
        first: the place of the member with which they began.
        element: what maps its rank to the root of the end.
    """

    place: int
    at: int
    booked: tuple[int, ...]
    first: int
    element: Element


class Asked(NamedTuple):
    """A flow that a member asked for: the places of sender and receiver, and the lane and channel."""

    sender: int
    receiver: int
    lane: int
    channel: Channel


class Outcome(NamedTuple):
    """What a collective does alone.

    Attributes:
        asked: its flows, as members asked for them.
        sent: the counts of each flow (`Flow.count`, `Flow.scales`).
        uses: when each link is last reached and when it is free, in picoseconds from the begin.
        ends: those of its members, in order.
    """

    asked: Sequence[Asked]
    sent: Sequence[tuple[int, int]]
    uses: Sequence[tuple[int, int]]
    ends: Sequence[End]


class Parents(LineageEnvironment):
    """An environment that remembers the parents of events.

    Attributes:
        booked: chain of an event → when it was booked, and the chain of its parent.
    """

    def __init__(self, fold: Fold) -> None:
        self.booked: dict[int | None, tuple[int, Any]] = {}
        super().__init__(fold)

    @property
    def born(self) -> Lineage:
        """The lineage of events booked now."""
        return self._born

    @born.setter
    def born(self, born: Lineage) -> None:
        self._born = born
        self.booked[born[0]] = self.now, self.lineage[0]


class Alone(LineageTransport):
    """The network of a collective alone.

    Attributes:
        asked: the flows that members ask for, by channel and lane.
    """

    def __init__(self, like: LineageTransport, groups: Sequence[ProcessGroup]) -> None:
        links = LineageLinks(Parents(like.fold), like.links.fabric, "fifo")
        super().__init__(links, Recorder(), like.fold, False, groups)
        self._courses = like.courses  # so that the same links stand for their images
        self.asked: dict[tuple[Channel, int], Flow] = {}

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two ranks, and the mailbox at its end."""
        known = super().flow(channel, lane, part)
        self.asked[channel, lane] = known[0]
        return known


class CollectivesAtOnce:
    """Takes collectives at once.

    Args:
        transport: the network of a folded run, whose links serve one message at a time (`fifo`).
        groups: its groups.
        reductions: whose collectives are taken.
    """

    def __init__(self, transport: LineageTransport, groups: Sequence[ProcessGroup], reductions: Reductions) -> None:
        self._transport, self._env, self._fold = transport, transport.env, transport.fold
        self._groups, self._known = groups, _KNOWN.setdefault(reductions, {})
        self._begun: dict[int, dict[int, Member]] = {}
        self._wirings: dict[int, tuple[Any, ...]] = {}
        self._opened: dict[Any, tuple[Any, list[Any], list[Any]]] = {}
        self._chain = cache(_chain)

    def take(self, group: Group, buffer: Buffer, algorithm: Collective) -> Routine:
        """Take a member's part in a collective.

        Raises:
            DisturbedError: it cannot be told what happens.
        """
        env, whole, over = self._env, group.processes, self._transport.arrival()
        if env.lineage[0] is None or env.lineage[1] & SURE != SURE:
            raise DisturbedError("it is not certain in which order members begin")
        begun = self._begun.setdefault(id(whole), {})
        if group.me in begun or any(other.at != env.now for other in begun.values()):
            raise DisturbedError("members begin at different times")
        begun[group.me] = Member(env.now, env.events, env.lineage, over)
        if len(begun) == self._wiring(whole)[0]:
            del self._begun[id(whole)]
            self._begin(whole, begun, buffer, algorithm)
        yield over

    def _wiring(self, whole: ProcessGroup) -> tuple[Any, ...]:
        """How many members are simulated, and what an algorithm may look at: who shares nodes, and channels."""
        if id(whole) not in self._wirings:
            first, transport = dict[int, int](), self._transport
            nodes = tuple([first.setdefault(transport.node_of(rank), len(first)) for rank in whole.ranks])
            simulated = sum(map(transport.simulates, whole.ranks))
            self._wirings[id(whole)] = simulated, nodes, tuple(map(tuple, whole.channels)), repr(whole.tuned)
        return self._wirings[id(whole)]

    def _begin(self, whole: ProcessGroup, begun: Mapping[int, Member], buffer: Buffer, algorithm: Collective) -> None:
        """Let the time of a collective pass, all of whose members have begun."""
        known, now, chains = self._known, self._env.now, dict[Any, int]()
        order = {place: chains.setdefault(one.lineage[0], len(chains)) for place, one in begun.items()}
        alone = partial(self._alone, whole, order, buffer, algorithm)
        kind = (self._fold.folded_axes, whole.kind, buffer.elements, *order.items(), self._wiring(whole))
        idle = None if kind in known else alone({})
        if idle is not None:
            known[kind] = idle.asked
        form, flows, links = self._open(whole, known[kind])
        if idle is not None:
            known[kind, form, (0,) * len(links)] = idle
        busy = tuple([max(0, link.free - now) for link in links])
        outcome = known.get((kind, form, busy))
        if outcome is None:
            outcome = alone({link.spec.name: time for link, time in zip(links, busy, strict=True)})
            known[kind, form, busy] = outcome
        if [one[:3] for one in outcome.asked] != [one[:3] for one in known[kind]]:
            raise DisturbedError("members send to others than before")
        of_ranks = {whole.ranks[place]: member for place, member in begun.items()}
        for link, (last, free) in zip(links, outcome.uses, strict=True):
            if link.spec.bandwidth is not None:
                self._follow(link, flows, of_ranks)
                link.free = now + free
                link.take(now + last)
        for flow, (count, scales) in zip(dict.fromkeys(flows), outcome.sent, strict=True):
            flow.count += count
            flow.scales += scales
        self._end(outcome.ends, begun)

    def _open(self, whole: ProcessGroup, asked: Sequence[Asked]) -> tuple[Any, list[Any], list[Any]]:
        """The flows of a group that are asked for like those of another, how they share links, and these."""
        key = id(whole), id(asked)
        if key not in self._opened:
            flows, form = list[Any](), list[Any]()
            for sender, receiver, lane, channel in asked:
                channel = channel._replace(sender=whole.ranks[sender], receiver=whole.ranks[receiver])
                channel = channel._replace(stage=whole.stage, chunk=whole.chunks[sender])
                flows.append(self._transport.flow(channel, lane, whole.part)[0])
            links, number_of = _links_of(flows), {flow: number for number, flow in enumerate(dict.fromkeys(flows))}
            number_of |= {link: number for number, link in enumerate(links)}
            for request, flow in zip(asked, flows, strict=True):
                hops = [(number_of[hop.link], hop.link.spec.bandwidth, hop.latency) for hop in flow.hops]
                form.append((*request[:3], request.channel.pace, number_of[flow], flow.images, *hops))
            self._opened[key] = tuple(form), flows, links
        return self._opened[key]

    def _follow(self, link: Any, flows: Sequence[Any], begun: Mapping[int, Member]) -> None:
        """Check that messages of a collective that begins now follow all others that reach a link, in all images.

        Args:
            link: the link.
            flows: those of the collective.
            begun: the members of the collective, by rank.

        Raises:
            DisturbedError: they need not.
        """
        if link.when < self._env.now:
            return
        if link.arrived is TAKEN:
            raise DisturbedError("another collective has the link")
        for flow in dict.fromkeys(flows):
            if link is flow.link:
                member = begun[flow.sender]
                here = flow.seen(member.lineage)
                for _, event, _, before, turn in link.arrived:
                    there = before if turn is None else turn.of(before)
                    if event >= member.event or not self._env.decided(there, here):
                        raise DisturbedError("it is not certain which message is first")
            elif any(link is hop.link for hop in flow.hops):
                raise DisturbedError("it is not certain which message is first at a further link")

    def _end(self, ends: Sequence[End], begun: Mapping[int, Member]) -> None:
        """Let members that begin now go on when their parts end."""
        env, together = self._env, dict[tuple[int, int], list[tuple[Arrival, int]]]()
        for end in ends:
            over: Any = begun[end.place].over
            chain, root = begun[end.first].lineage
            over.value = None
            over.lineage = self._chain(env.now, chain, end.booked), self._fold.move_root(root, end.element)
            again = end.booked.count(end.at)  # events of its last moment that lead to it
            if not any(end.booked[: len(end.booked) - again]):
                raise DisturbedError("a part ends as it begins")
            together.setdefault((end.booked[-1 - again], end.at), []).append((over, again))
        for (booked, at), overs in together.items():
            before = list[int]()
            env.at(env.now + booked, (_count, env, env.now + at, before), FIRST)
            env.at(env.now + booked, (_book, env, env.now + at, before, overs), LAST)

    def _alone(
        self,
        whole: ProcessGroup,
        order: Mapping[int, int],
        buffer: Buffer,
        algorithm: Collective,
        busy: Mapping[str, int],
    ) -> Outcome:
        """What a collective does alone.

        Args:
            whole: the group.
            order: the places of its members as they begin, with numbers that are the same for equal chains.
            buffer: that of a member.
            algorithm: what it does.
            busy: link → picoseconds for which it is busy.

        Raises:
            DisturbedError: it depends on more than that.
        """
        network, ends = Alone(self._transport, self._groups), list[End]()
        env: Any = network.env
        for name, time in busy.items():
            network.links[name].free = time
        place_of = {rank: place for place, rank in enumerate(whole.ranks)}

        def part(member: int) -> Routine:
            yield from on_channels(Group(network, whole, member), buffer, algorithm)
            ends.append(_end_of(env, member, self._fold, place_of))

        for member, number in order.items():
            env.lineage = env.born = BEGUN + number, root_of(whole.ranks[member])
            env.process(part(member))
        try:
            env.run()
        except FoldRefusal as refusal:
            raise DisturbedError(str(refusal)) from None
        if len(ends) < len(order) or env.start_matters or env.roots_compared:
            raise DisturbedError("it depends on the ranks with which its members began")
        flows = {
            Asked(place_of[channel.sender], place_of[channel.receiver], lane, channel): flow
            for (channel, lane), flow in network.asked.items()
        }
        asked = sorted(flows, key=itemgetter(slice(3)))
        in_order: list[Any] = [flows[one] for one in asked]
        uses = [(link.when if link.shared else link.last[0], link.free) for link in _links_of(in_order)]
        return Outcome(asked, [(flow.count, flow.scales) for flow in dict.fromkeys(in_order)], uses, ends)


def _end_of(env: Parents, member: int, fold: Fold, place_of: Mapping[int, int]) -> End:
    """The end of a member's part, now."""
    chain, root = env.lineage
    if chain is None or env.born != (hash((env.now, chain)), root) or root & SURE != SURE:
        raise DisturbedError("it is not certain by which message a part ends")
    booked = []
    while chain < BEGUN:
        time, chain = env.booked[chain]
        booked.append(time)
    rank, element = fold.representative(root >> 4)
    return End(member, env.now, tuple(reversed(booked)), place_of[rank], element)


def _chain(now: int, chain: Any, booked: Sequence[int]) -> int:
    """The chain of an event whose ancestors, booked so long after now, follow one with a chain that happens now."""
    last: int = chain
    for time in booked:
        last = hash((now + time, last))
    return last


def _links_of(flows: Iterable[Flow]) -> list[Any]:
    """The links of flows, each once."""
    return [*dict.fromkeys(hop.link for flow in flows for hop in flow.hops)]


def _count(booking: Any) -> None:
    """Note how much is booked for a time before anything happens in this moment."""
    _, env, at, before = booking
    before.append(len(env.agenda.booked.get(at, ())))


def _book(booking: Any) -> None:
    """Book the ends of parts, after everything else that happens in this moment.

    Raises:
        DisturbedError: something else was booked in it for the same time.
    """
    _, env, at, before, overs = booking
    if before != [len(env.agenda.booked.get(at, ()))]:
        raise DisturbedError("it is not certain what is first when a part ends")
    for over, again in overs:
        _book_again((None, env, at, over, again))


def _book_again(booking: Any) -> None:
    """Book the end of a part, after the events of the same moment that lead to it."""
    _, env, at, over, again = booking
    env.agenda.book(at, (_book_again, env, at, over, again - 1) if again else over)
