"""One GPU's ends of the network: its inbox, and flows to the other ranks of its pipeline."""

from collections.abc import Sequence

from hybrid_des.network.mailbox import Handoff, TaggedMailbox
from hybrid_des.network.purpose import Purpose
from hybrid_des.network.sharing import Flow
from hybrid_des.network.transport import Transport


class Endpoint:
    """One GPU's endpoint of the network.

    Attributes:
        rank: its global rank.
        inbox: pipeline messages that arrive here.
        receipts: pipeline messages of its own that have arrived, where the transport hands out receipts.
    """

    def __init__(self, transport: Transport, rank: int, pipeline: Sequence[int]) -> None:
        """Give a GPU its ends; `pipeline` are the global ranks of its pipeline, in order."""
        self.rank = rank
        self.inbox: TaggedMailbox = transport.inbox(rank)
        self.receipts: TaggedMailbox = transport.outbox(rank)
        self._transport = transport
        self._pipeline = pipeline
        self._out: dict[tuple[int, Purpose], Flow] = {}

    def to(self, peer: int, purpose: Purpose) -> Flow:
        """The flow of messages of one purpose to another rank of the pipeline."""
        key = (peer, purpose)
        if key not in self._out:
            self._out[key] = self._transport.pipeline_flow(self.rank, self.rank_of(peer), purpose)
        return self._out[key]

    def handoff(self) -> Handoff:
        """A queue between two streams of this GPU."""
        return self._transport.handoff()

    def rank_of(self, peer: int) -> int:
        """The global rank of a rank of the pipeline."""
        return self._pipeline[peer]
