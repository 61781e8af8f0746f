"""Tags of the messages of execution traces, made unique."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybrid_des.engine.recorder import FIELD, STAGE_SHIFT
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.graph import RECEIVE, SEND, Node, RankTrace


class Tags:
    """The tags of messages: each is unique at its receiver, since mailboxes are read by tag.

    Tags of traces are kept if they are, and are numbers of a stage and a micro-batch; else messages are numbered by
    receiver, the n-th between two ranks of a tag being the n-th that is received.
    """

    def __init__(self, traces: Sequence[RankTrace]) -> None:
        received = [(node.peer, rank, node.tag) for rank, node in nodes_of(traces, RECEIVE)]
        sent = [(rank, node.peer, node.tag) for rank, node in nodes_of(traces, SEND)]
        self._check(sent, received, traces)
        at = [(receiver, tag) for _, receiver, tag in received]
        self._kept = len(set(at)) == len(at) and all(0 <= tag < 1 << 2 * STAGE_SHIFT for _, tag in at)
        numbers: dict[int, int] = {}
        self._number: dict[tuple[int, int, int, int], int] = {}
        seen: dict[tuple[int, int, int], int] = {}
        for key in received:
            turn = seen[key] = seen.get(key, -1) + 1
            receiver = key[1]
            number = numbers[receiver] = numbers.get(receiver, -1) + 1
            self._number[(*key, turn)] = number // FIELD << STAGE_SHIFT | number % FIELD

    def __call__(self, sender: int, receiver: int, tag: int, turn: int) -> int:
        """The tag of the n-th message between two ranks with a tag of the trace."""
        return tag if self._kept else self._number[sender, receiver, tag, turn]

    @staticmethod
    def _check(
        sent: Sequence[tuple[int, int, int]], received: Sequence[tuple[int, int, int]], traces: Sequence[RankTrace]
    ) -> None:
        """Refuse messages that are only sent, or only received."""
        counts: dict[tuple[int, int, int], int] = {}
        for key in sent:
            counts[key] = counts.get(key, 0) + 1
        for key in received:
            counts[key] = counts.get(key, 0) - 1
        for (sender, receiver, tag), more in counts.items():
            if more:
                side, other = ("sent", "received") if more > 0 else ("received", "sent")
                place = traces[min(sender if more > 0 else receiver, len(traces) - 1)].source
                raise UsageError(
                    f"{place}: a message from rank {sender} to rank {receiver} with tag {tag} is {side}, "
                    f"but not {other}"
                )


def nodes_of(traces: Sequence[RankTrace], kind: str) -> Iterable[tuple[int, Node]]:
    """The nodes of a kind, each with its rank."""
    return ((rank, node) for rank, trace in enumerate(traces) for node in trace.nodes if node.kind == kind)
