"""Messages between GPUs: flows over routes, and the mailboxes in which they arrive."""

from collections.abc import Mapping, Sequence

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import STEP_SHIFT, Recorder
from hybrid_des.errors import SimulationError, UsageError
from hybrid_des.network import sharing
from hybrid_des.network.channel import Channel
from hybrid_des.network.conditions import Conditions
from hybrid_des.network.fabric import Bandwidth, Fabric
from hybrid_des.network.link import Hop, Link
from hybrid_des.network.mailbox import Handoff, Mailbox, Rendezvous, TaggedMailbox
from hybrid_des.network.meeting import Meeting
from hybrid_des.network.message import Message
from hybrid_des.network.purpose import PURPOSES, Purpose
from hybrid_des.network.rate import Rate, rate_of
from hybrid_des.network.sharing import Flow, Put


class Transport:
    """Every link, flow and mailbox of a run; each is made on first use.

    Args:
        env: the environment.
        fabric: the wiring.
        sharing_name: name of the model of how links are shared.
        trace: where messages are recorded.
        receipts: whether senders of pipeline messages are notified when these have arrived.
        conditions: by name, those of links whose bandwidth or latency varies.
    """

    def __init__(
        self,
        env: Environment,
        fabric: Fabric,
        sharing_name: str,
        trace: Recorder,
        receipts: bool = False,
        conditions: Mapping[str, Conditions] | None = None,
    ) -> None:
        self.env = env
        self._receipts = receipts
        self._fabric = fabric
        self._trace = trace
        self._sharing = sharing.model(sharing_name, env, trace.messages, conditions or {})
        self._rates: dict[Bandwidth, Rate] = {}
        self._rate_of: dict[int, Rate] = {}
        self._links: dict[str, Link] = {}
        self._flows: dict[tuple[int, int, str, int, int, int], tuple[Flow, Mailbox]] = {}
        self._pipeline: dict[tuple[int, int, str], Flow] = {}
        self._rendezvous: dict[tuple[str, int, int, int], Rendezvous] = {}
        self._opened: list[tuple[Purpose, Flow]] = []
        self._inboxes: dict[tuple[int, str], TaggedMailbox] = {}
        self._outboxes: dict[tuple[int, str], TaggedMailbox] = {}

    def rendezvous(self, kind: str, stage: int, part: int, members: Sequence[int]) -> Rendezvous:
        """The rendezvous at which the members of a group exchange messages without a link."""
        key = (kind, stage, part, members[0])
        if key not in self._rendezvous:
            self._rendezvous[key] = self._meeting(members)
        return self._rendezvous[key]

    def node_of(self, gpu: int) -> int:
        """The node of a GPU."""
        return self._fabric.node_of[gpu]

    def link(self, name: str) -> Link:
        """A link of the fabric by name, such as "node0/nic0/out"; processes may `yield link.transmit(size)`.

        Raises:
            UsageError: the fabric has no link of this name.
        """
        if name not in self._links:
            try:
                spec = self._fabric.links[name]
            except KeyError:
                some = ", ".join([*self._fabric.links][:3])
                raise UsageError(f'there is no link "{name}"; such as: {some}') from None
            same = id(spec.bandwidth)  # hashing a fraction takes longer than everything else here
            if same not in self._rate_of:
                self._rate_of[same] = self._rates.setdefault(spec.bandwidth, rate_of(spec.bandwidth))
            self._links[name] = self._sharing.link(spec, self._rate_of[same])
        return self._links[name]

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two GPUs, and the mailbox at its end.

        Args:
            channel: its ends and purpose; the links follow from the route.
            lane: distinguishes flows of one collective between the same two GPUs.
            part: distinguishes collectives of one stage.
        """
        key = (channel.sender, channel.receiver, channel.kind, channel.stage, lane, part)
        if key not in self._flows:
            mailbox = self.mailbox()
            self._flows[key] = (self._open(channel, mailbox.put), mailbox)
        return self._flows[key]

    def pipeline_flow(self, sender: int, receiver: int, purpose: Purpose) -> Flow:
        """The flow of pipeline messages of one purpose between two GPUs; they arrive in the receiver's inbox."""
        key = (sender, receiver, purpose.name)
        if key not in self._pipeline:
            channel = Channel(sender, receiver, purpose, purpose.name)
            put: Put = self.inbox(receiver, purpose).put
            if self._receipts:
                put = _both(put, self.outbox(sender, purpose).put)
            self._pipeline[key] = self._open(channel, put)
        return self._pipeline[key]

    def sent(self) -> dict[str, int]:
        """Totals sent: messages, payload bytes by the purposes' counters, and bytes of a lossy codec's scales."""
        totals = {"messages": 0, "bytes_scales": 0, **dict.fromkeys((purpose.counter for purpose in PURPOSES), 0)}
        for purpose, flow in self._opened:
            totals["messages"] += flow.messages
            totals["bytes_scales"] += flow.scales
            totals[purpose.counter] += flow.bytes - flow.scales
        return totals

    def carried(self) -> dict[str, int]:
        """Bytes sent over each link."""
        totals: dict[str, int] = {}
        for _, flow in self._opened:
            for hop in flow.hops:
                name = hop.link.spec.name
                totals[name] = totals.get(name, 0) + flow.bytes
        return totals

    def inbox(self, rank: int, purpose: Purpose) -> TaggedMailbox:
        """The mailbox for a GPU's pipeline messages of a purpose."""
        key = rank, purpose.name
        if key not in self._inboxes:
            self._inboxes[key] = self.tagged_mailbox()
        return self._inboxes[key]

    def outbox(self, rank: int, purpose: Purpose) -> TaggedMailbox:
        """The receipts of a GPU's pipeline messages, for a sender that waits until they have arrived."""
        key = rank, purpose.name
        if key not in self._outboxes:
            self._outboxes[key] = self.tagged_mailbox()
        return self._outboxes[key]

    def mailbox(self) -> Mailbox:
        """A new mailbox."""
        return Mailbox(self.env)

    def tagged_mailbox(self) -> TaggedMailbox:
        """A new mailbox of pipeline messages."""
        return TaggedMailbox(self.env)

    def handoff(self) -> Handoff:
        """A new queue between two processes of a GPU."""
        return Handoff(self.env)

    def meeting(self, size: int) -> Meeting:
        """A meeting of the members of a group."""
        return Meeting(self.env, size)

    def begin(self, rank: int) -> None:
        """Attribute the processes started next to a rank; that matters where ranks stand for others."""

    def check_empty(self) -> None:
        """Check that every message was received.

        Raises:
            SimulationError: some were not.
        """
        unread = sum(box.unread() for box in (*self._inboxes.values(), *self._outboxes.values()))
        unread += sum(mailbox.unread() for _, mailbox in self._flows.values())
        if unread:
            raise SimulationError(f"{unread} messages were sent but never received")

    def _meeting(self, members: Sequence[int]) -> Rendezvous:
        return Rendezvous(self.env, len(members))

    def _open(self, channel: Channel, put: Put) -> Flow:
        flow = self._sharing.flow(self._hops(channel), put)
        self._opened.append((channel.purpose, flow))
        return flow

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        route = self._fabric.route(channel.sender, channel.receiver)
        return tuple(
            Hop(self.link(name), latency, self._trace.channel(channel.on(name, hop, latency)))
            for hop, (name, latency) in enumerate(zip(route.links, route.latencies, strict=True))
        )


def _both(one: Put, other: Put) -> Put:
    """Deliver each message to both."""

    def put(message: Message, tag: int, at: int) -> None:
        one(message, tag, at)
        other(message, tag, at)

    return put


def step_label(step: int) -> int:
    """The tag that a collective's messages carry in a training step."""
    return step << STEP_SHIFT
