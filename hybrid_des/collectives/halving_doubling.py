"""Recursive halving-doubling all-reduce (Rabenseifner; Thakur et al., IJHPCA 2005).

    halving:   partners at distance 1 exchange halves of the buffer, then quarters at distance 2, eighths at 4, …; each
               ends with one shard
    doubling:  the reverse; the number of finished shards per rank doubles with every exchange
    rank 3 of 8 = 011b exchanges with 2, then 1, then 7, and owns shard 110b

With `partner: farthest`, distances run from n/2 down to 1. Nearest first is the order of MPICH, in which the largest
messages stay within a node or a leaf.
On idle equal links 2 log2(n) · latency + 2(n−1)/n · S/bandwidth, if n is a power of two; every rank sends
2(n−1)/n · S bytes. Otherwise the excess ranks first send their buffers to a neighbour and finally receive the sum from
it: 2(latency + S/bandwidth) more, and longer where other ranks share the neighbour's port meanwhile: under `fair`, or
with the nearest first, since ranks without an excess partner are a step ahead (under `fifo` by S/(2·bandwidth) at most,
for 2 to 32 ranks). Finished shards are forwarded as encoded by their owners.
"""

from functools import partial
from typing import Annotated, Literal

from hybrid_des.collectives import TWO_PHASES, collective
from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.recursive_doubling import folded
from hybrid_des.collectives.seating import Seating, differing_buckets, exchange, in_pairs
from hybrid_des.options import Options, choice


class Partners(Options):
    """Order of the partners."""

    partner: Annotated[Literal["nearest", "farthest"], choice("nearest", "farthest")] = "nearest"
    """The partner with which halves of the buffer are exchanged first."""


def in_halves(seating: Seating, options: Partners) -> str:
    """Images exchange partners, and with them their parts of the buffer."""
    members, turn = len(seating.places), exchange(seating.places) or 0
    if options.partner == "nearest":
        turn = _reversed(turn, members.bit_length() - 1)
    return in_pairs(seating) or differing_buckets(seating, turn)


@collective(
    "halving-doubling", summary="reduce-scatter by halving, all-gather by doubling", options=Partners, images=in_halves,
    phases=TWO_PHASES,
)  # fmt: skip
def halving_doubling(group: Group, buffer: Buffer, options: Partners) -> Routine:
    """All-reduce `buffer` over the group."""
    n = 1 << group.size.bit_length() - 1
    shards = buffer.split(n)
    nearest = options.partner == "nearest"
    return folded(group, shards, n, partial(_nearest_first if nearest else _farthest_first, group, shards))


def _nearest_first(group: Group, shards: Pieces, core: list[int], place: int) -> Routine:
    """Run `_farthest_first` on places with their bits reversed."""
    bits = len(core).bit_length() - 1
    reverse = [_reversed(number, bits) for number in range(len(core))]
    return _farthest_first(group, shards, [core[number] for number in reverse], reverse[place])


def _farthest_first(group: Group, shards: Pieces, core: list[int], place: int) -> Routine:
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


def _reversed(number: int, bits: int) -> int:
    """A number with its bits in reverse order."""
    return int(f"{number:0{bits}b}"[::-1], 2)
