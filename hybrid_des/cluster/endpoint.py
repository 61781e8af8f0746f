"""One GPU's endpoint of the network: its inboxes, and its flows to the other ranks of its pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_des.cluster.mailbox import Handoff, TaggedMailbox
from hybrid_des.cluster.purposes import ACTIVATION, GRADIENT, Purpose
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.cluster.transport import Transport


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
