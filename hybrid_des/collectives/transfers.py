"""Transfers: every member sends given sizes to some others at once, and waits for what it is sent.

0 ──► 3   2 MB
1 ──► 3   1 MB     3 waits for both, 0 and 1 for nothing; the sizes are those of a call, not of a buffer
"""

from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine

Sizes = tuple[tuple[int, int, int], ...]  # from, to (places in the group), bytes


def transfers(group: Group, buffer: Buffer, sizes: Sizes) -> Routine:
    """A member's part: what it sends leaves at once, the next place first, so that none is everybody's first."""
    mine = [(receiver, size) for sender, receiver, size in sizes if sender == group.me]
    for receiver, size in sorted(mine, key=lambda sent: (sent[0] - group.me) % group.size):
        group.to(receiver).send(Message(size))
    for sender, receiver, _ in sizes:
        if receiver == group.me:
            yield group.from_(sender).receive()
