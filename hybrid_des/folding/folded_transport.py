"""The network of a folded run: messages to a rank that is not simulated go to its representative, on its links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.engine.clock import MOMENT, USUAL, Arrival, Environment
from hybrid_des.engine.lineage import Lineage, LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.lineage_mailboxes import (
    LineageHandoff,
    LineageMailbox,
    LineageMeeting,
    LineageRendezvous,
    LineageTaggedMailbox,
    UnorderedMailbox,
)
from hybrid_des.folding.symmetry import Element, Fold, root_of
from hybrid_des.network.fabric import Fabric, LinkSpec, Route
from hybrid_des.network.link import Hop, Link
from hybrid_des.network.mailbox import Channel, Handoff, Mailbox, Message, Rendezvous, ReplayedGroup, TaggedMailbox
from hybrid_des.network.rate import Rate
from hybrid_des.network.sharing import Flow, Put, Schedules, Sharing
from hybrid_des.network.sharing.fifo import Fifo, FifoFlow, Head
from hybrid_des.network.transport import Links, Transport

# The routes of folded messages: the simulated link for each of their links, if all images of a route are alike.
#
# Exchanging equal blocks of GPUs (nodes, or the nodes of a leaf) maps routes to routes in most wirings, which declare
# it (`Fabric.blocks`): then no image is examined. Along other folded axes all images of a route are.


class FoldedHop(NamedTuple):
    """A link of a route.

    Attributes:
        link: the link that is simulated in its place.
        name: its own name.
        latency: picoseconds after it.
        turned: the element that maps the simulated link to it.
    """

    link: str
    name: str
    latency: int
    turned: Element


class FoldedRoutes:
    """The routes of folded messages.

    Args:
        fabric: the wiring.
        fold: which ranks are simulated.
    """

    def __init__(self, fabric: Fabric, fold: Fold) -> None:
        self._fabric = fabric
        self._fold = fold
        self._known: dict[str, tuple[str, Element]] = {}  # link → the simulated link, and the element that maps it here
        self._found: dict[tuple[int, int], list[FoldedHop]] = {}
        self._turns: dict[int, tuple[Element, Element]] = {}

    def of(self, sender: int, receiver: int) -> list[FoldedHop]:
        """The legs of a message from a simulated rank.

        Raises:
            FoldRefusal: the images of the route differ, or a link carries the messages of several replicas.
        """
        legs = self._found.get((sender, receiver))
        if legs is None:
            route = self._fabric.route(sender, receiver)
            representatives = self._by_rule if any(self._blockwise) else self._by_images
            found = representatives(route, sender, receiver)
            legs = self._found[sender, receiver] = [
                FoldedHop(link, name, latency, turned)
                for name, latency, (link, turned) in zip(route.links, route.latencies, found, strict=True)
            ]
        return legs

    @cached_property
    def _blockwise(self) -> tuple[bool, ...]:
        """For each folded axis, whether images along it exchange whole blocks whose GPUs keep their places in them."""
        generators = self._fold.generators
        ranks = np.arange(self._fold.layout.ranks, dtype=np.int64)
        return tuple(
            all(self._exchanges_blocks(one, ranks) for one in generators if one[axis])
            for axis in range(len(self._fold.turns))
        )

    def _exchanges_blocks(self, element: Element, ranks: NDArray[np.int64]) -> bool:
        blocks = self._fabric.blocks
        if blocks is None:
            return False
        images = self._fold.move(ranks, element)
        moved = images // blocks.size
        keeps_place = (ranks % blocks.size == images % blocks.size).all()
        return bool(keeps_place and (moved == moved[ranks // blocks.size * blocks.size]).all())

    def _by_rule(self, route: Route, sender: int, receiver: int) -> list[tuple[str, Element]]:
        """Exchange blocks by rule, and examine images only along axes within blocks."""
        fold, blocks = self._fold, self._fabric.blocks
        assert blocks is not None
        found = []
        for hop, name in enumerate(route.links):
            block = blocks.of(name)
            if block is None:
                raise FoldRefusal(f"link {name} carries the messages of all replicas")
            turned, back = self._turned(block * blocks.size)
            link, within = name, fold.identity
            if turned != fold.identity or not all(self._blockwise):
                ends = fold.move(sender, back), fold.move(receiver, back)
                image = self._fabric.route(*ends)
                link, within = (
                    (image.links[hop], within) if all(self._blockwise) else self._by_images(image, *ends)[hop]
                )
            found.append((link, fold.combined(turned, within)))
        return found

    def _turned(self, first: int) -> tuple[Element, Element]:
        """The element that maps the simulated block to the one with this first rank, and its inverse."""
        found = self._turns.get(first)
        if found is None:
            _, home = self._fold.home(first)
            turned = tuple(times if whole else 0 for times, whole in zip(home, self._blockwise, strict=True))
            found = self._turns[first] = turned, self._fold.inverse(turned)
        return found

    def _by_images(self, route: Route, sender: int, receiver: int) -> list[tuple[str, Element]]:
        """Examine all images along axes that do not exchange whole blocks."""
        fold = self._fold
        routes = []
        for element in product(
            *(range(1 if whole else count) for whole, count in zip(self._blockwise, fold.counts, strict=True))
        ):
            here, there = fold.move(sender, element), fold.move(receiver, element)
            other = self._fabric.route(here, there)
            if other.latencies != route.latencies:
                ways = f"from rank {sender} to {receiver} and from rank {here} to {there}"
                raise FoldRefusal(f"the routes {ways} have other links or latencies")
            routes.append((element, other.links))
        return [self._picture([(element, links[hop]) for element, links in routes]) for hop in range(len(route.links))]

    def _picture(self, images: list[tuple[Element, str]]) -> tuple[str, Element]:
        """The link simulated for the first of these images of a link, and the element that maps it there."""
        first, known = images[0][1], self._known
        if first not in known:
            rate = self._fabric.links[first].bandwidth
            for element, name in images:
                if name in known:
                    raise FoldRefusal(f"link {name} carries the messages of several replicas")
                if self._fabric.links[name].bandwidth != rate:
                    raise FoldRefusal(f"link {name} has a different bandwidth from link {first}")
                known[name] = (first, element)
        link, turned = known[first]
        for element, name in images:
            if known.get(name) != (link, self._fold.combined(turned, element)):
                raise FoldRefusal(f"link {name} carries the messages of replicas that map differently")
        return link, turned


# Links that are served in order, in a folded run: two messages that meet must meet in the same order in all images.
#
# A link stands for all of its images. Each message comes from a sender with a frame of its own, so roots are moved from
# frame to frame: from the sender to the first link, from link to link, and to the receiver.


class LineageLink(Link):
    """A link that remembers the messages that reached it at this moment, if it has more than one flow.

    Attributes:
        shared: whether it has, at finite bandwidth.
        last: when a message last reached it, and the number and lineage of the event by which it did.
    """

    __slots__ = ("_came", "_first", "_flows", "_when", "env", "last", "shared")

    env: LineageEnvironment

    def __init__(self, env: LineageEnvironment, spec: LinkSpec, rate: Rate) -> None:
        super().__init__(env, spec, rate)
        self.shared = False
        self.last: tuple[int, int, Lineage] = (-1, -1, (None, 0))
        self._flows = self._first = 0
        self._came: list[tuple[int, int, Element | None, Lineage]] = []

    def join(self, sender: int) -> None:
        """Add a flow of messages from a rank."""
        self._flows += 1
        if self._flows == 2 and self.spec.bandwidth is not None:  # otherwise no message waits
            self.shared = True
            self._when, number, lineage = self.last
            self._came = [(self._first, number, None, lineage)]
        elif self._flows == 1:
            self._first = sender

    def meet(self, sender: int, frame: Element) -> None:
        """Record that a message reaches the link, by the event being processed.

        Raises:
            FoldRefusal: another one reaches it now, and which of them is first depends on the image.
        """
        env = self.env
        if self._when != env.now:
            self._when = env.now
            self._came = [(sender, env.events, frame, env.lineage)]
            return
        number, lineage = env.events, env.lineage
        for other, event, there, before in self._came:
            same = event == number and there == frame
            if not same and not env.decided(before, lineage):
                ranks = " and ".join(map(str, sorted((sender, other))))
                what = f"messages of ranks {ranks} reach link {self.spec.name} at the same time"
                raise FoldRefusal(f"{what}, and which comes first differs between replicas")
        if self._came[-1][1:3] != (number, frame):
            self._came.append((sender, number, frame, lineage))


class LineageHead(Head):
    """The head of a message with its lineage."""

    __slots__ = ("lineage",)

    lineage: Lineage


class LineageFlow(FifoFlow):
    """A flow over such links that, like the receiver, belong to the sender's own image."""

    __slots__ = ("_frame", "_sender")

    env: LineageEnvironment

    def __init__(self, sender: int, base: FifoFlow, frame: Element = ()) -> None:
        super().__init__(base.env, base.hops, base.put, base.rows)
        self.pace = base.pace
        self._sender, self._frame = sender, frame
        self.on_head = (self.env.follow, LineageFlow.arrive)
        for hop in base.hops:
            hop.link.join(sender)  # type: ignore[attr-defined]

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        link: Any = self.link
        if link.shared:
            link.meet(self._sender, self._frame)
        else:
            env = self.env
            link.last = (env.now, env.events, env.lineage)
        FifoFlow.send(self, message, tag)

    @staticmethod
    def arrive(head: Head) -> None:
        """Serve a head at a further link, and send it on or hand the message over."""
        flow: Any = head.flow
        link: Any = flow.hops[head.hop].link
        if link.shared:
            link.meet(flow._sender, ())
        else:
            env = flow.env
            link.last = (env.now, env.events, env.lineage)
        FifoFlow.arrive(head)

    def _forward(self, hop: int, at: int, slowest: int, message: Message, tag: int) -> None:
        head = LineageHead()
        head.callbacks, head.flow = self.on_head, self
        head.message, head.tag = message, tag
        head.hop, head.slowest = hop, slowest
        head.lineage = self.env.born
        self.env.agenda[at << MOMENT | USUAL].append(head)


class TurnedFlow(LineageFlow):
    """A flow to an image other than the sender's own."""

    __slots__ = ("_fold", "_moved", "_steps")

    def __init__(self, fold: Fold, sender: int, route: Sequence[Element], base: FifoFlow) -> None:
        """Trace a flow.

        Args:
            fold: the group of images.
            sender: the rank that sends.
            route: for each link and, last, the receiver, the element that maps its representative to it.
            base: the untraced flow.
        """
        super().__init__(sender, base, route[0])
        self.put = self._landing(base.put)
        self._fold = fold
        turns = zip([fold.identity, *route], route, strict=False)
        self._steps = [fold.combined(before, fold.inverse(after)) for before, after in turns]
        self._moved: list[dict[int, int]] = [{} for _ in self._steps]

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        env = self.env
        before = env.lineage, env.born
        self._enter(0)
        super().send(message, tag)
        env.lineage, env.born = before

    def _forward(self, hop: int, at: int, slowest: int, message: Message, tag: int) -> None:
        env = self.env
        before = env.lineage, env.born
        self._enter(hop)
        super()._forward(hop, at, slowest, message, tag)
        env.lineage, env.born = before

    def _landing(self, put: Put) -> Put:
        """Hand a message over in the receiver's frame."""

        def landed(message: Message, tag: int, at: int) -> None:
            env = self.env
            before = env.lineage, env.born
            self._enter(len(self._steps) - 1)
            put(message, tag, at)
            env.lineage, env.born = before

        return landed

    def _enter(self, hop: int) -> None:
        """Switch to the frame of a link or, after the last, of the receiver."""
        step = self._steps[hop]
        if step == self._fold.identity:
            return
        env, moved = self.env, self._moved[hop]
        (here, root), (born, parent) = env.lineage, env.born
        for one in (root, parent):
            if one not in moved:
                moved[one] = self._fold.move_root(one, step)
        env.lineage, env.born = (here, moved[root]), (born, moved[parent])


class FoldedRendezvous(Rendezvous):
    """The rendezvous of the simulated members of a group, numbered as they arrive; their messages are alike."""

    def arrive(self, place: int, message: Message, delay: int) -> Arrival:
        """Arrive with a message; the event's value has one per simulated member."""
        return super().arrive(len(self._brought), message, delay)


class FoldedTransport(Transport):
    """Flows and mailboxes of the simulated ranks, for links that are shared without an order (`fair`)."""

    kinds: ClassVar = {Rendezvous: FoldedRendezvous}

    def __init__(self, links: Links, trace: Recorder, fold: Fold, receipts: bool = False) -> None:
        super().__init__(links, trace, receipts=receipts)
        self._fold = fold
        self._courses = FoldedRoutes(self._fabric, fold)

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two ranks or representatives, and the mailbox at its end."""
        sender, turned = self._fold.home(channel.sender)
        if turned != self._fold.identity:
            receiver = self._fold.move(channel.receiver, self._fold.inverse(turned))
            channel = channel._replace(sender=sender, receiver=receiver)
        return super().flow(channel, lane, part)

    def sent(self) -> dict[str, int]:
        """Totals sent by all ranks."""
        return {key: total * self._fold.order for key, total in super().sent().items()}

    def carried(self) -> dict[str, int]:
        """Bytes that all ranks sent over each link."""
        between: Counter[tuple[int, int]] = Counter()
        for channel, flow in self._opened:
            between[channel.sender, channel.receiver] += flow.bytes
        totals: Counter[str] = Counter()
        for (sender, receiver), size in between.items():
            for element in self._fold.elements():
                route = self._fabric.route(self._fold.move(sender, element), self._fold.move(receiver, element))
                totals.update(dict.fromkeys(route.links, size))
        return dict(totals)

    def _simulated(self, members: Sequence[int]) -> int:
        return sum(map(self._fold.simulated, members))

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        legs = self._courses.of(channel.sender, channel.receiver)
        if len({leg.link for leg in legs}) < len(legs):
            ends = f"from rank {channel.sender} to {channel.receiver}"
            raise FoldRefusal(f"the route {ends} takes a link and one of its images, {legs[-1].name}")
        latencies = tuple(leg.latency for leg in legs)
        if channel.pace is not None:
            latencies = channel.pace.latencies(Route(tuple(leg.name for leg in legs), latencies))
        return tuple(
            Hop(self.links[leg.link], latency, self._trace.channel(channel.on(leg.name, hop, latency)))
            for hop, (leg, latency) in enumerate(zip(legs, latencies, strict=True))
        )


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

    def begin(self, rank: int) -> None:
        """Make events booked next descend from a rank."""
        self.env.begin(root_of(rank))

    def _mailbox(self, channel: Channel) -> Mailbox:
        return UnorderedMailbox(self.env) if channel.kind == "parameter-server" else super()._mailbox(channel)

    def _flow(self, channel: Channel, put: Put) -> Flow:
        flow = super()._flow(channel, put)
        if not isinstance(flow, FifoFlow) or not isinstance(flow.link, LineageLink):
            return flow
        _, turned = self._fold.home(channel.receiver)
        route = [*(leg.turned for leg in self._courses.of(channel.sender, channel.receiver)), turned]
        if all(element == self._fold.identity for element in route):
            return LineageFlow(channel.sender, flow)
        return TurnedFlow(self._fold, channel.sender, route, flow)


class LineageFifo(Fifo):
    """Links that serve one message at a time and know which messages reach them at the same time."""

    kind = LineageLink


class LineageLinks(Links):
    """The links of a folded run in which orders are traced."""

    def _model(self, name: str, schedules: Schedules) -> Sharing:
        return LineageFifo(self.env) if name == "fifo" else super()._model(name, schedules)


def folded_transport(
    fabric: Fabric, sharing: str, recorder: Recorder, fold: Fold, *, receipts: bool = False, ordered: bool = False
) -> FoldedTransport:
    """The network of a folded run; orders are traced if anything depends on them.

    Nothing does, unless ranks meet, under `fair`, where messages that meet share a link, whichever came first, and
    under `uncontended`, where none waits.
    """
    if sharing in ("fair", "uncontended") and not ordered:
        return FoldedTransport(Links(Environment(), fabric, sharing), recorder, fold, receipts)
    return LineageTransport(LineageLinks(LineageEnvironment(fold), fabric, sharing), recorder, fold, receipts)
