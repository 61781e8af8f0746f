"""The network of a folded run: messages to a rank that is not simulated go to its picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import Arrival
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.courses import Courses, Leg
from hybrid_des.folding.lineage_flows import LineageLink, with_lineage
from hybrid_des.folding.lineage_mailboxes import (
    LineageHandoff,
    LineageMailbox,
    LineageRendezvous,
    LineageTaggedMailbox,
    UnorderedMailbox,
)
from hybrid_des.folding.lineage_meetings import LineageMeeting
from hybrid_des.folding.orbits import Fold, root_of
from hybrid_des.network.channel import Channel
from hybrid_des.network.fabric import Fabric, LinkSpec
from hybrid_des.network.link import Hop
from hybrid_des.network.mailbox import Handoff, Mailbox, Rendezvous, TaggedMailbox
from hybrid_des.network.meeting import Meeting
from hybrid_des.network.message import Message
from hybrid_des.network.rate import Rate
from hybrid_des.network.sharing import Flow, Put
from hybrid_des.network.sharing.fifo import Fifo, FifoFlow
from hybrid_des.network.transport import Transport


class FoldedTransport(Transport):
    """Links, flows and mailboxes of the simulated ranks, for links that are shared without an order (`fair`)."""

    def __init__(
        self, env: Environment, fabric: Fabric, sharing_name: str, trace: Recorder, receipts: bool, *, fold: Fold
    ) -> None:
        super().__init__(env, fabric, sharing_name, trace, receipts)
        self._fold = fold
        self._courses = Courses(fabric, fold)
        self._ends: list[tuple[int, int]] = []  # of each opened flow

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two GPUs or their pictures, and the mailbox at its end."""
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
        for ends, (_, flow) in zip(self._ends, self._opened, strict=True):
            between[ends] += flow.bytes
        totals: Counter[str] = Counter()
        for (sender, receiver), size in between.items():
            for element in self._fold.elements():
                route = self._fabric.route(self._fold.move(sender, element), self._fold.move(receiver, element))
                totals.update(dict.fromkeys(route.links, size))
        return dict(totals)

    def _meeting(self, members: Sequence[int]) -> Rendezvous:
        return FoldedRendezvous(self.env, sum(map(self._fold.simulated, members)))

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        return self._along(channel, self._courses.of(channel.sender, channel.receiver))

    def _along(self, channel: Channel, legs: Sequence[Leg]) -> tuple[Hop, ...]:
        if len({leg.link for leg in legs}) < len(legs):
            ends = f"from rank {channel.sender} to {channel.receiver}"
            raise FoldRefusal(f"the route {ends} takes a link and one of its images, {legs[-1].name}")
        self._ends.append((channel.sender, channel.receiver))
        return tuple(
            Hop(self.link(leg.link), leg.latency, self._trace.channel(channel.on(leg.name, hop, leg.latency)))
            for hop, leg in enumerate(legs)
        )


class FoldedRendezvous(Rendezvous):
    """The rendezvous of the simulated members of a group, numbered as they arrive; their messages are alike."""

    def arrive(self, place: int, message: Message, delay: int) -> Arrival:
        """Arrive with a message; the event's value has one per simulated member."""
        return super().arrive(len(self._brought), message, delay)


class LineageTransport(FoldedTransport):
    """The same for links served in order, where that order must be the same in all images."""

    env: LineageEnvironment

    def __init__(
        self, env: LineageEnvironment, fabric: Fabric, sharing_name: str, trace: Recorder, receipts: bool, *, fold: Fold
    ) -> None:
        super().__init__(env, fabric, sharing_name, trace, receipts, fold=fold)
        self._kind = ""
        if sharing_name == "fifo":
            self._sharing = LineageFifo(env, trace.messages)

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two GPUs or their pictures, and the mailbox at its end."""
        self._kind = channel.kind
        return super().flow(channel, lane, part)

    def mailbox(self) -> Mailbox:
        """A mailbox for the collective whose flow is being opened."""
        return (UnorderedMailbox if self._kind == "parameter-server" else LineageMailbox)(self.env)

    def handoff(self) -> Handoff:
        """A queue between two phases on one GPU."""
        return LineageHandoff(self.env)

    def tagged_mailbox(self) -> TaggedMailbox:
        """A mailbox of pipeline messages."""
        return LineageTaggedMailbox(self.env)

    def meeting(self, size: int) -> Meeting:
        """A meeting of the simulated members of a group."""
        return LineageMeeting(self.env, size)

    def begin(self, rank: int) -> None:
        """Make events booked next descend from a rank."""
        self.env.begin(root_of(rank))

    def _meeting(self, members: Sequence[int]) -> Rendezvous:
        return LineageRendezvous(self.env, sum(map(self._fold.simulated, members)))

    def _open(self, channel: Channel, put: Put) -> Flow:
        legs = self._courses.of(channel.sender, channel.receiver)
        flow = self._sharing.flow(self._along(channel, legs), put)
        if isinstance(flow, FifoFlow):
            _, turned = self._fold.home(channel.receiver)
            flow = with_lineage(self._fold, channel.sender, [*(leg.turned for leg in legs), turned], flow)
        self._opened.append((channel.purpose, flow))
        return flow


class LineageFifo(Fifo):
    """Links that serve one message at a time and know which messages reach them at the same time."""

    _env: LineageEnvironment

    def link(self, spec: LinkSpec, rate: Rate) -> LineageLink:
        """Make a link."""
        return LineageLink(self._env, spec, rate)


def folded_transport(
    fabric: Fabric, sharing: str, recorder: Recorder, fold: Fold, *, receipts: bool, ordered: bool
) -> FoldedTransport:
    """The network of a folded run; orders are traced if anything depends on them.

    Under `fair` nothing does, unless ranks meet: messages that meet share a link, whichever came first.
    """
    if sharing == "fair" and not ordered:
        return FoldedTransport(Environment(), fabric, sharing, recorder, receipts, fold=fold)
    return LineageTransport(LineageEnvironment(fold), fabric, sharing, recorder, receipts, fold=fold)
