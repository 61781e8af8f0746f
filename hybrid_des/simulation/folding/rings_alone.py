"""Rings of gradients that a folded run takes at once: what one like it took alone, by messages, simply passes.

    begin     all simulated members, at the same time; links may still serve earlier messages
    alone     the same on a network of its own: when each member ends; when links are last reached, and free
    at once   rings that begin so send nothing: their members go on at these times, their links are busy so long

What a ring does depends on how its flows share links, on the bandwidths and latencies of these and on until when they
serve earlier messages, if no two of its messages reach a link in the same moment, and no other message reaches one
meanwhile. Whatever else happens ends the run; then all is simulated by messages. So does whatever depends on the
events by which members go on: it is known when these happen, not in which order (`engine.lineage`).

Rings of all stages that are wired alike do the same, so one of them is simulated, as often as links are busy for
another time when it begins, and not again where only durations of ops are changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.folding.folded_transport import (
    FoldedTransport,
    LineageFlow,
    LineageLink,
    folded_transport,
)
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.symmetry import Fold, FoldedAxis
from hybrid_des.simulation.folding.ties import TieError
from hybrid_des.simulation.folding.watched_links import WatchedLink
from hybrid_des.simulation.planning.gradients import Reductions
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.simulation.ring_links import RINGS

FEWEST = 512  # members; the messages of fewer take little time in a folded run

_KNOWN: WeakKeyDictionary[Reductions, dict[Any, Outcome]] = WeakKeyDictionary()

# Plans with rings that were disturbed, by identity (comparing plans takes long), number of steps and fold.
_DISTURBED: WeakValueDictionary[tuple[int, int, tuple[FoldedAxis, ...]], Plan] = WeakValueDictionary()


class Outcome(NamedTuple):
    """What a ring does alone, in picoseconds from its begin.

    Attributes:
        uses: when each link is last reached by its messages, and when it has served them.
        ends: when the part of each simulated member ends.
    """

    uses: Sequence[tuple[int, int]]
    ends: Sequence[int]


class Member(NamedTuple):
    """A member that has begun: its flow to the next one, and the event of its end."""

    flow: Flow
    over: Arrival


def takes_rings(scenario: Scenario, parts: Parts, fold: Fold) -> bool:
    """Whether a folded run without rows of messages takes rings at once: if none was disturbed in an earlier one."""
    if scenario.record == "all" or scenario.cluster.service not in ("fifo", "uncontended"):
        return False
    undisturbed = (id(parts.plan), scenario.steps, fold.folded_axes) not in _DISTURBED
    return undisturbed and any(_is_long(processes) for processes, _ in parts.reductions.processes)


@contextmanager
def disturbances_noted(scenario: Scenario, plan: Plan, fold: Fold) -> Iterator[None]:
    """Remember that a run was refused that takes rings at once; what follows the block simulates it by messages."""
    try:
        yield
    except FoldRefusal:
        _DISTURBED[id(plan), scenario.steps, fold.folded_axes] = plan


def _is_long(processes: ProcessGroup) -> bool:
    """Whether a group is one ring of many members."""
    return processes.kind in RINGS and processes.size >= FEWEST and len(processes.channels) <= 1


class RingsAlone:
    """Takes long rings of a folded run at once.

    Args:
        transport: its network.
        reductions: whose rings are taken.
    """

    def __init__(self, transport: FoldedTransport, reductions: Reductions) -> None:
        self._transport, self._known = transport, _KNOWN.setdefault(reductions, {})

    def of(
        self, reduction: ProcessGroup, group: ProcessGroup, places: Sequence[int], algorithm: Collective
    ) -> Collective:
        """The collective of a group, taken at once if it is a long ring (`communicators.AtOnce`)."""
        if group is not reduction or not _is_long(group) or not _within(group, places, self._transport.fold):
            return algorithm
        return RingAtOnce(self._transport, group, places, algorithm, self._known)


def _within(processes: ProcessGroup, places: Sequence[int], fold: Fold) -> bool:
    """Whether the simulated members of a ring stand for those to whom they send, and not members of another one."""
    ranks = processes.ranks
    simulated = {ranks[place] for place in places}
    return all(fold.representative(ranks[(place + 1) % processes.size])[0] in simulated for place in places)


class RingAtOnce:
    """A ring that is taken at once, one bucket after the other.

    Args:
        transport, processes, places, algorithm: as above.
        known: outcomes of rings with the same algorithm.
    """

    def __init__(
        self,
        transport: FoldedTransport,
        processes: ProcessGroup,
        places: Sequence[int],
        algorithm: Collective,
        known: dict[Any, Outcome],
    ) -> None:
        self._transport, self._processes, self._places = transport, processes, places
        self._algorithm, self._known = algorithm, known
        self._began, self._begun = 0, dict[int, Member]()

    def __call__(self, group: Group, buffer: Buffer) -> Routine:
        """Take a member's part.

        Raises:
            FoldRefusal: it cannot be told what happens.
        """
        now = self._transport.env.now
        if self._begun and self._began != now:
            raise FoldRefusal("members of a ring begin at different times")
        flow, over, self._began = _to_next(group), self._transport.arrival(), now
        if isinstance(flow, LineageFlow):
            flow.take_first()
        self._begun[group.me] = Member(flow, over)
        if len(self._begun) == len(self._places):
            self._begin(now, buffer)
        yield over

    def _begin(self, now: int, buffer: Buffer) -> None:
        """Let the time of a ring pass, all of whose members have begun."""
        members, self._begun = [self._begun[place] for place in self._places], {}
        flows = [member.flow for member in members]
        links, first = _links_of(flows), {flow.hops[0].link for flow in flows}
        for link in links:
            if link not in first and link.shared and link.when >= now:
                raise FoldRefusal(f"other messages reach link {link.spec.name} when a ring begins")
        busy = tuple([max(0, link.free - now) for link in links])
        key = self._processes.size, buffer.elements, self._form(flows), busy
        if key not in self._known:
            self._known[key] = self._alone(buffer, busy)
        uses, ends = self._known[key]
        for link, (last, free) in zip(links, uses, strict=True):
            link.free = now + free
            link.take(now + last)
        env: Any = self._transport.env
        with env.births((None, 0, -1, -1)) if isinstance(env, LineageEnvironment) else nullcontext():
            for member, end in zip(members, ends, strict=True):
                member.over.happen(now + end, None)

    def _form(self, flows: Sequence[Flow]) -> tuple[Any, ...]:
        """The places of senders, and the hops of their flows, with numbers for links.

        Images of a ring are turns of it, so these places say who receives.
        """
        number = dict[Any, int]()
        hops = [
            tuple(
                (number.setdefault(link, len(number)), link.spec.bandwidth, latency) for link, latency, _ in flow.hops
            )
            for flow in flows
        ]
        return *self._places, *hops

    def _alone(self, buffer: Buffer, busy: Sequence[int]) -> Outcome:
        """What a ring does alone if links are busy for so long.

        Raises:
            FoldRefusal: messages reach a link in the same moment.
        """
        processes, transport, ends = self._processes, self._transport, dict[int, int]()
        sharing = "fifo" if busy else "uncontended"
        fabric = transport.links.fabric
        network = folded_transport(fabric, sharing, Recorder(), transport.fold, [processes], watched=True)
        groups = [Group(network, processes, place) for place in self._places]
        links = _links_of(map(_to_next, groups))
        for link, time in zip(links, busy, strict=True):
            link.free = time

        def part(group: Group) -> Routine:
            yield from self._algorithm(group, buffer)
            ends[group.me] = network.env.now

        for group in groups:
            network.env.process(part(group))
        try:
            network.env.run()
        except TieError:
            raise FoldRefusal("messages of a ring reach a link in the same moment") from None
        return Outcome([(link.when, link.free) for link in links], [ends[place] for place in self._places])


def _to_next(group: Group) -> Flow:
    """The flow of a member to the next one."""
    return group.to((group.me + 1) % group.size)


def _links_of(flows: Iterable[Flow]) -> list[Any]:
    """The links of flows at which messages may wait, each once; none if no message waits for another."""
    links: dict[Any, None] = dict.fromkeys(hop.link for flow in flows for hop in flow.hops)
    return [link for link in links if isinstance(link, LineageLink | WatchedLink) and link.bandwidth is not None]
