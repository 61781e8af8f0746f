"""Direct all-to-all: every rank has a shard for every other (MPI_Alltoall; token exchange in mixtures of experts).

    rank 0: shard 1 to rank 1, then 2 to 2, then 3 to 3       in round k every rank sends to its k-th right neighbour,
    rank 1: shard 2 to rank 2, then 3 to 3, then 0 to 0       so that no two use the same port
    rank 2: …

On idle ports latency + (n−1)/n · S/bandwidth; every rank sends (n−1)/n · S bytes.
"""

from hybrid_des.collectives import collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine


@collective("all-to-all", summary="every rank sends a different shard to every other rank", does="all-to-all")
def all_to_all(group: Group, buffer: Buffer) -> Routine:
    """Replace shard j of `buffer` with shard `me` of rank j."""
    n, me = group.size, group.me
    shards = buffer.split(n)
    for k in range(1, n):
        group.to((me + k) % n).send(shards.encode((me + k) % n))
    for k in range(1, n):
        shards.put((me - k) % n, (yield group.from_((me - k) % n).receive()))
