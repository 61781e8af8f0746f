"""One GPU's ends of the network: its inboxes, and flows to the other ranks of its pipeline."""

from collections.abc import Sequence

from hybrid_des.network.mailbox import Handoff, TaggedMailbox
from hybrid_des.network.purpose import ACTIVATION, GRADIENT, Purpose
from hybrid_des.network.sharing import Flow
from hybrid_des.network.transport import Transport


class Endpoint:
    """One GPU's endpoint of the network.

    Attributes:
        rank: its global rank.
        inboxes: by purpose, the pipeline messages that arrive here.
    """

    def __init__(self, transport: Transport, rank: int, pipeline: Sequence[int]) -> None:
        """Give a GPU its ends; `pipeline` are the global ranks of its pipeline, in order."""
        self.rank = rank
        purposes = (ACTIVATION, GRADIENT) if len(pipeline) > 1 else ()
        self.inboxes = {purpose: transport.inbox(rank, purpose) for purpose in purposes}
        self._transport = transport
        self._pipeline = pipeline
        self._out: dict[tuple[int, Purpose], Flow] = {}

    def to(self, peer: int, purpose: Purpose) -> Flow:
        """The flow of messages of one purpose to another rank of the pipeline."""
        try:
            return self._out[peer, purpose]
        except KeyError:
            flow = self._out[peer, purpose] = self._transport.pipeline_flow(self.rank, self.rank_of(peer), purpose)
            return flow

    def receipts(self, purpose: Purpose) -> TaggedMailbox:
        """Messages of its own that have arrived, where the transport hands out receipts."""
        return self._transport.outbox(self.rank, purpose)

    def handoff(self) -> Handoff:
        """A queue between two streams of this GPU."""
        return self._transport.handoff()

    def rank_of(self, peer: int) -> int:
        """The global rank of a rank of the pipeline."""
        return self._pipeline[peer]
