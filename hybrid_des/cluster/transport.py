"""Messages between GPUs: links, which all jobs share; and the flows and mailboxes of each job.

An `Endpoint` is one GPU's part of them: its inboxes, and its flows to the other ranks of its pipeline.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from hybrid_des.cluster import sharing
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Bandwidth, Fabric
from hybrid_des.cluster.link import Hop, Link
from hybrid_des.cluster.mailbox import Handoff, Mailbox, Message, Rendezvous, TaggedMailbox
from hybrid_des.cluster.purposes import ACTIVATION, GRADIENT, PURPOSES, Purpose
from hybrid_des.cluster.rate import Rate, rate_of
from hybrid_des.cluster.sharing.registration import Flow, Put, Schedules, Sharing
from hybrid_des.engine.bookings import Arrival
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import STEP_SHIFT, Recorder
from hybrid_des.errors import SimulationError, UsageError

Kind = TypeVar("Kind")


class Links(dict[str, Link]):
    """The links of a fabric in a simulation, by name such as "node0/nic0/out"; each is made on first use.

    Processes may `yield links[name].transmit(size)`.

    Args:
        env: the environment.
        fabric: the wiring.
        sharing_name: name of the model of how links are shared.
        schedules: by name, those of links whose bandwidth or latency varies.

    Attributes:
        env, fabric: as given.
        sharing: the model.
    """

    def __init__(
        self, env: Environment, fabric: Fabric, sharing_name: str, schedules: Schedules = MappingProxyType({})
    ) -> None:
        self.env = env
        self.fabric = fabric
        self.sharing = self._model(sharing_name, schedules)
        self._rates: dict[Bandwidth, Rate] = {}
        self._rate_of: dict[int, Rate] = {}

    def __missing__(self, name: str) -> Link:
        """Make a link.

        Raises:
            UsageError: the fabric has no link of this name.
        """
        try:
            spec = self.fabric.links[name]
        except KeyError:
            some = ", ".join([*self.fabric.links][:3])
            raise UsageError(f'there is no link "{name}"; such as: {some}') from None
        same = id(spec.bandwidth)  # hashing a fraction takes longer than everything else here
        if same not in self._rate_of:
            self._rate_of[same] = self._rates.setdefault(spec.bandwidth, rate_of(spec.bandwidth))
        link = self[name] = self.sharing.link(spec, self._rate_of[same])
        return link

    def _model(self, name: str, schedules: Schedules) -> Sharing:
        return sharing.find(name).build(self.env, schedules)


class Transport:
    """The flows and mailboxes of one job, whose ranks are the GPUs of its view of the fabric; made on first use.

    Args:
        links: those of the fabric, which other jobs may use too.
        trace: where messages are recorded.
        fabric: the job's view of the fabric (`cluster.fabric.placed`); default: all of it.
        receipts: whether senders of pipeline messages are notified when these have arrived.
        priority: how urgent messages of each purpose are, where links have priorities; default: equally.

    Attributes:
        env: the environment.
        links: as given.
        inboxes: (rank, purpose) → the mailbox for pipeline messages to this rank.
        outboxes: the same for receipts of those that it has sent, if it waits for their arrival.
        kinds: the classes of mailboxes and meetings that are made in place of the usual ones.
    """

    kinds: ClassVar[Mapping[type[Any], type[Any]]] = {}

    def __init__(
        self,
        links: Links,
        trace: Recorder,
        fabric: Fabric | None = None,
        receipts: bool = False,
        priority: Callable[[Purpose], int] | None = None,
    ) -> None:
        self.env = links.env
        self.links = links
        self._fabric = fabric or links.fabric
        self._trace = trace
        self._receipts = receipts
        self._priority = None if priority is None else cache(priority)
        self._flows: dict[tuple[int, int, str, int, int, int], tuple[Flow, Mailbox]] = {}
        self._rendezvous: dict[tuple[str, int, int, int], Rendezvous] = {}
        self._opened: list[tuple[Channel, Flow]] = []
        self._pace = cache(rate_of)
        self.inboxes = defaultdict[tuple[int, Purpose], TaggedMailbox](partial(self.make, TaggedMailbox))
        self.outboxes = defaultdict[tuple[int, Purpose], TaggedMailbox](partial(self.make, TaggedMailbox))

    def make(self, kind: type[Kind], *size: int) -> Kind:
        """A new mailbox, or a new meeting of this many ranks."""
        made: Kind = self.kinds.get(kind, kind)(self.env, *size)
        return made

    def rendezvous(self, kind: str, stage: int, part: int, members: Sequence[int]) -> Rendezvous:
        """The rendezvous at which the members of a group exchange messages without a link."""
        key = (kind, stage, part, members[0])
        if key not in self._rendezvous:
            self._rendezvous[key] = self.meeting(Rendezvous, self._simulated(members), members)
        return self._rendezvous[key]

    def meeting(self, kind: type[Kind], size: int, members: Sequence[int]) -> Kind:
        """A new meeting of a group of ranks, of which so many are simulated."""
        return self.make(kind, size)

    @property
    def any_order(self) -> bool:
        """Whether ranks that start in any other order have been found to take the same times."""
        return False

    def node_of(self, rank: int) -> int:
        """The node of a rank's GPU."""
        return self._fabric.node_of[rank]

    def flow(self, channel: Channel, lane: int = 0, part: int = 0) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two ranks, and the mailbox at its end.

        Args:
            channel: its ends and purpose; the links follow from the route.
            lane: distinguishes flows of one collective between the same two ranks.
            part: distinguishes collectives of one stage.
        """
        key = (channel.sender, channel.receiver, channel.kind, channel.stage, lane, part)
        if key not in self._flows:
            mailbox = self._mailbox(channel)
            self._flows[key] = (self._open(channel, mailbox.put), mailbox)
        return self._flows[key]

    def pipeline_flow(self, sender: int, receiver: int, purpose: Purpose) -> Flow:
        """A new flow of pipeline messages of one purpose between two ranks; they arrive in the receiver's inbox."""
        put: Put = self.inboxes[receiver, purpose].put
        if self._receipts:
            put = _both(put, self.outboxes[sender, purpose].put)
        return self._open(Channel(sender, receiver, purpose, purpose.name), put)

    def of_collectives(self) -> Iterator[tuple[tuple[Channel, int, int], Flow]]:
        """The flows of collectives, with what they were opened for: arguments of `flow`."""
        channels = {flow: channel for channel, flow in self._opened}
        for (*_, lane, part), (flow, _) in self._flows.items():
            yield (channels[flow], lane, part), flow

    def sent(self) -> dict[str, int]:
        """Totals sent by GPUs and hosts, and the bytes that switches forward.

        The former are messages, payload bytes by the purposes' counters, and bytes of a lossy codec's scales.
        """
        totals = dict.fromkeys(("messages", "bytes_scales", "bytes_switched"), 0)
        totals |= dict.fromkeys((purpose.counter for purpose in PURPOSES), 0)
        for channel, flow in self._opened:
            if channel.sender >= self._fabric.gpus:
                totals["bytes_switched"] += flow.bytes
                continue
            totals["messages"] += flow.messages
            totals["bytes_scales"] += flow.scales
            totals[channel.purpose.counter] += flow.bytes - flow.scales
        return totals

    def carried(self) -> dict[str, int]:
        """Bytes sent over each link."""
        totals: dict[str, int] = {}
        for _, flow in self._opened:
            for hop in flow.hops:
                name = hop.link.spec.name
                totals[name] = totals.get(name, 0) + flow.bytes
        return totals

    def between(self) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
        """Bytes and messages sent from each rank or server to each other."""
        size, messages = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        for channel, flow in self._opened:
            size[channel.sender, channel.receiver] += flow.bytes
            messages[channel.sender, channel.receiver] += flow.messages
        return size, messages

    def begin(self, rank: int, members: Sequence[int] = ()) -> None:
        """Attribute the processes started next to a rank or, with the group's members, to a server.

        That matters where ranks stand for others.
        """

    def simulates(self, rank: int) -> bool:
        """Whether a rank is simulated; if not, another stands for it."""
        return True

    def serves(self, server: int, members: Sequence[int]) -> bool:
        """Whether a server of a group of ranks is simulated."""
        return True

    def arrival(self) -> Arrival:
        """A new event, to be booked for a known time."""
        return Arrival.of(self.env)

    def check_empty(self) -> None:
        """Check that every message was received.

        Raises:
            SimulationError: some were not.
        """
        if self.unread:
            raise SimulationError(f"{self.unread} messages were sent but never received")

    @property
    def unread(self) -> int:
        """The number of messages that have not been received yet."""
        unread = sum(box.unread() for box in (*self.inboxes.values(), *self.outboxes.values()))
        return unread + sum(mailbox.unread() for _, mailbox in self._flows.values())

    def _simulated(self, members: Sequence[int]) -> int:
        """How many of these ranks are simulated."""
        return len(members)

    def _mailbox(self, channel: Channel) -> Mailbox:
        return self.make(Mailbox)

    def _open(self, channel: Channel, put: Put) -> Flow:
        flow = self._flow(channel, put)
        self._opened.append((channel, flow))
        return flow

    def _flow(self, channel: Channel, put: Put) -> Flow:
        priority = 0 if self._priority is None else self._priority(channel.purpose)
        flow = self.links.sharing.flow(self._hops(channel), put, self._trace.messages, priority)
        pace = channel.pace
        return flow if pace is None or pace.bandwidth is None else flow.paced(self._pace(pace.bandwidth))

    def _hops(self, channel: Channel) -> tuple[Hop, ...]:
        route = self._fabric.route(channel.sender, channel.receiver)
        latencies = route.latencies if channel.pace is None else channel.pace.latencies(route)
        return tuple(
            Hop(self.links[name], latency, self._trace.channel(channel.on(name, hop, latency)))
            for hop, (name, latency) in enumerate(zip(route.links, latencies, strict=True))
        )


def _both(this: Put, other: Put) -> Put:
    """Deliver each message to both."""

    def put(message: Message, tag: int, at: int) -> None:
        this(message, tag, at)
        other(message, tag, at)

    return put


def step_label(step: int) -> int:
    """The tag that a collective's messages carry in a training step."""
    return step << STEP_SHIFT


class Flows(dict[tuple[int, Purpose], Flow]):
    """(pipeline peer, purpose) → the flow of these messages to it, opened on first use."""

    __slots__ = ("_pipeline", "_rank", "_transport")

    def __init__(self, transport: Transport, rank: int, pipeline: Sequence[int]) -> None:
        self._transport, self._rank, self._pipeline = transport, rank, pipeline

    def __missing__(self, key: tuple[int, Purpose]) -> Flow:
        peer, purpose = key
        flow = self[key] = self._transport.pipeline_flow(self._rank, self._pipeline[peer], purpose)
        return flow


class Endpoint:
    """One GPU's endpoint of the network.

    Attributes:
        rank: its rank.
        pipeline: the ranks of its pipeline, in order; none for a server.
        inboxes: by purpose, the pipeline messages that arrive here.
        flows: the flows of pipeline messages from here.
    """

    def __init__(self, transport: Transport, rank: int, pipeline: Sequence[int]) -> None:
        self.rank = rank
        self.pipeline = pipeline
        purposes = (ACTIVATION, GRADIENT) if len(pipeline) > 1 else ()
        self.inboxes = {purpose: transport.inboxes[rank, purpose] for purpose in purposes}
        self.flows = Flows(transport, rank, pipeline)
        self._transport = transport

    def receipts(self, purpose: Purpose) -> TaggedMailbox:
        """The receipts of its own messages that have arrived, if the transport issues receipts."""
        return self._transport.outboxes[self.rank, purpose]

    def handoff(self) -> Handoff:
        """A queue between two streams of this GPU."""
        return self._transport.make(Handoff)
