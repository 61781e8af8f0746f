"""All-to-all, direct: every rank has a piece for every other one (MPI_Alltoall; what experts of a mixture exchange).

    rank 0: piece 1 to rank 1, then 2 to 2, then 3 to 3       in round k everybody sends to the k-th on its right,
    rank 1: piece 2 to rank 2, then 3 to 3, then 0 to 0       so that no two meet at one port
    rank 2: …

On idle ports latency + (n−1)/n · S/bandwidth; every rank sends (n−1)/n · S bytes.
"""

from __future__ import annotations

from hybrid_des.collectives import collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine


@collective("all-to-all", summary="every rank sends every other one a piece of its own", does="all-to-all")
def all_to_all(group: Group, buffer: Buffer) -> Routine:
    """Put rank j's piece `me` in the place of piece j of `buffer`."""
    n, me = group.size, group.me
    pieces = buffer.split(n)
    for k in range(1, n):
        group.to((me + k) % n).send(pieces.encode((me + k) % n))
    for k in range(1, n):
        pieces.put((me - k) % n, (yield group.from_((me - k) % n).receive()))
