"""The network of a run that takes rings of gradients at once (`rings_at_once`): links that a ring holds, or others.

    RingTransport    of all ranks
    FoldedRings      of one replica, which stands for all others: they do the same until their rings end

Routes of rings need not be alike: in `FoldedRings` they are followed on links of their own, those of all ranks. What
else uses these links is simulated on those of one replica (`folding.folded_routes` shows that its images do the same),
from which they take over until when they are busy, and which are left to others only if all images are free at once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import LinkSpec
from hybrid_des.cluster.link import Hop
from hybrid_des.cluster.mailbox import Handoff
from hybrid_des.cluster.rate import Rate
from hybrid_des.cluster.sharing.registration import Schedules, Sharing
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.engine.bookings import Arrival, Here
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.folding.folded_transport import WatchedTransport
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.symmetry import Fold
from hybrid_des.simulation.folding.watched_links import WatchedFifo, WatchedLink
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.units import grouped_by

FEWEST = 32  # members; messages of fewer are hardly more than what is done in their place
RINGS = "ring", "ring-reduce-scatter"  # every member sends to the next one only; the latter with `ring-all-gather`


class DisturbedError(Exception):
    """Rings cannot be taken at once; the message says why."""


class PassedError(DisturbedError):
    """A message of others reaches a link of a ring before any ring has ended, so it does in any way to take them."""


def is_taken(processes: ProcessGroup) -> bool:
    """Whether the collectives of a group are taken at once."""
    usual = processes.kind in RINGS and processes.tuned is None and len(processes.channels) <= 1
    return usual and processes.size >= FEWEST and not processes.servers


class Taken(Rate):
    """The rate of links that rings hold, in an environment."""

    def __init__(self, env: RingEnvironment) -> None:
        super().__init__()
        self._env = env

    def __missing__(self, size: int) -> int:
        raise (DisturbedError if self._env.differs else PassedError)("a message of others reaches a link of a ring")


class RingEnvironment(Environment):
    """The environment of a run that takes rings at once.

    Attributes:
        differs: whether the order of events of the same time may differ from that with messages.
        released: the number of the event by which a stream last went on after a wait, and of that which ended it.
        taken: the rate of links that rings hold.
    """

    __slots__ = ("differs", "released", "taken")

    def __init__(self, *, differs: bool) -> None:
        super().__init__()
        self.differs, self.released, self.taken = differs, (0, 0), Taken(self)


class RingLinks(Links):
    """The links of a run that takes rings at once."""

    def _model(self, name: str, schedules: Schedules) -> Sharing:
        return RingFifo(self.env) if name == "fifo" else super()._model(name, schedules)


class Noted(Handoff):
    """A queue that tells by which event the process that reads it goes on, and by which one what it reads was put."""

    __slots__ = ("_numbers",)

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._numbers = deque[int]()

    def hand(self, work: Any) -> None:
        """Put an item in, now."""
        self._numbers.append(self._env.events)
        super().hand(work)

    def receive(self) -> Arrival | Here:
        """The next item, as an event to yield."""
        item = super().receive()
        if isinstance(item, Here):
            self._note(item)
        else:
            item.callbacks.append(self._note)
        return item

    def _note(self, item: Any) -> None:
        env: Any = self._env
        env.released = env.events, self._numbers.popleft()


class RingTransport(Transport):
    """The network of a run of all ranks."""

    kinds: ClassVar = {Handoff: Noted}

    @property
    def whole(self) -> Transport:
        """The network of all ranks."""
        return self

    def begun(self, members: Sequence[int]) -> int:
        """How many members of a group begin."""
        return len(members)

    def stand_in(self, link: Any) -> Any:
        """The link on which messages of others are simulated that would use a link; None if there are none."""
        return link

    def leave(self, ring: object, links: Collection[Any]) -> None:
        """Leave links to others on which their messages are simulated, after a ring."""


class FoldedRings(WatchedTransport):
    """The network of a run in which one replica stands for all, but their rings are followed link by link.

    Attributes:
        whole: the network of all ranks, for their rings only.
    """

    kinds: ClassVar = {**WatchedTransport.kinds, Handoff: Noted}

    def __init__(self, links: RingLinks, rings: RingLinks, trace: Recorder, fold: Fold, receipts: bool) -> None:
        super().__init__(links, trace, fold, receipts)
        self.whole = Transport(rings, Recorder())

    def begun(self, members: Sequence[int]) -> int:
        """How many members of a group begin."""
        return self._simulated(members)

    def stand_in(self, link: Any) -> Any:
        """The link on which messages of others are simulated that would use a link; None if there are none."""
        name = self._courses.stand_in(link.spec.name)
        return None if name is None else self.links[name]

    def leave(self, ring: object, links: Collection[Any]) -> None:
        """Leave links to others on which their messages are simulated, after a ring, if all images are free at once."""
        for other, images in grouped_by(links, self.stand_in).items():
            if other is not None and len(images) == self.fold.order and len({link.free for link in images}) == 1:
                other.free = images[0].free
                other.end(ring)

    def sent(self) -> dict[str, int]:
        """Totals sent by all ranks."""
        rings = self.whole.sent()
        return {key: total + rings[key] for key, total in super().sent().items()}

    def carried(self) -> dict[str, int]:
        """Bytes that all ranks sent over each link."""
        return dict(Counter(super().carried()) + Counter(self.whole.carried()))

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        """The hops of a flow, which are the replica's own, so that no other one decides who is first there.

        Raises:
            FoldRefusal: they are not.
            DisturbedError: images of it use a link of a ring that has begun.
        """
        before = {*self._courses.known}
        hops = super()._hops(channel)
        if any(leg.element != self.fold.identity for leg in self._courses.of(channel.sender, channel.receiver)):
            raise FoldRefusal("replicas use links of each other")
        rings: Any = self.whole.links
        new = [rings[name] for name in self._courses.known.keys() - before if name in rings]
        if any(link.rings or link.free for link in new if may_queue(link)):
            raise DisturbedError("others begin to use a link of a ring")
        return hops


class RingLink(WatchedLink):
    """A link that rings can hold.

    Attributes:
        own: its rate.
        rings: the rings under way that hold it.
    """

    __slots__ = ("own", "rings")

    env: RingEnvironment

    def __init__(self, env: Environment, spec: LinkSpec, rate: Rate) -> None:
        super().__init__(env, spec, rate)
        self.own, self.rings = rate, set[object]()

    def tie(self) -> None:
        """Notice that messages reach it in the same picosecond by different events.

        Raises:
            DisturbedError: the order of these events may differ from that with messages.
        """
        if self.env.differs:
            raise DisturbedError("messages reach a link at the same time")

    def begin(self, ring: object, cause: int | None = None) -> None:
        """Be held by a ring, whose first message reaches it later, or now, as follows from the event of this number."""
        if self.when == self.env.now and self.shared and self.event != cause:
            self.tie()
        self.rings.add(ring)
        self.rate = self.env.taken

    def end(self, ring: object) -> None:
        """Serve others again, unless another ring holds it."""
        self.rings.discard(ring)
        if not self.rings:
            self.rate = self.own


class RingFifo(WatchedFifo):
    """Links that serve one message at a time, and that rings can hold."""

    kind: ClassVar = RingLink


def may_queue(link: Any) -> bool:
    """Whether messages may wait for each other on a link, so that a ring holds it."""
    return isinstance(link, RingLink) and link.spec.bandwidth is not None


def ring_transport(
    scenario: Scenario, parts: Parts, recorder: Recorder, fold: Fold | None
) -> RingTransport | FoldedRings:
    """The network of a run that takes rings at once, of all ranks or with one replica that stands for all."""
    env = RingEnvironment(differs=scenario.steps > 1)
    links, rings = (RingLinks(env, parts.fabric, scenario.cluster.service) for _ in range(2))
    receipts = parts.programs.blocking
    if fold is None:
        return RingTransport(links, recorder, receipts=receipts)
    return FoldedRings(links, rings, recorder, fold, receipts)
