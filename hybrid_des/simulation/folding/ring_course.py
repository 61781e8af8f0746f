"""The course of messages around rings whose links each carry those of one sender: step by step, and in repeats.

    begin    a member sends its first message; each one that arrives lets it send the next, until it has sent all
    links    serve messages one at a time (`cluster.sharing.fifo`), those of others in between
    repeats  messages that are under way as they were some steps ago, only later, go on like that until others arrive

So others only delay a ring, and whatever tells how it goes on is here: a copy can be followed to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any

from hybrid_des.simulation.folding.refusals import FoldRefusal

# When something happens, when that was booked, and when the event was booked that did that; −1: unknown. Of two events
# of one time, the one that was booked earlier is first.
Moment = tuple[int, int, int]

Times = tuple[int, ...]  # of a message on each link and, last, the least from its start to its end

# When a message reaches a link, by an event booked when, and so on; its sender, hop, times, and how far its tail is
# behind.
Head = tuple[int, int, int, int, int, Times, int]

NEVER: Moment = (-1, -1, -1)
NEVER_WAITS = -1  # instead of the number of a link


@dataclass(frozen=True)
class Route:
    """How a member of a ring sends to the next one.

    Attributes:
        to: the number of the next member.
        hops: of each hop the number of the link, or `NEVER_WAITS`, and the latency after it, in picoseconds.
    """

    to: int
    hops: Sequence[tuple[int, int]]


@dataclass
class Course:
    """Messages of rings on some links, followed until some time, in picoseconds.

    Attributes:
        routes: of the members of all rings.
        heads: messages that are to reach a link, as a heap.
        took: of each member the times of the messages that it sends.
        left: of each member, how many messages it has still to send.
        waits, asked: of each member, whether it has sent a message and waits for one; when it last began to, by an
            event booked when.
        inbox: of each member, when messages arrive that it has not read; when that became known, likewise.
        ends: of each member, when its part ends; −1: not yet known.
        free, passed: of each link, until when it is busy, and how many messages have reached it.
        last, others: of each link, when a message last reached it, and when one of others did.
        changed: the links that messages have reached since this was emptied.
        coincides: whether it is not certain if a member waited when a message became known.
    """

    routes: list[Route]
    heads: list[Head] = field(default_factory=list)
    took: list[Times] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    waits: list[bool] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)
    inbox: list[tuple[Moment, ...]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    last: list[Moment] = field(default_factory=list)
    others: list[Moment] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    coincides: bool = False

    @classmethod
    def on(cls, links: int) -> Course:
        """A course on so many links, without members."""
        nothing = [0] * links
        return cls([], free=nothing, passed=[*nothing], last=[NEVER] * links, others=[NEVER] * links)

    def add(self, routes: Sequence[Route]) -> None:
        """Add the members of a ring."""
        count = len(routes)
        self.routes += routes
        self.took += [()] * count
        self.left += [0] * count
        self.waits += [False] * count
        self.asked += [(-1, -1)] * count
        self.inbox += [()] * count
        self.ends += [-1] * count

    def copy(self) -> Course:
        """The same, to be followed by itself."""
        lists = ("heads", "took", "left", "waits", "asked", "inbox", "ends", "free", "passed", "last", "others")
        copied: dict[str, Any] = {name: [*getattr(self, name)] for name in lists}
        return replace(self, changed=set(), **copied)

    def begin(self, sender: int, now: int, booked: int) -> None:
        """Let a member send its first message, by an event that was booked then, and all that it need not wait for."""
        took = self.took[sender]
        self.serve(now, booked, sender, 0, took, 0)
        while (further := (now, now, booked, sender, 0, took, 0)) in self.heads:
            self.heads.remove(further)
            heapify(self.heads)
            self.serve(now, booked, sender, 0, took, 0)

    def follow(self, until: Any) -> None:
        """Follow all messages that reach a link before this: a time, or a moment, as a tuple.

        Raises:
            FoldRefusal: one does when another does, and it is not known which is first.
        """
        heads, seen = self.heads, dict[Any, tuple[int, list[int], list[int]]]()
        first = -1  # the sender whose messages are compared with earlier ones
        while heads and heads[0] < until:
            at, booked, before, sender, hop, took, slowest = heads[0]
            if hop == 0 and first in (-1, sender):
                first, form = sender, self._form(at)
                if form in seen and self._repeat(at, until[0], *seen[form]):
                    seen.clear()
                    continue
                seen[form] = at, [*self.left], [*self.passed]
                if self.left[sender] == 1:  # its last one: another sender's are compared from now on
                    first = -1
            heappop(heads)
            slot = self.routes[sender].hops[hop][0]
            if slot != NEVER_WAITS:
                self.last[slot] = at, booked, before
                others = self.others[slot]
                if others[0] == at and not is_after(self.last[slot], others):
                    raise FoldRefusal("a message of a ring reaches a link at the same time as others")
            self.serve(at, booked, sender, hop, took, slowest)

    def serve(self, at: int, booked: int, sender: int, hop: int, took: Times, slowest: int) -> None:
        """Let a message reach a link, by an event that was booked then, and the next one or the receiver."""
        route, time = self.routes[sender], took[hop]
        slot, latency = route.hops[hop]
        end = at + time
        if slot != NEVER_WAITS:
            end = max(self.free[slot], at) + time
            self.free[slot] = end
            self.passed[slot] += 1
            self.changed.add(slot)
        if hop == 0:
            slowest = took[-1]
        end, slowest = max(end, at + slowest), max(slowest, time)
        if hop + 1 < len(route.hops):
            heappush(self.heads, (end - slowest + latency, at, booked, sender, hop + 1, took, slowest))
        else:
            self.inbox[route.to] += ((end + latency, at, booked),)
            self._read(route.to, at, booked)
        if hop == 0:
            self.left[sender] -= 1
            self.waits[sender], self.asked[sender] = True, (at, booked)
            self._read(sender, at, booked)

    def _read(self, sender: int, now: int, booked: int) -> None:
        """Let a member go on that waits for a message, if its time is known now, by an event that was booked then."""
        if self.waits[sender] and self.inbox[sender]:
            (arrives, *put), *further = self.inbox[sender]
            self.waits[sender], self.inbox[sender] = False, tuple(further)
            asked = self.asked[sender]
            self.coincides = self.coincides or not (is_after(put, asked) or is_after(asked, put))
            if self.left[sender]:
                heappush(self.heads, (max(now, arrives), now, booked, sender, 0, self.took[sender], 0))
            else:
                self.ends[sender] = max(now, arrives)

    def _form(self, now: int) -> Any:
        """All that tells how messages go on, but for how many are left, in picoseconds from now."""
        heads = sorted([(at - now, booked - now, before - now, *head) for at, booked, before, *head in self.heads])
        free = tuple([max(0, time - now) for time in self.free])
        inbox = tuple([tuple([max(0, time - now) for time, *_ in times]) for times in self.inbox])
        return tuple(heads), free, inbox, tuple(self.waits)

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
                at, booked = self.asked[sender]
                self.asked[sender] = at + later, booked + later
                self.inbox[sender] = tuple([
                    (time + later, at + later, booked + later) for time, at, booked in self.inbox[sender]
                ])  # fmt: skip
        for slot, count in enumerate(passed):
            if self.passed[slot] > count:
                self.free[slot] += later
                at, booked, before = self.last[slot]
                self.last[slot] = at + later, booked + later, before + later
        self.heads[:] = [
            (at + later, booked + later, before + later, sender, hop, took, slowest)
            for at, booked, before, sender, hop, took, slowest in self.heads
        ]
        return True


def is_after(moment: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a moment is certain to be after another one."""
    for this, that in zip(moment, other, strict=True):
        if this != that or this == -1:
            return this > that != -1 or moment[0] > other[0]
    return False
