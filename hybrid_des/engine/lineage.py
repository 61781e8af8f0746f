"""Which of two events of the same moment comes first on every copy of a part that is simulated only once.

A folded run simulates one rank for many, its images. Times alone do not tell whether they all do the same: two messages
may reach a link in the same picosecond, and the one that was booked earlier is served first. So every event keeps its
lineage, from which follows in which order the images of two events are processed.

SimPy processes the events of a moment in the order in which they were booked. Of two that were also booked in one
moment, the one whose parent, the event that booked it, was processed first is first; and so on, back to the first
events of two ranks, which are in rank order. So an event keeps

    chain   a hash of the times at which it, its parent, its parent's parent … were booked; None if they are not certain
    root    the rank whose first event that is, as the rank or link that compares names it (`folding.symmetry`)
    booked  the last two of these times; −1 if they are not certain

Two events with different chains are in the same order in every image of the simulation; two with equal chains are in
the order of their roots. Urgent events immediately follow the event that books them and inherit its lineage.

Roots are the only place where the order in which ranks start shows. A run that never has to compare two different ones
is therefore the same for any order of starting: every event happens at the same time, in the same rank, by the same
parent. Suppose it were not. Take the first moment that differs, and in it the first link, mailbox or process that two
events reach in the other order. If that order matters, it was asked for (`decided`). Their chains cannot have decided
it, since they are the same until then; nor can equal roots, since the program of that one rank says which of its
descendants is first. And if the answer was left open, what follows is used only as far as it is the same either way,
and at a link the fold is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from types import MethodType
from typing import Any, Protocol, Self

from simpy.events import NORMAL, Event, EventPriority

from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import Environment, Timeout

Lineage = tuple[int | None, int, int, int]


class Orders(Protocol):
    """Knowledge of the order of roots."""

    def ordered(self, this: int, other: int) -> bool:
        """Whether the order of two roots is that of all their images."""

    def joined(self, this: int, other: int) -> int:
        """The certain part of a root that may be either of two."""


class Roots(Orders, Protocol):
    """The same, and knowledge of roots of events with an unknown lineage."""

    def apart(self, rank: int, number: int) -> int:
        """The root of what descends from an event of a rank that has this number, and an unknown lineage."""

    def together(self, this: int, other: int) -> bool:
        """Whether two roots are of ranks, or of images of the same numbered event."""


class LineageArrival(Arrival):
    """A message that a receiver waits for.

    Attributes:
        when: since when the receiver waits.
        asked: the lineage of the event in which it asked.
        lineage: that of this event, once it is booked.
    """

    __slots__ = ("asked", "lineage", "when")

    env: LineageEnvironment
    when: int
    asked: Lineage
    lineage: Lineage

    @classmethod
    def of(cls, env: LineageEnvironment) -> Self:  # type: ignore[override]
        """One that waits in an environment, from now on."""
        arrival = cls()
        arrival.env = env
        arrival.callbacks = arrival
        arrival.append(env.follow)
        arrival.when = env.now
        arrival.asked = env.lineage
        return arrival

    def happen(self, at: int, value: Any) -> None:
        """Wake the receiver at that time, with the message."""
        env = self.env
        self.lineage, self._value = env.born, value
        env.agenda.book(at, self)


class LineageTimeout(Timeout):
    """A timeout with a lineage."""

    def __init__(self, env: LineageEnvironment, delay: int, value: Any = None) -> None:
        self.lineage = env.born
        Timeout.__init__(self, env, delay, value)
        self.callbacks = [env.follow]


class LineageEnvironment(Environment):
    """An environment that knows the lineage of every event.

    Attributes:
        lineage: that of the event being processed.
        born: that of events booked now.
        follow: the first callback of every event: adopts its lineage.
        start_matters: whether anything may depend on the order in which ranks start.
    """

    __slots__ = ("_apart", "_ordered", "_orders", "_roots", "born", "follow", "lineage", "start_matters")

    def __init__(self, roots: Roots) -> None:
        super().__init__()
        self._roots = roots
        self._orders: Orders = roots
        self._ordered: dict[tuple[int, int], bool] = {}
        self.timeout = MethodType(LineageTimeout, self)
        self.follow = self._follow
        self.lineage: Lineage = (0, 0, -1, -1)
        self.born: Lineage = (0, 0, -1, -1)
        self.start_matters = False
        self._apart = 0

    def know(self, orders: Orders) -> None:
        """Decide by another knowledge of the order of roots, from the start."""
        self._orders = orders

    def begin(self, root: int) -> None:
        """Make processes that start from now on descend from a root."""
        self.lineage = self.born = (0, root, -1, -1)

    def decided(self, this: Lineage, other: Lineage) -> bool:
        """Whether two events of one moment are in the same order in all images."""
        if this is other:
            return True
        known = this[0] is not None and other[0] is not None
        if not known or (self._apart and not self._roots.together(this[1], other[1])):
            self.start_matters |= self._apart > 0
            return False
        if this[0] != other[0]:
            return True
        roots = this[1], other[1]
        if roots not in self._ordered:
            self._ordered[roots] = ordered = self._orders.ordered(*roots)
            if ordered and roots[0] != roots[1]:
                self.start_matters = True
        return self._ordered[roots]

    def either(self, *lineages: Lineage) -> Lineage:
        """The lineage of a child of one of several events of this moment whose order is not decided."""
        chains, roots, *_ = zip(*lineages, strict=True)
        if None in chains or len({*chains}) > 1:
            return None, roots[0], -1, -1
        return hash((self.now, chains[0])), reduce(self._orders.joined, roots), self.now, -1

    def forget(self) -> None:
        """Discard what is known of the order of the event being processed."""
        self.lineage = self.born = (None, self.lineage[1], -1, -1)

    def unknown(self, rank: int) -> Lineage:
        """The lineage of an event of a rank that is not known, so that only what descends from it is in order."""
        self._apart += 1
        return hash((self._apart, -3)), self._roots.apart(rank, self._apart), -1, -1

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """Book a triggered event after a delay; an urgent one continues the event that books it."""
        event.lineage = self.born if priority is NORMAL else self.lineage  # type: ignore[attr-defined]
        event.when = self.now + delay  # type: ignore[attr-defined]
        event.callbacks.insert(0, self.follow)
        super().schedule(event, priority, delay)

    @contextmanager
    def births(self, lineage: Lineage) -> Iterator[None]:
        """Give events booked inside the `with` block this lineage."""
        before, self.born = self.born, lineage
        yield
        self.born = before

    def all_of(self, events: Iterable[Event]) -> Event:  # type: ignore[override]
        """An event that happens when all of several have happened."""
        waited = list(events)
        done = self.event()
        last: list[tuple[int, Lineage]] = []

        def check(event: Event) -> None:
            last.append((self.now, self.lineage))
            if event.ok and len(last) == len(waited):
                undecided = [one for at, one in last[:-1] if at == self.now and not self.decided(one, self.lineage)]
                with self.births(self.either(*undecided, self.lineage) if undecided else self.born):
                    done.succeed()

        for event in waited:
            assert event.callbacks is not None
            event.callbacks.append(check)
        return done

    def awaited(self, event: Any) -> Any:
        """An event that a process waits for, now.

        If it happens in this moment, the process continues by it or by the event in which it asked, the later of both.
        """
        if event.callbacks is None:
            if event.when == self.now:
                self._after_either(event.lineage)
            return event
        when, asked = self.now, self.lineage

        def happened(_: Event) -> None:
            if when == self.now:
                self._after_either(asked)

        event.callbacks.append(happened)
        return event

    def descend(self, moments: Sequence[int]) -> None:
        """Continue as a descendant of events that are left out, of one GPU, each the parent of the next."""
        chain, root, booked, before = self.born
        if chain is not None:
            now = self.now
            for moment in moments[:-1]:
                booked, before = now + moment, booked
                chain = hash((booked, chain))
            self.born = chain, root, booked, before

    def _after_either(self, other: Lineage) -> None:
        """Continue as a descendant of another event of this moment or of that being processed, the later of both."""
        if not self.decided(other, self.lineage):
            self.born = self.either(other, self.lineage)
            known = self.born[0] is not None
            self.lineage = self.lineage[0] if known else None, self.born[1], -1, -1

    def _follow(self, event: Any) -> None:
        """Adopt the lineage of the event being processed: continue as a descendant of it."""
        self.lineage = chain, root, booked, _ = event.lineage
        self.born = (None, root, -1, -1) if chain is None else (hash((self.now, chain)), root, self.now, booked)
