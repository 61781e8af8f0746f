"""Recursive halving-doubling all-reduce (Rabenseifner; Thakur et al., IJHPCA 2005).

    halving:   partners at distance n/2 exchange halves of the buffer, then quarters at n/4, …; each ends with one shard
    doubling:  the reverse; the number of finished shards per rank doubles with every exchange
    rank 5 of 8 = 101b exchanges with 1, then 7, then 4, and owns shard 5

On idle equal links 2 log2(n) · latency + 2(n−1)/n · S/bandwidth, if n is a power of two; every rank sends
2(n−1)/n · S bytes. Otherwise the excess ranks first send their buffers to a neighbour and finally receive the sum from
it: 2(latency + S/bandwidth) more, and longer under `fair`, where other ranks share the neighbour's port meanwhile.
Finished shards are forwarded as encoded by their owners.
"""

from functools import partial

from hybrid_des.collectives import collective
from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.recursive_doubling import folded


@collective("halving-doubling", summary="reduce-scatter by halving, all-gather by doubling")
def halving_doubling(group: Group, buffer: Buffer) -> Routine:
    """All-reduce `buffer` over the group."""
    n = 1 << group.size.bit_length() - 1
    shards = buffer.split(n)
    return folded(group, shards, n, partial(_swap, group, shards))


def _swap(group: Group, shards: Pieces, core: list[int], place: int) -> Routine:
    distance = len(core) // 2
    while distance:
        peer = place ^ distance
        theirs = peer // distance * distance
        group.to(core[peer]).send(shards.encode_span(theirs, theirs + distance))
        mine = place // distance * distance
        shards.add_span(mine, mine + distance, (yield group.from_(core[peer]).receive()))
        distance //= 2
    shards.finish(place)
    distance = 1
    while distance < len(core):
        peer = place ^ distance
        mine, theirs = (rank // distance * distance for rank in (place, peer))
        group.to(core[peer]).send(shards.pack(mine, mine + distance))
        shards.unpack(theirs, theirs + distance, (yield group.from_(core[peer]).receive()))
        distance *= 2
