"""Ring all-reduce: reduce-scatter, then all-gather, each n−1 steps around a ring (Patarasuk & Yuan, JPDC 2009).

    step 0: every rank sends piece `me` to its right neighbour and adds what comes from its left
    step k: it sends on the piece it has just added to; after n−1 steps rank i owns the sum of piece i+1
    then the owners' pieces travel once around, each forwarded unchanged

On idle equal links 2(n−1)(latency + S/(n·bandwidth)), half of it for each of the two; every rank sends 2(n−1)/n · S
bytes. The owner encodes its sum once and keeps what the others will decode, so all members end bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable

from hybrid_des.collectives import collective
from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.network.message import Message


@collective("ring", summary="reduce-scatter and all-gather around a ring")
def ring(group: Group, buffer: Buffer) -> Routine:
    """All-reduce `buffer` over the group."""
    pieces = buffer.split(group.size)
    yield from scatter(group, pieces)
    yield from gather(group, pieces.finish((group.me + 1) % group.size), pieces.put)


@collective("ring-reduce-scatter", summary="every rank ends with the sum of one piece", does="reduce-scatter")
def ring_reduce_scatter(group: Group, buffer: Buffer) -> Routine:
    """Leave rank i with the sum of piece i+1 of `buffer`; what it holds of the others is spent."""
    return scatter(group, buffer.split(group.size))


@collective("ring-all-gather", summary="every rank's piece ends on all ranks", does="all-gather")
def ring_all_gather(group: Group, buffer: Buffer) -> Routine:
    """Give all ranks piece i+1 of rank i's `buffer`."""
    pieces = buffer.split(group.size)
    return gather(group, pieces.finish((group.me + 1) % group.size), pieces.put)


def scatter(group: Group, pieces: Pieces) -> Routine:
    """Pass partial sums around, until rank i has that of piece i+1."""
    n, me = group.size, group.me
    if n == 1:
        return
    send, receive = group.to((me + 1) % n).send, group.from_((me - 1) % n).receive
    for k in range(n - 1):
        send(pieces.encode((me - k) % n))
        pieces.add((me - k - 1) % n, (yield receive()))


def gather(group: Group, message: Message, put: Callable[[int, Message], None]) -> Routine:
    """Pass finished pieces around, unchanged; rank i begins with `message`, which is piece i+1."""
    n, me = group.size, group.me
    if n == 1:
        return
    send, receive = group.to((me + 1) % n).send, group.from_((me - 1) % n).receive
    for k in range(n - 1):
        send(message)
        message = yield receive()
        put((me - k) % n, message)
