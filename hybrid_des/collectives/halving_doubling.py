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

Each half is a collective of its own, with n shards for n ranks, also where n is no power of two: log2(n) · latency +
(n−1)/n · S/bandwidth on idle equal links if it is.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Literal

from hybrid_des.collectives import TWO_PHASES, collective
from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.recursive_doubling import core_of, folded
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
    phases=TWO_PHASES, halves=("halving-reduce-scatter", "doubling-all-gather"),
)  # fmt: skip
def halving_doubling(group: Group, buffer: Buffer, options: Partners) -> Routine:
    """All-reduce `buffer` over the group."""
    n = 1 << group.size.bit_length() - 1
    shards = buffer.split(n)

    def both(core: list[int], place: int) -> Routine:
        core, place = _ordered(core, place, options)
        yield from _halve(group, shards, core, place, range(n + 1))
        shards.finish(place)
        yield from _double(group, shards, core, place, range(n + 1))

    return folded(group, shards, n, both)


@collective(
    "halving-reduce-scatter", summary="every rank ends with the sum of one shard, by halving", does="reduce-scatter",
    options=Partners, images=in_halves, phases=TWO_PHASES[:1],
)  # fmt: skip
def halving_reduce_scatter(group: Group, buffer: Buffer, options: Partners) -> Routine:
    """Leave every rank with the sum of its own shard of `buffer`; other shards are undefined.

    One that represents a guest sends it the sum of its shard at the end: latency + S/(n·bandwidth) more.
    """
    n, shards, partner = group.size, buffer.split(group.size), group.me ^ 1
    core, paired = core_of(n)
    own, first = _shards_of(core, paired, options)
    if group.me not in core:
        group.to(partner).send(shards.encode_span(0, n))
        shards.put(own[group.me], (yield group.from_(partner).receive()))
        return
    if group.me < paired:
        shards.add_span(0, n, (yield group.from_(partner).receive()))
    yield from _halve(group, shards, *_ordered(core, core.index(group.me), options), first)
    if group.me < paired:
        group.to(partner).send(shards.encode(own[partner]))


@collective(
    "doubling-all-gather", summary="every rank's shard ends on all ranks, by doubling", does="all-gather",
    options=Partners, images=in_halves, phases=TWO_PHASES[1:],
)  # fmt: skip
def doubling_all_gather(group: Group, buffer: Buffer, options: Partners) -> Routine:
    """Distribute every rank's shard, as `halving_reduce_scatter` leaves it, to all ranks."""
    n, shards, partner = group.size, buffer.split(group.size), group.me ^ 1
    core, paired = core_of(n)
    own, first = _shards_of(core, paired, options)
    mine = shards.finish(own[group.me])
    if group.me not in core:
        group.to(partner).send(mine)
        shards.unpack(0, n, (yield group.from_(partner).receive()))
        return
    if group.me < paired:
        shards.put(own[partner], (yield group.from_(partner).receive()))
    yield from _double(group, shards, *_ordered(core, core.index(group.me), options), first)
    if group.me < paired:
        group.to(partner).send(shards.pack(0, n))


def _shards_of(core: list[int], paired: int, options: Partners) -> tuple[dict[int, int], Sequence[int]]:
    """The shard of every member, and the first shard of each place of the core: guests' are next to their partners'."""
    order, _ = _ordered(core, 0, options)
    held = [(rank ^ 1, rank) if rank < paired else (rank,) for rank in order]
    own = {rank: shard for shard, rank in enumerate(rank for ranks in held for rank in ranks)}
    return own, [0, *accumulate(map(len, held))]


def _ordered(core: list[int], place: int, options: Partners) -> tuple[list[int], int]:
    """The core and a place in it, such that halving begins with the farthest: places with reversed bits, if nearest."""
    if options.partner == "farthest":
        return core, place
    bits = len(core).bit_length() - 1
    reverse = [_reversed(number, bits) for number in range(len(core))]
    return [core[number] for number in reverse], reverse[place]


def _halve(group: Group, shards: Pieces, core: list[int], place: int, first: Sequence[int]) -> Routine:
    """Exchange halves, then quarters, …, until a place has the sum of its shards, the `first` one up to the next's."""
    distance = len(core) // 2
    while distance:
        peer = place ^ distance
        mine, theirs = (start // distance * distance for start in (place, peer))
        group.to(core[peer]).send(shards.encode_span(first[theirs], first[theirs + distance]))
        shards.add_span(first[mine], first[mine + distance], (yield group.from_(core[peer]).receive()))
        distance //= 2


def _double(group: Group, shards: Pieces, core: list[int], place: int, first: Sequence[int]) -> Routine:
    """Exchange finished shards, then twice as many, …, until a place has all."""
    distance = 1
    while distance < len(core):
        peer = place ^ distance
        mine, theirs = (start // distance * distance for start in (place, peer))
        group.to(core[peer]).send(shards.pack(first[mine], first[mine + distance]))
        shards.unpack(first[theirs], first[theirs + distance], (yield group.from_(core[peer]).receive()))
        distance *= 2


def _reversed(number: int, bits: int) -> int:
    """A number with its bits in reverse order."""
    return int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
