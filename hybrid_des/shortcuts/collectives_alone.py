"""Collectives whose messages nothing disturbs: they take the time that they take alone, and send nothing.

    begin     the members of a group begin; from the first begin on, nothing else may use the links between them
    alone     the same begins, by messages, on a network of its own: when each member ends, and what it has sent
    at once   members go on at these times, their messages are counted, and their links are free again when these end

When members end depends on when they begin after the first one, on how long links still serve earlier messages, and on
how flows share links; not on the clock. So what begins as an earlier collective did, of another layer, bucket, stage or
micro-batch, is not simulated again.

The run ends with a reason, and is made by messages, as soon as anything else happens to a collective: at the first
message that reaches a link of it, and at the first order of events that its own messages would have decided.

    of layers      where all ranks are simulated: members may begin one by one, at links that are idle. Nothing else may
                   happen in the picosecond in which one of them begins or ends
    around rings   of gradients, where ranks are folded: members begin together, at links that may still be busy. Links
                   know what reaches them (`folding.watched_links`), and nothing may depend on which member goes on
                   first (`LineageEnvironment.unknown`)
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hybrid_des import collectives
from hybrid_des.cluster.rate import Rate
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import Work
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.collectives.nccl import on_channels
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import FIRST, Environment
from hybrid_des.engine.lineage import Lineage, LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.folded_transport import FoldedTransport, LineageFlow, LineageLink, folded_transport
from hybrid_des.folding.refusals import DisturbedError, FoldRefusal, TieError
from hybrid_des.folding.symmetry import SURE
from hybrid_des.folding.watched_links import WatchedFlow, WatchedLink
from hybrid_des.planning.gradients import Reductions
from hybrid_des.planning.planner import Parts
from hybrid_des.scenario.definition import Scenario

LAYERS, RINGS, REDUCTIONS, GATHERS = "collectives of layers", "rings", "reductions around rings", "gathers around rings"
AROUND_RINGS = "ring", "ring-reduce-scatter"  # every member sends to the next one; the latter with `ring-all-gather`
FEWEST = 32  # messages of a member and phase of rings; fewer take little time in a folded run
MOST_MEMBERS = 64  # of a group of layers: the links of all routes between them are held
MOST_KNOWN = 4096  # outcomes that are kept


def taken_of_all_ranks(scenario: Scenario, parts: Parts) -> str | None:
    """What a run of all ranks takes at once; None if nothing: its links or ranks may vary, or it shows messages."""
    varies = scenario.slow or scenario.background or parts.training or scenario.jitter
    if varies or scenario.record == "all" or scenario.cluster.service not in ("fifo", "uncontended"):
        return None
    return LAYERS if parts.traffic.messages else None


def taken_in_fold(scenario: Scenario, parts: Parts, *, tied: bool) -> str | None:
    """Which rings a folded run takes at once, as far as can be told that nothing disturbs them; None if none.

    Messages between stages do where parameters are gathered beside the first forward passes; and mostly where gradients
    are reduced before those of the next chunk, so that it is not worth a try where orders are not traced.

    Args:
        scenario: what is simulated.
        parts: its parts.
        tied: whether messages reach a link at the same moment, so that orders are traced.
    """
    served = scenario.cluster.service in ("fifo", "uncontended")
    if scenario.record == "all" or not served or not any(_is_long(one) for one, _ in parts.reductions.processes):
        return None
    several = any(len(parts.programs.chunks(rank)) > 1 for rank in range(scenario.parallel.pipeline))
    doubtful = several and scenario.gradients.overlap and not tied
    if not parts.reductions.gather or scenario.overlap.parameters:
        return None if doubtful else REDUCTIONS
    return GATHERS if doubtful else RINGS


def _is_long(processes: ProcessGroup) -> bool:
    """Whether a group reduces around rings with many messages, or may, as a library decides for each bucket."""
    may_go_around = processes.kind in AROUND_RINGS or collectives.find(processes.kind).facts["along"] is not None
    return may_go_around and (processes.size - 1) * max(1, len(processes.channels)) >= FEWEST


class CollectivesAlone:
    """Takes collectives of a run at once (`simulation.communicators.CollectiveOverride`).

    Args:
        transport: the network of the run.
        parts: those of the run.
        kind: which collectives.
        service: the model of how links are shared.
    """

    def __init__(self, transport: Transport, parts: Parts, kind: str, service: str) -> None:
        self._transport, self._parts, self._kind, self._service = transport, parts, kind, service

    def of_gradients(
        self, reduction: ProcessGroup, group: ProcessGroup, places: Sequence[int], algorithm: Collective
    ) -> Collective:
        """The collective of a group, taken at once if it goes around long rings and is of that kind."""
        gathers = group is not reduction
        if self._kind in (LAYERS, REDUCTIONS if gathers else GATHERS) or not _is_long(reduction):
            return algorithm
        assert isinstance(self._transport, FoldedTransport)
        name = self._parts.reductions.gather if gathers else reduction.kind
        count = len(places) * max(1, len(reduction.channels))
        known = self._parts.remembered.setdefault("rings alone", {})
        return AroundRings(self._transport, reduction, count, known, name, algorithm)

    def of_layers(self, whole: ProcessGroup, work_of: Callable[[Any], Work]) -> Callable[[], Callable[[Any], Work]]:
        """The `begin` of a group's communicators: their collectives are taken at once, if the group allows it."""
        several = 1 < whole.size <= MOST_MEMBERS and not whole.servers and whole.tuned is not None
        if self._kind != LAYERS or not several:
            return lambda: work_of
        routes = [self._parts.fabric.route(one, other) for one in whole.ranks for other in whole.ranks if one != other]
        each = (self._transport.links[name] for name in dict.fromkeys(name for route in routes for name in route.links))
        links = [link for link in each if link.spec.bandwidth is not None]
        if links and any(len(route.links) > 1 and not route.latencies[0] for route in routes):
            return lambda: work_of  # heads reach a second link when they are sent: all orders of that moment matter
        of_wiring: WeakKeyDictionary[Reductions, dict[Any, Outcome]]
        of_wiring = self._parts.fabric.once("collectives alone", WeakKeyDictionary)
        known = of_wiring.setdefault(self._parts.reductions, {})
        group, taken = OfLayers(self._transport, whole, known, links, self._service), dict[Any, Work]()

        def work(call: Any) -> Work:
            if call not in taken:
                usual = work_of(call)
                taken[call] = usual._replace(algorithm=partial(group.take_part, call, usual))
            return taken[call]

        return lambda: work


class Part(NamedTuple):
    """What a member does in a collective; of rings, on one channel.

    Attributes:
        view: its view of the group, or of the channel.
        after: picoseconds since the first part began.
        what: what it does there: a call, or the elements of its buffer.
        routine: does it in a view.
        over: the event of its end.
    """

    view: Group
    after: int
    what: Any
    routine: Callable[[Group], Routine]
    over: Arrival

    @property
    def flow(self) -> Flow:
        """Around a ring: to the next member."""
        return self.view.to((self.view.me + 1) % self.view.size)


class Outcome(NamedTuple):
    """What a collective does alone, in picoseconds from its first begin.

    Attributes:
        ends: the number of each part, and when it ends, in that order.
        sent: what finds each flow in a run, with its `count` and `scales`.
        uses: when each link is last reached by its messages, and when it has served them, if these may follow others.
    """

    ends: Sequence[tuple[int, int]]
    sent: Sequence[tuple[Any, int, int]]
    uses: Sequence[tuple[int, int]] = ()


class Together:
    """The collectives of a group, of which at most one is under way.

    Args:
        transport: the network of the run.
        whole: the group.
        count: the number of parts of a collective.
        known: outcomes, by what they depend on.
    """

    def __init__(self, transport: Any, whole: ProcessGroup, count: int, known: dict[Any, Outcome]) -> None:
        self._transport, self._env, self._whole = transport, transport.env, whole
        self._count, self._known = count, known
        self._parts, self._first = list[Part](), 0

    def _take(self, view: Group, what: Any, routine: Callable[[Group], Routine]) -> Routine:
        """Take a part in a collective.

        Raises:
            DisturbedError: it is not certain what happens.
        """
        if not self._parts:
            self._first = self._env.now
        if len(self._parts) == self._count:
            raise DisturbedError("a member begins before all have ended")
        part = Part(view, self._env.now - self._first, what, routine, self._transport.arrival())
        self._hold(part)
        self._parts.append(part)
        if len(self._parts) == self._count:
            self._go_on(self._outcome())
        yield part.over

    def _outcome(self) -> Outcome:
        """What the collective does whose parts have all begun."""
        key = self._pattern()
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._alone()
        return self._known[key]

    def _hold(self, part: Part) -> None:
        """Hold the links of a part that begins; raises `DisturbedError` if something else uses them."""
        raise NotImplementedError

    def _pattern(self) -> Any:
        """What the outcome depends on."""
        raise NotImplementedError

    def _alone(self) -> Outcome:
        """The outcome, simulated alone."""
        raise NotImplementedError

    def _go_on(self, outcome: Outcome) -> None:
        """Let members go on at their ends."""
        raise NotImplementedError

    def _noting(self, number: int, network: Transport, ends: list[tuple[int, int]]) -> Routine:
        """Take a part in another network, and note when it ends."""
        yield from self._parts[number].routine(self._parts[number].view.on(network))
        ends.append((number, network.env.now))


def _count(flow: Flow, messages: int, scales: int) -> None:
    """Count messages that were not sent."""
    flow.count += messages
    flow.scales += scales


class HeldRate(Rate):
    """The rate of links that a collective holds."""

    def __missing__(self, size: int) -> int:
        raise DisturbedError("another message uses a link of a collective")


class OfLayers(Together):
    """The collectives of a group of layers, in a run of all ranks.

    Args:
        transport, whole, known: as above.
        links: those between members.
        service: as above.
    """

    def __init__(
        self, transport: Transport, whole: ProcessGroup, known: dict[Any, Outcome], links: Sequence[Any], service: str
    ) -> None:
        super().__init__(transport, whole, whole.size, known)
        self._service, self._held = service, HeldRate()
        self._links = [(link, link.rate) for link in links]

    def take_part(self, call: Any, work: Work, member: Group, _: Buffer) -> Routine:
        """Take a member's part in what a call does."""
        return self._take(member, call, lambda view: work.algorithm(view, work.buffer))

    def _hold(self, part: Part) -> None:
        """Hold the links from the first begin on."""
        for link, usual in () if self._parts else self._links:
            if link.rate is not usual or link.free > self._env.now:
                raise DisturbedError("something else uses a link of a collective")
            link.rate = self._held

    def _pattern(self) -> Any:
        begins = tuple([(part.view.me, part.after, part.what) for part in self._parts])
        return self._service, tuple(self._whole.ranks), begins

    def _alone(self) -> Outcome:
        env, ends = Environment(), list[tuple[int, int]]()
        network = Transport(Links(env, self._transport.links.fabric, self._service), Recorder())
        for after, begun in groupby(range(self._count), lambda number: self._parts[number].after):
            together = [*begun]
            env.at(after, (_refuse_others, env, len(together)), FIRST)
            for number in together:
                env.at(after, (_start, env, partial(self._noting, number, network, ends)))
        env.run()
        return Outcome(ends, [(key, flow.count, flow.scales) for key, flow in network.of_collectives()])

    def _go_on(self, outcome: Outcome) -> None:
        env, ends = self._env, outcome.ends
        if self._first + ends[0][1] < env.now:
            raise DisturbedError("a member ends before all have begun")
        for after, count in Counter(after for _, after in ends).items():
            env.at(self._first + after, (_refuse_others, env, count), FIRST)
        env.at(self._first + ends[-1][1], (self._leave,), FIRST)
        for number, after in ends:
            self._parts[number].over.happen(self._first + after, None)
        for key, *sent in outcome.sent:
            _count(self._transport.flow(*key)[0], *sent)

    def _leave(self, _: Any) -> None:
        """Leave the links to others."""
        self._parts = []
        for link, usual in self._links:
            link.rate = usual


def _start(booking: Any) -> None:
    """Let a member begin."""
    _, env, part = booking
    env.process(part())


def _refuse_others(booking: Any) -> None:
    """Refuse any event now beyond the expected number, since it may matter which is first."""
    _, env, count = booking
    if len(env.agenda.booked[env.now]) > count:
        raise DisturbedError("something else happens when members begin or end")


class AroundRings(Together):
    """The rings of a group in a folded run, one bucket after the other.

    Args:
        transport, whole, count, known: as above; the parts are of simulated members, on all channels.
        name, algorithm: the name of the collective, and what it does.
    """

    def __init__(
        self,
        transport: FoldedTransport,
        whole: ProcessGroup,
        count: int,
        known: dict[Any, Outcome],
        name: str,
        algorithm: Collective,
    ) -> None:
        super().__init__(transport, whole, count, known)
        self._name, self._algorithm = name, algorithm
        self._firsts = set[Any]()  # links of first hops, held

    def __call__(self, group: Group, buffer: Buffer) -> Routine:
        """Take the part of a member: on a channel or, of a library's collective, on all."""
        if group.tuned is None:
            return self._part(self._algorithm, group, buffer)
        along = collectives.find(self._name).facts["along"](group.tuned, buffer.bytes)
        if along is None:
            return self._algorithm(group, buffer)
        return on_channels(group, buffer, replace(along, algorithm=partial(self._part, along.algorithm)))

    def _part(self, algorithm: Collective, ring: Group, buffer: Buffer, *options: Any) -> Routine:
        return self._take(ring, buffer.elements, lambda view: algorithm(view, buffer, *options))

    def _hold(self, part: Part) -> None:
        """Hold the first link of a member."""
        if part.after:
            raise DisturbedError("members of a ring begin at different times")
        flow: Any = part.flow
        if isinstance(flow, LineageFlow | WatchedFlow) and flow.link not in self._firsts:
            flow.take_first()
            self._firsts.add(flow.link)

    def _pattern(self) -> Any:
        now, links = self._first, _links_of(self._parts)
        for link in links:
            if link not in self._firsts and link.shared and link.when >= now:
                raise DisturbedError(f"other messages reach link {link.spec.name} when a ring begins")
        return self._name, *_form(self._parts), tuple([max(0, link.free - now) for link in links])

    def _alone(self) -> Outcome:
        """The outcome, watched for ties or, if there are any, with orders traced.

        Raises:
            DisturbedError: which message is first at a link does not follow from what the rings do.
        """
        try:
            with suppress(TieError):
                return self._on_a_network(watched=True)
            return self._on_a_network(watched=False)
        except FoldRefusal as refusal:
            raise DisturbedError(str(refusal)) from None

    def _on_a_network(self, *, watched: bool) -> Outcome:
        busy = [max(0, link.free - self._first) for link in _links_of(self._parts)]
        fabric, fold, sharing = self._transport.links.fabric, self._transport.fold, "fifo" if busy else "uncontended"
        network = folded_transport(fabric, sharing, Recorder(), fold, [self._whole], watched=watched)
        env: Any = network.env
        if isinstance(env, LineageEnvironment):
            env.know(Unordered())
        alone = [part._replace(view=part.view.on(network)) for part in self._parts]
        links, ends = _links_of(alone), list[tuple[int, int]]()
        for link, time in zip(links, busy, strict=True):
            link.free = time
        for number, part in enumerate(alone):
            network.begin(part.view.rank)
            env.process(self._noting(number, network, ends))
        while not watched and env.peek() == 0:
            if not env.apart.times:
                raise DisturbedError("messages of a ring arrive when it begins")
            env.step()
        env.run()
        sent = [(number, part.flow.count, part.flow.scales) for number, part in enumerate(alone)]
        return Outcome(sorted(ends), sent, [(_last_at(link), link.free) for link in links])

    def _go_on(self, outcome: Outcome) -> None:
        """Let members go on at their ends; in which order is not known, but of what follows from each of them."""
        env, parts, unknown = self._env, self._parts, dict[tuple[int, int], Lineage]()
        self._parts, self._firsts = [], set()
        for link, (last, free) in zip(_links_of(parts), outcome.uses, strict=True):
            link.free = self._first + free
            link.take(self._first + last)
        for number, *sent in outcome.sent:
            _count(parts[number].flow, *sent)
        traced = isinstance(env, LineageEnvironment)
        for number, end in outcome.ends:
            rank = parts[number].view.rank
            if traced and (rank, end) not in unknown:  # ends of a member's channels: it goes on after all of them
                unknown[rank, end] = env.unknown(rank)
            with env.births(unknown[rank, end]) if traced else nullcontext():
                parts[number].over.happen(self._first + end, None)


class Unordered:
    """What is known of the order in which members begin: nothing, but that of what each of them does."""

    def ordered(self, this: int, other: int) -> bool:
        """Whether the order of what descends from two of them is the same in all images."""
        return this == other and this & SURE == SURE

    def joined(self, this: int, other: int) -> int:
        """The certain part of a root that may be either of two."""
        return this if self.ordered(this, other) else this & ~SURE


def _form(parts: Sequence[Part]) -> tuple[Any, ...]:
    """What tells parts from others: their sizes, whom they hear, and the hops of their flows, with numbers for links.

    Raises:
        DisturbedError: a member hears one that is not simulated and for which no other one of the ring stands.
    """
    number = dict[Any, int]()
    ends = {part.view.end_of((part.view.me + 1) % part.view.size): place for place, part in enumerate(parts)}
    form = []
    for part in parts:
        ring, flow = part.view, part.flow
        hears = ends.get(ring.from_((ring.me - 1) % ring.size))
        if hears is None:
            raise DisturbedError("members of a ring stand for those of another one")
        hops = [(number.setdefault(link, len(number)), link.spec.bandwidth, latency) for link, latency, _ in flow.hops]
        images = flow.images if isinstance(flow, LineageFlow | WatchedFlow) else ()
        form.append((ring.me, ring.size, part.what, hears, ring.paces, images, *hops))
    return tuple(form)


def _links_of(parts: Sequence[Part]) -> list[Any]:
    """The links of flows at which messages may wait, each once; none if no message waits for another."""
    links: dict[Any, None] = dict.fromkeys(hop.link for part in parts for hop in part.flow.hops)
    return [link for link in links if isinstance(link, LineageLink | WatchedLink) and link.bandwidth is not None]


def _last_at(link: Any) -> int:
    """When a message last reached a link."""
    last: int = link.last[0] if isinstance(link, LineageLink) and not link.shared else link.when
    return last
