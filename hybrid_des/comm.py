"""What one GPU sees of the network: its inbox, streams to its pipeline neighbours, and its groups."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_des.network import Mailbox, Network, TaggedMailbox, step_label
from hybrid_des.sharing import Stream


class Group:
    """One GPU's place among the GPUs that work on a collective together.

    Attributes:
        members: global ranks of the group, in the group's order.
        me: this GPU's place in it.
        size: how many there are.
    """

    __slots__ = ("_chunk_of", "_in", "_kind", "_label", "_network", "_out", "_stage", "me", "members", "size")

    def __init__(
        self, network: Network, members: Sequence[int], me: int, kind: str, stage: int, chunk_of: Sequence[int]
    ) -> None:
        self.members = members
        self.me = me
        self.size = len(members)
        self._network = network
        self._kind = kind
        self._stage = stage
        self._chunk_of = chunk_of
        self._out: dict[int, Stream] = {}
        self._in: dict[int, Mailbox] = {}
        self._label = 0

    def to(self, peer: int) -> Stream:
        """The stream to another member, by its place in the group."""
        if peer not in self._out:
            ends = self.members[self.me], self.members[peer]
            stream, _ = self._network.stream(*ends, self._kind, self._stage, self._chunk_of[self.me])
            stream.label = self._label
            self._out[peer] = stream
        return self._out[peer]

    def from_(self, peer: int) -> Mailbox:
        """The mailbox of what another member sends here, by its place in the group."""
        if peer not in self._in:
            ends = self.members[peer], self.members[self.me]
            _, self._in[peer] = self._network.stream(*ends, self._kind, self._stage, self._chunk_of[peer])
        return self._in[peer]

    def begin(self, step: int) -> None:
        """Mark what is sent from now on as this training step's."""
        self._label = step_label(step)
        for stream in self._out.values():
            stream.label = self._label


class Comm:
    """One GPU's ends of the network.

    Attributes:
        inbox: pipeline messages that come to it.
        receipts: pipeline messages of its own that are through, where the network hands out receipts.
    """

    def __init__(self, network: Network, rank: int) -> None:
        self._network = network
        self._rank = rank
        self.inbox: TaggedMailbox = network.inbox(rank)
        self.receipts: TaggedMailbox = network.outbox(rank)

    def to(self, receiver: int, kind: str) -> Stream:
        """The stream of pipeline messages of one kind (activation, gradient) to another GPU."""
        return self._network.pipeline_stream(self._rank, receiver, kind)

    def group(self, members: Sequence[int], kind: str, stage: int, chunk_of: Sequence[int]) -> Group:
        """This GPU's place in a group; `chunk_of` says for each member which of its chunks the collective is for."""
        return Group(self._network, members, members.index(self._rank), kind, stage, chunk_of)
