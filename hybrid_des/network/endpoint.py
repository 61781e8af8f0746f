"""One GPU's endpoint of the network: its inboxes, and its flows to the other ranks of its pipeline."""

from collections.abc import Sequence

from hybrid_des.layout import Layout
from hybrid_des.network.mailbox import Handoff, TaggedMailbox
from hybrid_des.network.purpose import ACTIVATION, GRADIENT, Purpose
from hybrid_des.network.sharing import Flow
from hybrid_des.network.transport import Transport


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
        rank: its global rank.
        inboxes: by purpose, the pipeline messages that arrive here.
        flows: the flows of pipeline messages from here.
    """

    def __init__(self, transport: Transport, rank: int, pipeline: Sequence[int]) -> None:
        """Create a GPU's endpoint; `pipeline` lists the global ranks of its pipeline, in order."""
        self.rank = rank
        purposes = (ACTIVATION, GRADIENT) if len(pipeline) > 1 else ()
        self.inboxes = {purpose: transport.inbox(rank, purpose) for purpose in purposes}
        self.flows = Flows(transport, rank, pipeline)
        self._transport = transport
        self._pipeline = pipeline

    def receipts(self, purpose: Purpose) -> TaggedMailbox:
        """The receipts of its own messages that have arrived, if the transport issues receipts."""
        return self._transport.outbox(self.rank, purpose)

    def handoff(self) -> Handoff:
        """A queue between two streams of this GPU."""
        return self._transport.handoff()

    def rank_of(self, peer: int) -> int:
        """The global rank of a pipeline rank."""
        return self._pipeline[peer]


class Endpoints:
    """The endpoints of the GPUs of a run, each created on request.

    Args:
        transport: the network.
        layout: the ranks.
        pipeline: number of pipeline ranks.
    """

    def __init__(self, transport: Transport, layout: Layout, pipeline: int) -> None:
        self._transport, self._layout = transport, layout
        self._stride = layout.strides["pipeline"]
        self._length = pipeline * self._stride

    def of(self, rank: int) -> Endpoint:
        """A new endpoint of a global rank."""
        first = rank - self._layout.coordinate(rank, "pipeline") * self._stride
        return Endpoint(self._transport, rank, range(first, first + self._length, self._stride))

    def server(self, gpu: int) -> Endpoint:
        """A new endpoint of a server, which belongs to no pipeline."""
        return Endpoint(self._transport, gpu, ())
