"""The network of a folded run: messages to a rank that is not simulated go to its picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import Arrival
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.courses import Courses
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
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.link import Hop
from hybrid_des.network.mailbox import Handoff, Mailbox, Rendezvous, TaggedMailbox
from hybrid_des.network.meeting import Meeting
from hybrid_des.network.message import Message
from hybrid_des.network.sharing import Flow, Put, Schedules, Sharing
from hybrid_des.network.sharing.fifo import Fifo, FifoFlow
from hybrid_des.network.transport import Links, Transport


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
        self._courses = Courses(self._fabric, fold)
        self._ends: list[tuple[int, int]] = []  # of each opened flow

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two ranks or their pictures, and the mailbox at its end."""
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

    def _simulated(self, members: Sequence[int]) -> int:
        return sum(map(self._fold.simulated, members))

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        legs = self._courses.of(channel.sender, channel.receiver)
        if len({leg.link for leg in legs}) < len(legs):
            ends = f"from rank {channel.sender} to {channel.receiver}"
            raise FoldRefusal(f"the route {ends} takes a link and one of its images, {legs[-1].name}")
        self._ends.append((channel.sender, channel.receiver))
        return tuple(
            Hop(self.links[leg.link], leg.latency, self._trace.channel(channel.on(leg.name, hop, leg.latency)))
            for hop, leg in enumerate(legs)
        )


class LineageTransport(FoldedTransport):
    """The same for links served in order, where that order must be the same in all images."""

    env: LineageEnvironment
    kinds: ClassVar = {
        Mailbox: LineageMailbox,
        TaggedMailbox: LineageTaggedMailbox,
        Handoff: LineageHandoff,
        Rendezvous: LineageRendezvous,
        Meeting: LineageMeeting,
    }

    def begin(self, rank: int) -> None:
        """Make events booked next descend from a rank."""
        self.env.begin(root_of(rank))

    def _mailbox(self, channel: Channel) -> Mailbox:
        return UnorderedMailbox(self.env) if channel.kind == "parameter-server" else super()._mailbox(channel)

    def _flow(self, channel: Channel, put: Put) -> Flow:
        flow = super()._flow(channel, put)
        if not isinstance(flow, FifoFlow):
            return flow
        _, turned = self._fold.home(channel.receiver)
        legs = self._courses.of(channel.sender, channel.receiver)
        return with_lineage(self._fold, channel.sender, [*(leg.turned for leg in legs), turned], flow)


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

    Under `fair` nothing does, unless ranks meet: messages that meet share a link, whichever came first.
    """
    if sharing == "fair" and not ordered:
        return FoldedTransport(Links(Environment(), fabric, sharing), recorder, fold, receipts)
    return LineageTransport(LineageLinks(LineageEnvironment(fold), fabric, sharing), recorder, fold, receipts)
