"""Ring all-reduce: reduce-scatter, then all-gather, each n−1 steps around a ring (Patarasuk & Yuan, JPDC 2009).

    step 0: every rank sends piece `me` to its right neighbour and adds what comes from its left
    step k: it sends on the piece it has just added to; after n−1 steps rank i owns the sum of piece i+1
    then the owners' pieces travel once around, each forwarded unchanged

On idle equal links 2(n−1)(latency + S/(n·bandwidth)); every rank sends 2(n−1)/n · S bytes.
The owner encodes its sum once and keeps what the others will decode, so all members end bit-identical.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from hybrid_des.collectives import Group, collective
from hybrid_des.collectives.buffer import Buffer


@collective("ring", summary="reduce-scatter and all-gather around a ring")
def ring(group: Group, buffer: Buffer) -> Generator[Any, Any, None]:
    """All-reduce `buffer` over the group."""
    n, me = group.size, group.me
    right, left = group.to((me + 1) % n), group.from_((me - 1) % n)
    pieces = buffer.split(n)
    for k in range(n - 1):
        right.send(pieces.encode((me - k) % n))
        pieces.add((me - k - 1) % n, (yield left.receive()))
    parcel = pieces.finish((me + 1) % n)
    for k in range(n - 1):
        right.send(parcel)
        parcel = yield left.receive()
        pieces.put((me - k) % n, parcel)
