"""Rings of gradients that a folded run follows apart from its other events, where each link has one sender of rings.

    begin    a member sends its first message; from then on its ring's messages are no events of the run
    others   a message of others that reaches a link of a ring is served after those of rings that came before it, which
             are followed until then
    repeats  messages that are under way as they were some steps ago, only later, go on like that until others come
    end      a member goes on when its last message has come, as far as is known; if others came meanwhile, later

So members may begin at different times, and other messages may pass. They only delay a ring: each of its links carries
the messages of one sender, in order. Messages of rings that reach a link in the same moment as others end the run
(`FoldRefusal`), but for a member's first one, which is sent by a known event. Of the event by which a member goes on
only what follows from it is known to be in order (`engine.lineage`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.cluster.sharing.uncontended import FreeLink
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.simulation.communicators import AtOnce
from hybrid_des.simulation.folding.folded_transport import FoldedTransport, LineageFlow, LineageLink
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.rings_alone import FEWEST
from hybrid_des.simulation.planning.gradients import Reductions
from hybrid_des.simulation.ring_links import RINGS

NEVER = -1, -1, -1  # a moment
NEVER_WAITS = -1  # instead of the number of a link

# When something happens, when that was booked, and when the event was booked that did that; −1: unknown. Of two events of
# one time, the one that was booked earlier is first.
Moment = tuple[int, int, int]
Head = tuple[int, int, int, int, int, int]  # when a message reaches a link; its sender, hop, and how far its tail is behind


@dataclass(frozen=True)
class Sender:
    """A member of a ring that sends to the next one.

    Attributes:
        rank: its rank.
        to: the number of the sender that receives its messages.
        flow: over which it sends.
        hops: of each hop the number of the link, or `NEVER_WAITS`, and the latency after it.
    """

    rank: int
    to: int
    flow: Flow
    hops: Sequence[tuple[int, int]]


@dataclass
class Course:
    """Messages of rings on some links, followed until some time.

    Attributes:
        senders: of all rings.
        heads: messages that are to reach a link, as a heap.
        took: of each sender the time of its messages on each link.
        left: of each sender, how many messages it has still to send.
        waits: of each sender, whether it has sent a message and waits for one.
        inbox: of each sender, when messages arrived that it has not read.
        ends: of each sender, when its part ends; −1: not yet known.
        free, passed: of each link, until when it is busy, and how many messages have reached it.
        last: of each link, when one last did.
        others: the same of messages of others.
    """

    senders: list[Sender]
    heads: list[Head] = field(default_factory=list)
    took: list[Sequence[int]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    waits: list[bool] = field(default_factory=list)
    inbox: list[tuple[int, ...]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    last: list[Moment] = field(default_factory=list)
    others: list[Moment] = field(default_factory=list)

    def copy(self) -> Course:
        """The same, to be followed by itself."""
        lists = ("heads", "took", "left", "waits", "inbox", "ends", "free", "passed", "last", "others")
        return replace(self, **{name: [*getattr(self, name)] for name in lists})

    def follow(self, until: tuple[float, ...]) -> None:
        """Follow all messages that reach a link before this.

        Raises:
            FoldRefusal: one does when another does, and it is not known which is first.
        """
        heads, seen = self.heads, dict[Any, tuple[int, list[int], list[int]]]()
        first = -1  # the sender whose messages are compared with earlier ones
        while heads and heads[0] < until:
            at, booked, before, sender, hop, slowest = heads[0]
            if hop == 0 and first in (-1, sender):
                first, form = sender, self._form(at)
                if form in seen and self._repeat(at, until[0], *seen[form]):
                    seen.clear()
                    continue
                seen[form] = at, [*self.left], [*self.passed]
                if self.left[sender] == 1:  # its last one: another sender's are compared from now on
                    first = -1
            heappop(heads)
            slot = self.senders[sender].hops[hop][0]
            if slot != NEVER_WAITS:
                self.last[slot] = at, booked, before
                if not _is_after(self.last[slot], self.others[slot]):
                    raise FoldRefusal("a message of a ring reaches a link at the same time as others")
            self.serve(at, booked, sender, hop, slowest)

    def serve(self, at: int, booked: int, sender: int, hop: int, slowest: int) -> None:
        """Let a message reach a link, by an event that was booked then, and the next one or the receiver."""
        one, time = self.senders[sender], self.took[sender][hop]
        slot, latency = one.hops[hop]
        end = at + time
        if slot != NEVER_WAITS:
            end = max(self.free[slot], at) + time
            self.free[slot] = end
            self.passed[slot] += 1
        end, slowest = max(end, at + slowest), max(slowest, time)
        if hop + 1 < len(one.hops):
            heappush(self.heads, (end - slowest + latency, at, booked, sender, hop + 1, slowest))
        else:
            self.inbox[one.to] += (end + latency,)
            self._read(one.to, at, booked)
        if hop == 0:
            self.left[sender] -= 1
            self.waits[sender] = True
            self._read(sender, at, booked)

    def _read(self, sender: int, now: int, booked: int) -> None:
        """Let a member go on that waits for a message, if its time is known now, by an event that was booked then."""
        if self.waits[sender] and self.inbox[sender]:
            arrives, *further = self.inbox[sender]
            self.waits[sender], self.inbox[sender] = False, tuple(further)
            if self.left[sender]:
                heappush(self.heads, (max(now, arrives), now, booked, sender, 0, 0))
            else:
                self.ends[sender] = max(now, arrives)

    def _form(self, now: int) -> Any:
        """All that tells how messages go on, but for how many are left, in picoseconds from now."""
        heads = tuple(sorted([(at - now, booked - now, before - now, *head) for at, booked, before, *head in self.heads]))
        free = tuple([max(0, time - now) for time in self.free])
        inbox = tuple([tuple([max(0, time - now) for time in times]) for times in self.inbox])
        return heads, free, inbox, tuple(self.waits)

    def _repeat(self, now: int, until: float, before: int, left: Sequence[int], passed: Sequence[int]) -> bool:
        """Repeat what happened since a moment at which messages were under way as they are now; whether it does.

        It does until a member would send its last message, or until that time.
        """
        sent = [then - here for then, here in zip(left, self.left, strict=True)]
        times: float = min([(here - 1) // count for here, count in zip(self.left, sent, strict=True) if count])
        if now > before:
            times = min(times, (until - 1 - now) // (now - before))
        if times < 1:
            return False
        later = int(times) * (now - before)
        for sender, count in enumerate(sent):
            self.left[sender] -= int(times) * count
            if count:
                self.inbox[sender] = tuple([time + later for time in self.inbox[sender]])
        for slot, count in enumerate(passed):
            if self.passed[slot] > count:
                self.free[slot] += later
                at, booked, before = self.last[slot]
                self.last[slot] = at + later, booked + later, before + later
        self.heads[:] = [
            (at + later, booked + later, before + later, *head) for at, booked, before, *head in self.heads
        ]
        return True


class Followed:
    """A course of rings in a run.

    Args:
        env: its environment.
        links: those at which messages may wait; no ring that is not on this course uses them.

    Attributes:
        course: as far as it was followed.
    """

    def __init__(self, env: Any, links: Sequence[LineageLink]) -> None:
        self._env, self._links = env, links
        self.course = Course([])
        self.course.free, self.course.passed = ([0] * len(links) for _ in range(2))
        self.course.last, self.course.others = [NEVER] * len(links), [NEVER] * len(links)
        self._begun, self._over = Counter[int](), dict[int, Arrival]()
        self._expected, self._disturbed = list[int](), False
        for link in links:
            link.hold(self)

    def slot(self, link: LineageLink) -> int:
        """The number of a link."""
        return self._links.index(link)

    def add(self, senders: Sequence[Sender]) -> range:
        """Add the senders of a ring; returns their numbers."""
        course, before = self.course, len(self.course.senders)
        course.senders += senders
        numbers = range(before, len(course.senders))
        for _ in numbers:
            course.took.append(())
            course.left.append(0)
            course.waits.append(False)
            course.inbox.append(())
            course.ends.append(-1)
        return numbers

    def reach(self, link: LineageLink, booked: tuple[int, int]) -> None:
        """Follow the course until a message that is not of it reaches a link now (`folded_transport.Rings`)."""
        moment, slot = (self._env.now, *booked), self._links.index(link)
        self._catch_up(moment)
        if not _is_after(moment, self.course.last[slot]):
            raise FoldRefusal("a message reaches a link at the same time as one of a ring")
        self.course.others[slot] = moment
        self._disturbed = True

    def begin(self, number: int, ring: range, size: int, steps: int, over: Arrival) -> None:
        """Let a member of a ring begin now.

        Args:
            number: of the sender.
            ring: the numbers of all senders of its ring.
            size: of its messages, in bytes.
            steps: how many it sends.
            over: the event of its end.

        Raises:
            FoldRefusal: it is not certain which message is first at a link.
        """
        course, flow, now = self.course, self.course.senders[number].flow, self._env.now
        booked = self._env.lineage[2] if isinstance(flow, LineageFlow) else -1
        self._catch_up((now,))
        if isinstance(flow, LineageFlow):
            flow.reach_first()
        course.took[number] = tuple([hop.link.rate[size] for hop in flow.hops])
        course.left[number], course.ends[number], self._over[number] = steps, -1, over
        self._load()
        course.serve(now, booked, number, 0, 0)
        while (further := (now, now, booked, number, 0, 0)) in course.heads:  # for which it need not wait any more
            course.heads.remove(further)
            heapify(course.heads)
            course.serve(now, booked, number, 0, 0)
        self._store()
        self._begun[number] += 1
        if all(self._begun[one] == self._begun[number] for one in ring):
            self._expect()
            for one in ring:
                self._env.at(self._expected[one], (self._end, one))

    def _catch_up(self, until: tuple[int, ...]) -> None:
        """Follow the course up to this."""
        heads = self.course.heads
        if heads and heads[0] < until:
            self._load()
            self.course.follow(until)
            self._store()

    def _load(self) -> None:
        """Learn what others have done to the links."""
        self.course.free[:] = [link.free for link in self._links]

    def _store(self) -> None:
        """Leave the links to others as they are now."""
        for link, free in zip(self._links, self.course.free, strict=True):
            link.free = free

    def _expect(self) -> None:
        """Find out when members end, if no others come."""
        self._load()
        alone = self.course.copy()
        alone.follow((inf,))
        self._expected, self._disturbed = alone.ends, False

    def _end(self, booking: Any) -> None:
        """Let a member go on if its part ends now; if not, look again when it may."""
        env, (_, number) = self._env, booking
        self._catch_up((env.now + 1,))
        end = self.course.ends[number]
        if end == -1:
            if self._disturbed:
                self._expect()
            end = self._expected[number]
        if end > env.now:
            env.at(end, (self._end, number))
            return
        over, rank = self._over.pop(number), self.course.senders[number].rank
        with env.births(env.unknown(rank)) if isinstance(env, LineageEnvironment) else nullcontext():
            over.happen(env.now, None)


class RingsApart:
    """Follows long rings of a folded run apart from its events.

    Args:
        transport: its network.
        reductions: whose rings are followed, if all messages of one are as large.
        others: takes the other ones.
    """

    def __init__(self, transport: FoldedTransport, reductions: Reductions, others: AtOnce) -> None:
        self._transport, self._others = transport, others
        self._even = {
            id(processes)
            for processes, group in reductions.processes
            if not any(bucket.elements % processes.size for bucket in group.buckets)
        }
        self._uses: dict[Any, tuple[Followed, int, int]] = {}  # link → its course, and the sender and hop of its messages

    def of(
        self, reduction: ProcessGroup, group: ProcessGroup, places: Sequence[int], algorithm: Collective
    ) -> Collective:
        """The collective of a group, followed apart if it is a long ring (`communicators.AtOnce`)."""
        flows = self._flows(group, places) if _is_long(reduction) and id(reduction) in self._even else []
        course = self._course(group, places, flows) if flows else None
        if course is None:
            return self._others.of(reduction, group, places, algorithm)
        numbers = course.add([*self._senders(group, places, flows, len(course.course.senders))])
        steps = (2 if group.kind == "ring" else 1) * (group.size - 1)
        return partial(self._take, course, dict(zip(places, numbers, strict=True)), numbers, steps)

    def _take(
        self, course: Followed, number: Mapping[int, int], ring: range, steps: int, member: Group, buffer: Buffer
    ) -> Routine:
        """Take a member's part in a collective.

        Raises:
            FoldRefusal: it cannot be told what happens.
        """
        over = self._transport.arrival()
        course.begin(number[member.me], ring, buffer.split(member.size).encode(0).size, steps, over)
        yield over

    def _flows(self, group: ProcessGroup, places: Sequence[int]) -> list[Flow]:
        """The flows of members to the next ones; none if some cannot be followed, or end at members of another ring."""
        fold, ranks = self._transport.fold, group.ranks
        simulated = {ranks[place] for place in places}
        following = [(place + 1) % group.size for place in places]
        if any(fold.representative(ranks[place])[0] not in simulated for place in following):
            return []
        flows = [Group(self._transport, group, place).to(to) for place, to in zip(places, following, strict=True)]
        links = [hop.link for flow in flows for hop in flow.hops]
        usual = all(_waits(link) or link.bandwidth is None or isinstance(link, FreeLink) for link in links)
        return flows if usual and all(flow.pace is None for flow in flows) else []

    def _course(self, group: ProcessGroup, places: Sequence[int], flows: Sequence[Flow]) -> Followed | None:
        """The course that has the links of flows; None if a link has messages of several senders, or of several hops."""
        uses = [
            (hop.link, (group.ranks[place], number))
            for place, flow in zip(places, flows, strict=True)
            for number, hop in enumerate(flow.hops)
            if _waits(hop.link)
        ]
        links = dict(uses)
        known = [self._uses.get(link) for link in links]
        if len(links) < len(uses) or any(one and one[1:] != links[link] for link, one in zip(links, known, strict=True)):
            return None
        courses = {id(one[0]): one[0] for one in known if one is not None}
        if courses:
            return next(iter(courses.values())) if len(courses) == 1 and None not in known else None
        course = Followed(self._transport.env, [*links])
        self._uses |= {link: (course, *use) for link, use in links.items()}
        return course

    def _senders(
        self, group: ProcessGroup, places: Sequence[int], flows: Sequence[Flow], first: int
    ) -> Iterator[Sender]:
        """The members of a ring as senders, of which the first has this number."""
        fold, ranks = self._transport.fold, group.ranks
        number = {ranks[place]: first + index for index, place in enumerate(places)}
        for place, flow in zip(places, flows, strict=True):
            to = fold.representative(ranks[(place + 1) % group.size])[0]
            slots = [self._uses[link][0].slot(link) if _waits(link) else NEVER_WAITS for link, *_ in flow.hops]
            hops = [(slot, hop.latency) for slot, hop in zip(slots, flow.hops, strict=True)]
            yield Sender(ranks[place], number[to], flow, hops)


def _is_after(moment: Moment, other: Moment) -> bool:
    """Whether something is certain to happen after something else."""
    for this, that in zip(moment, other, strict=True):
        if this != that or this == -1:
            return this > that != -1 or moment[0] > other[0]
    return False


def _is_long(processes: ProcessGroup) -> bool:
    """Whether a group is one ring of many members."""
    usual = processes.kind in RINGS and processes.tuned is None and len(processes.channels) <= 1
    return usual and processes.size >= FEWEST and not processes.servers


def _waits(link: Any) -> bool:
    """Whether messages may wait for each other on a link, in an order that is traced."""
    return isinstance(link, LineageLink) and link.bandwidth is not None
