"""The network of a folded run: messages to a rank that is not simulated go to its representative, on its links."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric, LinkSpec, Route
from hybrid_des.cluster.link import Hop, Link
from hybrid_des.cluster.mailbox import Handoff, Mailbox, Message, Rendezvous, ReplayedGroup, TaggedMailbox
from hybrid_des.cluster.purposes import PARAMETERS, REDUCTION
from hybrid_des.cluster.rate import Rate
from hybrid_des.cluster.sharing.fifo import Fifo, FifoFlow, Leg
from hybrid_des.cluster.sharing.registration import Flow, Put, Schedules, Sharing
from hybrid_des.cluster.transport import Kind, Links, Transport
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.lineage import Lineage, LineageArrival, LineageEnvironment
from hybrid_des.engine.recorder import LAST_TIME, Recorder
from hybrid_des.folding.folded_routes import Endpoints, FoldedRoutes
from hybrid_des.folding.images import ChannelImages
from hybrid_des.folding.lineage_mailboxes import (
    LineageHandoff,
    LineageMailbox,
    LineageTaggedMailbox,
    SwitchMailbox,
    UnorderedMailbox,
)
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.separate_meetings import LineageMeeting, LineageRendezvous, SeparateMeeting, SeparateRendezvous
from hybrid_des.folding.symmetry import SURE, Element, Fold, root_of
from hybrid_des.folding.watched_links import WatchedFlow, WatchedLinks


class FrameChange(dict[int, int]):
    """What roots of lineages are called by another image: an image of an event descends from images of its ranks.

    Attributes:
        element: maps ranks to those of the other image.
    """

    __slots__ = ("_fold", "element")

    def __init__(self, fold: Fold, element: Element) -> None:
        super().__init__()
        self._fold, self.element = fold, element

    def __missing__(self, root: int) -> int:
        moved = self[root] = self._fold.move(root >> 4, self.element) << 4 | (root & SURE)
        return moved

    def of(self, lineage: Lineage) -> Lineage:
        """A lineage as the other image names it."""
        chain, root, booked, before = lineage
        return chain, self[root], booked, before


# When a message last reached a link, the number and the lineage of the event by which it did, and the change from the
# frame of its sender to that of the link; None: they are the same.
Last = tuple[int, int, Lineage, FrameChange | None]


class LineageLink(Link):
    """A link that remembers the messages that reached it at this moment, if it has more than one flow.

    Attributes:
        shared: whether it has, at finite bandwidth.
        last: the last message, until it is shared.
        when: when messages last reached it, once it is shared; until when a ring holds it.
        arrived: those of that moment: their sender, event, its frame and lineage, and the change of that.
    """

    __slots__ = ("_first", "_flows", "arrived", "env", "last", "shared", "when")

    env: LineageEnvironment

    def __init__(self, env: LineageEnvironment, spec: LinkSpec, rate: Rate) -> None:
        super().__init__(env, spec, rate)
        self.shared = False
        self.last: Last = (-1, -1, (None, 0, -1, -1), None)
        self._flows = self._first = 0
        self.when = -1
        self.arrived: list[tuple[int, int, Element | None, Lineage, FrameChange | None]] = []

    def join(self, sender: int) -> None:
        """Add a flow of messages from a rank."""
        self._flows += 1
        if self._flows == 2 and not self.shared and self.spec.bandwidth is not None:  # otherwise no message waits
            self.shared = True
            self.when, number, lineage, change = self.last
            self.arrived = [(self._first, number, None, lineage, change)]
        elif self._flows == 1:
            self._first = sender

    def take(self, last: int) -> None:
        """Let a ring have it until then: whether its messages are before others that reach it is not known."""
        self.shared = True
        self.when, self.arrived = last, [(-1, -1, None, (None, 0, -1, -1), None)]

    def meet(self, sender: int, frame: Element, change: FrameChange | None) -> None:
        """Record that a message reaches the link, by the event being processed, at the moment of others.

        Raises:
            FoldRefusal: which of them is first depends on the image.
        """
        env = self.env
        number, lineage = env.events, env.lineage
        here = lineage if change is None else change.of(lineage)
        for other, event, there, before, its in self.arrived:
            # one event sends its messages in the order of the program, which is the same in every image; of two events,
            # what they descend from must say which is first, for all images alike
            same = event == number and there == frame
            if not same and not env.decided(before if its is None else its.of(before), here):
                ranks = " and ".join(map(str, sorted((sender, other))))
                whose = f"a ring and rank {max(sender, other)}" if min(sender, other) < 0 else f"ranks {ranks}"
                what = f"messages of {whose} reach link {self.spec.name} at the same time"
                raise FoldRefusal(f"{what}, and which comes first differs between replicas")
        if self.arrived[-1][1:3] != (number, frame):
            self.arrived.append((sender, number, frame, lineage, change))


class LineageFlow(FifoFlow):
    """A flow over such links, whose events descend from ranks as the sender's image names them.

    Args:
        sender: the rank that sends.
        base: the untraced flow.
        frame: the element that maps the simulated first link to the message's own.
        changes: to the frames of its links and, last, of the receiver; None where it is the sender's own.
    """

    __slots__ = ("_changes", "_frame", "_sender")

    env: LineageEnvironment

    def __init__(self, sender: int, base: FifoFlow, frame: Element, changes: Sequence[FrameChange | None]) -> None:
        super().__init__(
            base.env, base.hops, base.put if changes[-1] is None else landing(base, changes[-1]), base.rows
        )
        self.pace = base.pace
        self._sender, self._frame, self._changes = sender, frame, changes
        self.on_head = LineageFlow.arrive
        for hop in base.hops:
            hop.link.join(sender)  # type: ignore[attr-defined]

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        link: Any = self.link
        env = self.env
        if not link.shared:
            link.last = env.now, env.events, env.lineage, self._changes[0]
        elif link.when >= env.now:
            link.meet(self._sender, self._frame, self._changes[0])
        else:
            link.when, link.arrived = env.now, [(self._sender, env.events, self._frame, env.lineage, self._changes[0])]
        FifoFlow.send(self, message, tag)

    @property
    def images(self) -> tuple[Element | None, ...]:
        """By which elements its links and the receiver stand for their images, where they do."""
        return tuple(None if change is None else change.element for change in self._changes)

    def take_first(self) -> None:
        """Let a ring have the first link, as of now.

        Raises:
            FoldRefusal: it is not certain that its messages follow others that reach the link now.
        """
        link: Any = self.link
        if link.shared and link.when >= self.env.now:
            link.meet(self._sender, self._frame, self._changes[0])
        if link.bandwidth is not None:
            link.take(LAST_TIME)

    @staticmethod
    def arrive(head: Any) -> None:
        """Serve a head, followed by its lineage, at a further link, and send it on or hand the message over."""
        flow, leg, lineage = head[1], head[4], head[6]
        env, link, change = flow.env, leg[0], flow._changes[leg[3]]
        env.lineage = chain, root, booked, _ = lineage  # as for other events
        env.born = (None, root, -1, -1) if chain is None else (hash((env.now, chain)), root, env.now, booked)
        if not link.shared:
            link.last = env.now, env.events, lineage, change
        elif link.when >= env.now:
            link.meet(flow._sender, (), change)
        else:
            link.when, link.arrived = env.now, [(flow._sender, env.events, (), lineage, change)]
        FifoFlow.arrive(head[:6])

    def _forward(self, leg: Leg, at: int, slowest: int, message: Message, tag: int) -> None:
        self.env.agenda.book(at, (self.on_head, self, message, tag, leg, slowest, self.env.born))


def landing(flow: FifoFlow, change: FrameChange) -> Put:
    """Hand a message over in the receiver's frame."""
    env: Any = flow.env
    put = flow.put

    def landed(message: Message, tag: int, at: int) -> None:
        here, born = env.lineage, env.born
        env.lineage, env.born = change.of(here), change.of(born)
        put(message, tag, at)
        env.lineage, env.born = here, born

    return landed


class FoldedRendezvous(Rendezvous):
    """The rendezvous of the simulated members of a group, numbered as they arrive; their messages are alike."""

    def arrive(self, member: int, message: Message, delay: int) -> Arrival:
        """Arrive with a message; the event's value has one per simulated member."""
        return super().arrive(len(self._brought), message, delay)


class FoldedTransport(Transport):
    """Flows and mailboxes of the simulated ranks, for links that are shared without an order (`fair`)."""

    kinds: ClassVar = {Rendezvous: FoldedRendezvous}

    def __init__(
        self,
        links: Links,
        trace: Recorder,
        fold: Fold,
        receipts: bool = False,
        groups: Iterable[ProcessGroup] = (),
        **of_job: Any,
    ) -> None:
        super().__init__(links, trace, receipts=receipts, **of_job)
        self.fold = fold
        self._channels = ChannelImages(fold, groups)
        self._endpoints = Endpoints(fold, self._fabric)
        self._courses = FoldedRoutes(self._fabric, fold, self._endpoints)

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two ranks or representatives, and the mailbox at its end."""
        element = self._endpoints.element(channel.sender, channel.receiver)
        if element != self.fold.identity:
            back = self.fold.inverse(element)
            sender, receiver = (self._endpoints.move(end, back) for end in (channel.sender, channel.receiver))
            channel = channel._replace(sender=sender, receiver=receiver)
            if channel.purpose in (REDUCTION, PARAMETERS):
                lane = self._channels.source(lane, (channel.stage, part, sender), element)
        return super().flow(channel, lane, part)

    def simulates(self, rank: int) -> bool:
        """Whether a rank is simulated; if not, another stands for it."""
        return bool(self.fold.simulated(rank))

    def serves(self, server: int, members: Sequence[int]) -> bool:
        """Whether a server of a group of ranks is simulated."""
        return not self._endpoints.is_switch(server) or self._endpoints.serves(server, members)

    def sent(self) -> dict[str, int]:
        """Totals sent by all ranks."""
        return {key: total * self.fold.order for key, total in super().sent().items()}

    def carried(self) -> dict[str, int]:
        """Bytes that all ranks sent over each link."""
        totals: Counter[str] = Counter()
        for (sender, receiver), size in self.between()[0].items():
            for element in self.fold.elements():
                route = self._fabric.route(*(self._endpoints.move(end, element) for end in (sender, receiver)))
                totals.update(dict.fromkeys(route.links, size))
        return dict(totals)

    def _simulated(self, members: Sequence[int]) -> int:
        return sum(map(self.fold.simulated, members))

    def _flow(self, channel: Channel, put: Put) -> Flow:
        flow = super()._flow(channel, put)
        if isinstance(flow, WatchedFlow):
            flow.images = tuple(leg.element for leg in self._courses.of(channel.sender, channel.receiver))
            flow.foreign = flow.images[0] != self.fold.identity
        return flow

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        legs = self._courses.of(channel.sender, channel.receiver)
        if len({leg.link for leg in legs}) < len(legs):
            ends = f"from rank {channel.sender} to {channel.receiver}"
            raise FoldRefusal(f"the route {ends} takes a link and its counterpart under the symmetry, {legs[-1].name}")
        latencies = tuple(leg.latency for leg in legs)
        if channel.pace is not None:
            latencies = channel.pace.latencies(Route(tuple(leg.name for leg in legs), latencies))
        return tuple(
            Hop(self.links[leg.link], latency, self._trace.channel(channel.on(leg.name, hop, latency)))
            for hop, (leg, latency) in enumerate(zip(legs, latencies, strict=True))
        )


class WatchedTransport(FoldedTransport):
    """The same over links that notice ties, with the events of a network in which orders are traced."""

    kinds: ClassVar = {ReplayedGroup: SeparateMeeting, Rendezvous: SeparateRendezvous}


class LineageTransport(FoldedTransport):
    """The same for links served in order, where that order must be the same in all images."""

    env: LineageEnvironment
    kinds: ClassVar = {
        Mailbox: LineageMailbox,
        TaggedMailbox: LineageTaggedMailbox,
        Handoff: LineageHandoff,
        Rendezvous: LineageRendezvous,
        ReplayedGroup: LineageMeeting,
    }

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._changes: dict[Element, FrameChange | None] = {}

    def begin(self, rank: int, members: Sequence[int] = ()) -> None:
        """Make events booked next descend from a rank; those of a server, from none that is known."""
        self.env.begin(root_of(rank))
        if rank >= self.fold.layout.ranks:
            self.env.forget()

    @property
    def any_order(self) -> bool:
        """Whether ranks that start in any other order have been found to take the same times."""
        return not self.env.start_matters

    def meeting(self, kind: type[Kind], size: int, members: Sequence[int]) -> Kind:
        """A new meeting of a group of ranks, of which so many are simulated."""
        barrier = kind is ReplayedGroup and len(members) == self.fold.layout.ranks
        self.env.start_matters |= not barrier
        return super().meeting(kind, size, members)

    def arrival(self) -> Arrival:
        """A new event, to be booked for a known time."""
        return LineageArrival.of(self.env)

    def _mailbox(self, channel: Channel) -> Mailbox:
        if self._endpoints.is_switch(channel.receiver):
            return SwitchMailbox(self.env, self._endpoints.certain(channel.receiver))
        return UnorderedMailbox(self.env) if channel.kind == "parameter-server" else super()._mailbox(channel)

    def _flow(self, channel: Channel, put: Put) -> Flow:
        flow = super()._flow(channel, put)
        if not isinstance(flow, FifoFlow) or not isinstance(flow.link, LineageLink):
            return flow
        ranks = channel.receiver < self.fold.layout.ranks  # switches are in their own place
        element = self.fold.representative(channel.receiver)[1] if ranks else self.fold.identity
        elements = [*(leg.element for leg in self._courses.of(channel.sender, channel.receiver)), element]
        return LineageFlow(channel.sender, flow, elements[0], [self._change(element) for element in elements])

    def _change(self, element: Element) -> FrameChange | None:
        """The change to the frame in which a simulated link or rank stands for its image by an element."""
        if element not in self._changes:
            away = element != self.fold.identity
            self._changes[element] = FrameChange(self.fold, self.fold.inverse(element)) if away else None
        return self._changes[element]


class LineageFifo(Fifo):
    """Links that serve one message at a time and know which messages reach them at the same time."""

    kind = LineageLink


class LineageLinks(Links):
    """The links of a folded run in which orders are traced."""

    def _model(self, name: str, schedules: Schedules) -> Sharing:
        return LineageFifo(self.env) if name == "fifo" else super()._model(name, schedules)


def folded_transport(
    fabric: Fabric,
    sharing: str,
    recorder: Recorder,
    fold: Fold,
    groups: Iterable[ProcessGroup] = (),
    *,
    receipts: bool = False,
    ordered: bool = False,
    watched: bool = False,
) -> FoldedTransport:
    """The network of a folded run, given its process groups; orders are traced if anything depends on them.

    Nothing does, unless ranks meet, under `fair`, where messages that meet share a link, whichever came first, and
    under `uncontended`, where none waits. Nor does anything where no two messages reach a link in the same moment: a
    run that is only watched ends with a `TieError` where two do.
    """
    if sharing in ("fair", "uncontended") and not ordered:
        return FoldedTransport(Links(Environment(), fabric, sharing), recorder, fold, receipts, groups)
    if watched:
        return WatchedTransport(WatchedLinks(Environment(), fabric, sharing), recorder, fold, receipts, groups)
    return LineageTransport(LineageLinks(LineageEnvironment(fold), fabric, sharing), recorder, fold, receipts, groups)
