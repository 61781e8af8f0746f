"""Messages between GPUs: flows over routes, and the mailboxes in which they arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import STEP_SHIFT, Channel, Recorder
from hybrid_des.errors import SimulationError
from hybrid_des.network import sharing
from hybrid_des.network.fabric import Bandwidth, Fabric
from hybrid_des.network.link import Hop, Link, ServiceTimes
from hybrid_des.network.mailbox import Mailbox, Rendezvous, TaggedMailbox
from hybrid_des.network.message import Message
from hybrid_des.network.sharing import Flow


class Transport:
    """Every link, flow and mailbox of a run; each is made when it is first used."""

    def __init__(
        self, env: Environment, fabric: Fabric, sharing_name: str, trace: Recorder, receipts: bool = False
    ) -> None:
        self.env = env
        self._receipts = receipts
        self._fabric = fabric
        self._trace = trace
        self._sharing = sharing.find(sharing_name).build(env, trace.messages)
        self._times: dict[Bandwidth, ServiceTimes] = {}
        self._links: dict[str, Link] = {}
        self._flows: dict[tuple[int, int, str, int, int], tuple[Flow, Mailbox]] = {}
        self._pipeline: dict[tuple[int, int, str], Flow] = {}
        self._rendezvous: dict[tuple[str, int, int], Rendezvous] = {}
        self._inboxes: dict[int, TaggedMailbox] = {}
        self._outboxes: dict[int, TaggedMailbox] = {}

    def rendezvous(self, kind: str, stage: int, members: Sequence[int]) -> Rendezvous:
        """Where the members of a group meet when no link is to carry what they exchange."""
        key = (kind, stage, members[0])
        if key not in self._rendezvous:
            self._rendezvous[key] = Rendezvous(self.env, len(members))
        return self._rendezvous[key]

    def node_of(self, gpu: int) -> int:
        """The node in which a GPU is."""
        return self._fabric.node_of[gpu]

    def flow(
        self, sender: int, receiver: int, kind: str, stage: int, chunk: int, lane: int = 0
    ) -> tuple[Flow, Mailbox]:
        """The flow of a collective's messages between two GPUs, and the mailbox at its end.

        `chunk` is the sender's; `lane` tells the conversations of one collective apart.
        """
        key = (sender, receiver, kind, stage, lane)
        if key not in self._flows:
            mailbox = Mailbox(self.env)
            hops = self._hops(sender, receiver, kind, stage, chunk)
            self._flows[key] = (self._sharing.flow(hops, mailbox.put), mailbox)
        return self._flows[key]

    def pipeline_flow(self, sender: int, receiver: int, kind: str) -> Flow:
        """The flow of pipeline messages of one kind between two GPUs; they arrive in the receiver's inbox."""
        key = (sender, receiver, kind)
        if key not in self._pipeline:
            inbox, outbox = self.inbox(receiver), self.outbox(sender)

            def put(message: Message, tag: int, at: int) -> None:
                inbox.put(kind, message, tag, at)
                if self._receipts:
                    outbox.put(kind, message, tag, at)

            self._pipeline[key] = self._sharing.flow(self._hops(sender, receiver, kind, -1, -1), put)
        return self._pipeline[key]

    def inbox(self, rank: int) -> TaggedMailbox:
        """The mailbox of a GPU's pipeline messages."""
        if rank not in self._inboxes:
            self._inboxes[rank] = TaggedMailbox(self.env)
        return self._inboxes[rank]

    def outbox(self, rank: int) -> TaggedMailbox:
        """The receipts of a GPU's pipeline messages, for a sender that waits until they are through."""
        if rank not in self._outboxes:
            self._outboxes[rank] = TaggedMailbox(self.env)
        return self._outboxes[rank]

    def pipeline_flows(self) -> Iterator[Flow]:
        """Every flow of pipeline messages."""
        return iter(self._pipeline.values())

    def collective_flows(self) -> Iterator[Flow]:
        """Every flow of a collective."""
        return (flow for flow, _ in self._flows.values())

    def check_empty(self) -> None:
        """Hold, at the end of a run, that every message was read."""
        unread = sum(box.unread() for box in (*self._inboxes.values(), *self._outboxes.values()))
        unread += sum(mailbox.unread() for _, mailbox in self._flows.values())
        if unread:
            raise SimulationError(f"{unread} messages were sent but never received")

    def _hops(self, sender: int, receiver: int, kind: str, stage: int, chunk: int) -> tuple[Hop, ...]:
        route = self._fabric.route(sender, receiver)
        return tuple(
            Hop(self._link(name), latency, self._trace.channel(Channel(sender, receiver, kind, stage, chunk, name, i)))
            for i, (name, latency) in enumerate(zip(route.links, route.latencies, strict=True))
        )

    def _link(self, name: str) -> Link:
        if name not in self._links:
            spec = self._fabric.links[name]
            times = self._times.setdefault(spec.bandwidth, ServiceTimes(spec.bandwidth))
            self._links[name] = Link(spec, times)
        return self._links[name]


def step_label(step: int) -> int:
    """The tag that a collective's messages carry in a training step."""
    return step << STEP_SHIFT
