"""Rings of gradients that a folded run follows apart from its other events, where each link has one sender of rings.

    begin    a member sends its first message; from then on its ring's messages are no events of the run
    others   a message of others that reaches a link of a ring is served after those of rings that reached it before;
             these are followed until then (`ring_course`)
    end      a member goes on when its last message has arrived, as far as is known; if others delayed it, later

So members may begin at different times, and other messages may pass. Messages of rings that reach a link in the same
moment as others are told apart by when their events were booked, and when the events were that booked these; if that is
not enough, the run ends (`FoldRefusal`). Of the event by which a member goes on only what follows from it is known to
be in order (`engine.lineage`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.cluster.sharing.uncontended import FreeLink
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.collectives.nccl import on_channels
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.folding.folded_transport import FoldedTransport, LineageFlow, LineageLink
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.ring_course import NEVER_WAITS, Course, Route, is_after
from hybrid_des.simulation.folding.symmetry import Fold
from hybrid_des.simulation.noted_plans import NotedPlans
from hybrid_des.simulation.planning.gradients import Reductions, ReplicaGroup
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.simulation.ring_links import RINGS

FEWEST = 512  # members; to follow rings of fewer takes about as long as their messages

_TIED = NotedPlans()  # with the number of steps and the fold of a run in which an order was not certain


class Member(NamedTuple):
    """A member of a ring: its rank, its flow to the next one, and how its messages go there."""

    rank: int
    flow: Flow
    route: Route


class Use(NamedTuple):
    """What a link is used for by rings: their course, its number there, and whose messages it has, on which hop."""

    course: Followed
    slot: int
    rank: int
    hop: int


class Followed:
    """A course of rings in a run.

    Args:
        env: its environment.
        links: those at which messages may wait; no ring that is not on this course uses them.
    """

    def __init__(self, env: Any, links: Sequence[LineageLink]) -> None:
        self._env, self._links, self._course = env, links, Course.on(len(links))
        self._slots = {link: slot for slot, link in enumerate(links)}
        self._members = list[Member]()
        self._begun, self._over = Counter[int](), dict[int, Arrival]()
        self._expected, self._delayed = list[int](), False
        self._touched = {*range(len(links))}  # links that others may have reached since the course was followed
        for link in links:
            link.hold(self)

    @property
    def members(self) -> int:
        """The number of members of all rings."""
        return len(self._members)

    def add(self, members: Sequence[Member]) -> None:
        """Add the members of a ring."""
        self._members += members
        self._course.add([member.route for member in members])

    def reach(self, link: LineageLink, booked: tuple[int, int]) -> None:
        """Follow the course until a message that is not of it reaches a link now (`folded_transport.Rings`)."""
        moment, slot, course = (self._env.now, *booked), self._slots[link], self._course
        if course.heads:
            self._catch_up(moment)
        last = course.last[slot]
        if last[0] >= moment[0] and not is_after(moment, last):
            raise FoldRefusal("a message reaches a link at the same time as one of a ring")
        course.others[slot] = moment
        self._touched.add(slot)
        self._delayed = True

    def begin(self, number: int, ring: range, message: Message, steps: int, over: Arrival) -> None:
        """Let a member of a ring begin now.

        Args:
            number: of the member.
            ring: the numbers of all members of its ring.
            message: what it sends.
            steps: how often.
            over: the event of its end.

        Raises:
            FoldRefusal: it is not certain which message is first at a link.
        """
        env, course, flow, booked = self._env, self._course, self._members[number].flow, -1
        self._catch_up((env.now,))
        if isinstance(flow, LineageFlow):
            booked = env.lineage[2]
            flow.reach_first()
        least = 0 if flow.pace is None else flow.pace[message.size]
        course.took[number] = *(hop.link.rate[message.size] for hop in flow.hops), least
        flow.count += steps * message.count
        flow.scales += steps * message.scales
        course.left[number], course.ends[number], self._over[number] = steps, -1, over
        self._load()
        course.begin(number, env.now, booked)
        self._store()
        self._begun[number] += 1
        if all(self._begun[one] == self._begun[number] for one in ring):
            self._expect()
            for member in ring:
                env.at(self._expected[member], (self._end, member))

    def _catch_up(self, until: tuple[int, ...]) -> None:
        """Follow the course up to this."""
        heads = self._course.heads
        if heads and heads[0] < until:
            self._load()
            self._course.follow(until)
            self._store()

    def _load(self) -> None:
        """Learn what others have done to the links."""
        for slot in self._touched:
            self._course.free[slot] = self._links[slot].free
        self._touched.clear()

    def _store(self) -> None:
        """Leave the links to others as they are now."""
        for slot in self._course.changed:
            self._links[slot].free = self._course.free[slot]
        self._course.changed.clear()
        if self._course.coincides and isinstance(self._env, LineageEnvironment):
            self._env.start_matters = True  # which of both is first may depend on it

    def _expect(self) -> None:
        """Find out when members end, if no others come."""
        self._load()
        alone = self._course.copy()
        alone.follow((inf,))
        self._expected, self._delayed = alone.ends, False

    def _end(self, booking: Any) -> None:
        """Let a member go on if its part ends now; if not, look again when it may."""
        env, (_, number) = self._env, booking
        self._catch_up((env.now + 1,))
        end = self._course.ends[number]
        if end == -1:
            if self._delayed:
                self._expect()
            end = self._expected[number]
        if end > env.now:
            env.at(end, (self._end, number))
            return
        unknown = isinstance(env, LineageEnvironment)
        with env.births(env.unknown(self._members[number].rank)) if unknown else nullcontext():
            self._over.pop(number).happen(env.now, None)


def untied(
    simulate: Callable[[], Any], scenario: Scenario, parts: Parts, fold: Fold, *, any_order: bool = False
) -> Any:
    """Simulate a folded run whose rings are followed apart; None if it has none, or if order is not certain somewhere.

    Args:
        simulate: simulates it so.
        scenario: what is simulated.
        parts: its parts.
        fold: which ranks are simulated.
        any_order: whether ranks must be found to take the same times in whatever order they start.
    """
    if scenario.record == "all" or scenario.cluster.service not in ("fifo", "uncontended") or parts.training:
        return None
    this = parts.plan, scenario.steps, fold.folded_axes
    if _TIED.has(*this) or not any(_is_followed(*reduced) for reduced in parts.reductions.processes):
        return None
    try:
        job = simulate()
    except FoldRefusal:
        _TIED.note(*this)
        return None
    return None if any_order and not job.transport.any_order else job


class RingsApart:
    """Follows long rings of a folded run apart from its events.

    Args:
        transport: its network.
        reductions: whose rings are followed.
    """

    def __init__(self, transport: FoldedTransport, reductions: Reductions) -> None:
        self._transport, self._reductions = transport, reductions
        self._followed = {id(reduced[0]) for reduced in reductions.processes if _is_followed(*reduced)}
        self._uses: dict[Any, Use] = {}

    def of(
        self, reduction: ProcessGroup, group: ProcessGroup, places: Sequence[int], algorithm: Collective
    ) -> Collective:
        """The collective of a group, followed apart if it goes around a long ring (`communicators.AtOnce`).

        Raises:
            FoldRefusal: its links have messages of several members, or of members of several rings.
        """
        if id(reduction) not in self._followed:
            return algorithm
        name = reduction.kind if group is reduction else self._reductions.gather
        if group.tuned is None:
            steps = (2 if name == "ring" else 1) * (group.size - 1)
            return self._around(group, places, [Group(self._transport, group, place) for place in places], steps)
        around = dict[Any, Collective]()

        def taken(member: Group, buffer: Buffer) -> Routine:
            along = collectives.find(name).facts["along"](member.tuned, buffer.bytes)
            if along is None:
                return algorithm(member, buffer)
            if along.choice not in around:
                lanes = [along.on(Group(self._transport, group, place)) for place in places]
                steps = (2 if along.does == "all-reduce" else 1) * (group.size - 1)
                around[along.choice] = self._around(group, places, lanes, steps)
            return on_channels(member, buffer, replace(along, algorithm=around[along.choice]))

        return taken

    def _around(self, group: ProcessGroup, places: Sequence[int], views: Sequence[Group], steps: int) -> Collective:
        """What goes around a ring, by its members' views, in so many messages of each."""
        flows = self._flows(group, places, views)
        course = self._course(group, places, flows)
        numbers = range(course.members, course.members + len(places))
        course.add([*self._members(group, places, flows, numbers)])
        return partial(self._take, course, dict(zip(places, numbers, strict=True)), numbers, steps)

    def _take(
        self,
        course: Followed,
        number: Mapping[int, int],
        ring: range,
        steps: int,
        member: Group,
        buffer: Buffer,
        *options: Any,
    ) -> Routine:
        """Take a member's part in a collective.

        Raises:
            FoldRefusal: it cannot be told what happens.
        """
        over = self._transport.arrival()
        course.begin(number[member.me], ring, buffer.split(member.size).encode(0), steps, over)
        yield over

    def _flows(self, group: ProcessGroup, places: Sequence[int], views: Sequence[Group]) -> list[Flow]:
        """The flows of members to the next ones."""
        fold, ranks = self._transport.fold, group.ranks
        simulated = {ranks[place] for place in places}
        following = [(place + 1) % group.size for place in places]
        if any(fold.representative(ranks[place])[0] not in simulated for place in following):
            raise FoldRefusal("members of a ring stand for those of another one")
        flows = [view.to(to) for view, to in zip(views, following, strict=True)]
        links = {hop.link for flow in flows for hop in flow.hops}
        if not all(_waits(link) or link.bandwidth is None or isinstance(link, FreeLink) for link in links):
            raise FoldRefusal("links of a ring vary with time")
        return flows

    def _course(self, group: ProcessGroup, places: Sequence[int], flows: Sequence[Flow]) -> Followed:
        """The course of flows."""
        uses = [
            (hop.link, (group.ranks[place], number))
            for place, flow in zip(places, flows, strict=True)
            for number, hop in enumerate(flow.hops)
            if _waits(hop.link)
        ]
        links: dict[Any, tuple[int, int]] = dict(uses)
        known = {link: self._uses[link] for link in links if link in self._uses}
        courses = list({id(use.course): use.course for use in known.values()}.values())
        alike = all(use[2:] == links[link] for link, use in known.items())
        if len(links) < len(uses) or not alike or len(courses) > 1 or 0 < len(known) < len(links):
            raise FoldRefusal("members of rings share links")
        if courses:
            return courses[0]
        course = Followed(self._transport.env, [*links])
        self._uses |= {link: Use(course, slot, *use) for slot, (link, use) in enumerate(links.items())}
        return course

    def _members(
        self, group: ProcessGroup, places: Sequence[int], flows: Sequence[Flow], numbers: range
    ) -> Iterator[Member]:
        """The simulated members of a ring, which have these numbers."""
        fold, ranks = self._transport.fold, group.ranks
        number = {ranks[place]: one for place, one in zip(places, numbers, strict=True)}
        for position, flow in zip(places, flows, strict=True):
            to, _ = fold.representative(ranks[(position + 1) % group.size])
            hops = [(self._uses[link].slot if _waits(link) else NEVER_WAITS, latency) for link, latency, _ in flow.hops]
            yield Member(ranks[position], flow, Route(number[to], hops))


def may_go_around(processes: ProcessGroup) -> bool:
    """Whether a group reduces around rings, or may, as a library's tuner decides for each bucket."""
    return processes.kind in RINGS or collectives.find(processes.kind).facts["along"] is not None


def _is_followed(processes: ProcessGroup, group: ReplicaGroup) -> bool:
    """Whether a group is one ring of many members, whose messages of a bucket are all as large."""
    return (
        may_go_around(processes)
        and len(processes.channels) <= 1
        and processes.size >= FEWEST
        and not processes.servers
        and not any(bucket.elements % processes.size for bucket in group.buckets)
    )


def _waits(link: Any) -> bool:
    """Whether messages may wait for each other on a link, in an order that is traced."""
    return isinstance(link, LineageLink) and link.bandwidth is not None
