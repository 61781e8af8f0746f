"""A GPU's endpoint of the network: its inbox, and flows to its pipeline neighbours."""

from __future__ import annotations

from hybrid_des.network.mailbox import TaggedMailbox
from hybrid_des.network.purpose import Purpose
from hybrid_des.network.sharing import Flow
from hybrid_des.network.transport import Transport


class Endpoint:
    """One GPU's endpoint of the network.

    Attributes:
        inbox: pipeline messages sent to it.
        receipts: pipeline messages it has sent that have arrived, if the transport gives receipts.
    """

    def __init__(self, network: Transport, rank: int) -> None:
        self._network = network
        self._rank = rank
        self.inbox: TaggedMailbox = network.inbox(rank)
        self.receipts: TaggedMailbox = network.outbox(rank)
        self._out: dict[tuple[int, str], Flow] = {}

    def to(self, receiver: int, purpose: Purpose) -> Flow:
        """The flow of pipeline messages of one purpose to another GPU."""
        key = (receiver, purpose.name)
        if key not in self._out:
            self._out[key] = self._network.pipeline_flow(self._rank, receiver, purpose)
        return self._out[key]
