"""Collectives of layers that a run of all ranks takes at once: their members end when they would end alone.

    begin     members begin one by one; from the first begin to the last end, the links between them are held
    alone     the same begins, simulated on a network of its own: when each member ends
    at once   members continue at these times, and send nothing

How long a collective takes depends on when its members begin relative to the first one, and on the order of those that
begin at the same time, not on the clock. So one whose members begin in the same pattern as those of an earlier one, as
of another layer or micro-batch, is not simulated again.

Ends are booked as soon as they are known, which is earlier than by messages. That changes no order if nothing else
happens in the same picosecond; ends of one collective keep the order that they have alone. Whatever is not certain ends
the run (`DisturbedError`), which is then simulated by messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Route
from hybrid_des.cluster.rate import Rate
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import Work
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import FIRST, Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.refusals import DisturbedError
from hybrid_des.planning.gradients import Reductions
from hybrid_des.planning.planner import Parts

MOST_MEMBERS = 64  # of a group: the links of all routes between them are held
MOST_KNOWN = 4096  # patterns of begins whose ends are kept


class Outcome(NamedTuple):
    """What a collective does alone.

    Attributes:
        ends: places of members, and picoseconds from the first begin to their ends, in that order.
        sent: what each flow is opened for (`Transport.flow`), with its `count` and `scales`.
    """

    ends: Sequence[tuple[int, int]]
    sent: Sequence[tuple[tuple[Channel, int, int], int, int]]


class Begun(NamedTuple):
    """A member that has begun.

    Attributes:
        place: in its group.
        after: picoseconds since the first one began.
        call: which collective.
        work: what it does there.
        over: the event of its end.
    """

    place: int
    after: int
    call: Any
    work: Work
    over: Arrival


class Held(Rate):
    """The rate of links that a collective holds."""

    def __missing__(self, size: int) -> int:
        raise DisturbedError("another message uses a link of a collective")


class Together:
    """The collectives of a group, of which at most one is under way."""

    def __init__(self, alone: CollectivesAlone, whole: ProcessGroup) -> None:
        self._alone, self._env, self._whole = alone, alone.transport.env, whole
        self._begun, self._first, self._held = list[Begun](), 0, Held()
        self._links = [(link, link.rate) for link in alone.links_between(whole)]

    def take(self, call: Any, work: Work, member: Group, buffer: Buffer) -> Routine:
        """Take a member's part in a collective.

        Raises:
            DisturbedError: it is not certain what happens.
        """
        over = self._alone.transport.arrival()
        if not self._begun:
            self._hold()
            self._first = self._env.now
        if len(self._begun) == self._whole.size:
            raise DisturbedError("a member begins before all have ended")
        self._begun.append(Begun(member.me, self._env.now - self._first, call, work, over))
        if len(self._begun) == self._whole.size:
            self._go_on()
        yield over

    def _hold(self) -> None:
        """Hold the links, which nothing may use."""
        for link, usual in self._links:
            if link.rate is not usual or link.free > self._env.now:
                raise DisturbedError("something else uses a link of a collective")
            link.rate = self._held

    def _go_on(self) -> None:
        """Let members go on at their ends."""
        env, over = self._env, {one.place: one.over for one in self._begun}
        ends, sent = self._alone.outcome_of(self._whole, self._begun)
        if self._first + ends[0][1] < env.now:
            raise DisturbedError("a member ends before all have begun")
        for after, count in Counter(after for _, after in ends).items():
            env.at(self._first + after, (_refuse_others, env, count), FIRST)
        env.at(self._first + ends[-1][1], (self._leave,), FIRST)
        for member, after in ends:
            over[member].happen(self._first + after, None)
        for key, count, scales in sent:
            flow, _ = self._alone.transport.flow(*key)
            flow.count += count
            flow.scales += scales

    def _leave(self, _: Any) -> None:
        """Leave the links to others."""
        self._begun = []
        for link, usual in self._links:
            link.rate = usual


class CollectivesAlone:
    """Takes collectives of layers at once.

    Args:
        transport: the network of the run.
        parts: those of the run.
        service: the model of how its links are shared.
    """

    def __init__(self, transport: Transport, parts: Parts, service: str) -> None:
        self.transport, self._fabric, self._service = transport, parts.fabric, service
        of_wiring: WeakKeyDictionary[Reductions, dict[Any, Outcome]]
        of_wiring = parts.fabric.once("collectives alone", WeakKeyDictionary)
        self._known = of_wiring.setdefault(parts.reductions, {})

    def of_gradients(
        self, reduction: ProcessGroup, group: ProcessGroup, places: Sequence[int], algorithm: Collective
    ) -> Collective:
        """Reductions are by messages (`communicators.CollectiveOverride`)."""
        return algorithm

    def of_layers(self, whole: ProcessGroup, work_of: Callable[[Any], Work]) -> Callable[[], Callable[[Any], Work]]:
        """The `begin` of a group's communicators: their collectives are taken at once, if the group allows it."""
        if whole.tuned is None or whole.servers or not 1 < whole.size <= MOST_MEMBERS or self._arrive_at_once(whole):
            return lambda: work_of
        group, taken = Together(self, whole), dict[Any, Work]()

        def work(call: Any) -> Work:
            if call not in taken:
                usual = work_of(call)
                taken[call] = usual._replace(algorithm=partial(group.take, call, usual))
            return taken[call]

        return lambda: work

    def _arrive_at_once(self, whole: ProcessGroup) -> bool:
        """Whether heads reach a second link when they are sent: then the order of all events of that time matters."""
        at_once = any(len(route.links) > 1 and not route.latencies[0] for route in self._routes(whole.ranks))
        return at_once and bool(self.links_between(whole))

    def _routes(self, ranks: Sequence[int]) -> list[Route]:
        return [self._fabric.route(one, other) for one in ranks for other in ranks if one != other]

    def links_between(self, whole: ProcessGroup) -> list[Any]:
        """The links of all routes between members on which messages may wait for each other."""
        names = dict.fromkeys(name for route in self._routes(whole.ranks) for name in route.links)
        return [link for link in map(self.transport.links.__getitem__, names) if link.spec.bandwidth is not None]

    def outcome_of(self, whole: ProcessGroup, begun: Sequence[Begun]) -> Outcome:
        """When the members of a group end, and what they send."""
        begins = tuple([(member.place, member.after, member.call) for member in begun])
        key = self._service, tuple(whole.ranks), begins
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._simulated(whole, begun)
        return self._known[key]

    def _simulated(self, whole: ProcessGroup, begun: Sequence[Begun]) -> Outcome:
        """The same, simulated alone.

        Raises:
            DisturbedError: one begins when a message reaches a link.
        """
        env, ends = Environment(), list[tuple[int, int]]()
        network = Transport(Links(env, self._fabric, self._service), Recorder())

        def take_part(member: Begun) -> Routine:
            view = Group(network, whole, member.place)
            view.begin(0)
            yield from member.work.algorithm(view, member.work.buffer)
            ends.append((member.place, env.now))

        for after, members in groupby(begun, attrgetter("after")):
            together = [*members]
            env.at(after, (_refuse_others, env, len(together)), FIRST)
            for member in together:
                env.at(after, (_start, env, partial(take_part, member)))
        env.run()
        return Outcome(ends, [(key, flow.count, flow.scales) for key, flow in network.of_collectives()])


def _start(booking: Any) -> None:
    """Let a member begin."""
    _, env, take_part = booking
    env.process(take_part())


def _refuse_others(booking: Any) -> None:
    """Refuse any event now beyond the expected number, since it may matter which is first."""
    _, env, count = booking
    if len(env.agenda.booked[env.now]) > count:
        raise DisturbedError("something else happens when members begin or end")
