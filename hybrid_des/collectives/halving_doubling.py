"""All-reduces between partners at distances that are powers of two: recursive halving-doubling, recursive doubling.

    Halving-doubling (Rabenseifner; Thakur et al., IJHPCA 2005)

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

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Annotated, Literal, NamedTuple

from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.permutation import Permutation, differing_buckets, exchange, in_pairs
from hybrid_des.collectives.registration import TWO_PHASES, CallSize, collective
from hybrid_des.options import Options, choice


class Partners(Options):
    """Order of the partners."""

    partner: Annotated[Literal["nearest", "farthest"], choice("nearest", "farthest")] = "nearest"
    """The partner with which halves of the buffer are exchanged first."""


def in_halves(permutation: Permutation, options: Partners) -> str:
    """Images exchange partners, and with them their parts of the buffer."""
    members, turn = len(permutation.places), exchange(permutation.places) or 0
    if options.partner == "nearest":
        turn = _reversed(turn, members.bit_length() - 1)
    return in_pairs(permutation) or differing_buckets(permutation, turn)


def of_rounds(call: CallSize, *options: Partners) -> int:
    """The messages of a member that exchanges one with every partner."""
    return call.ranks.bit_length()


@collective(
    "halving-doubling", summary="reduce-scatter by halving, all-gather by doubling", options=Partners, images=in_halves,
    messages=of_rounds, phases=TWO_PHASES, halves=("halving-reduce-scatter", "doubling-all-gather"),
)  # fmt: skip
def halving_doubling(group: Group, buffer: Buffer, options: Partners) -> Routine:
    """All-reduce `buffer` over the group."""
    return _exchanges(group, buffer, options)


@collective(
    "halving-reduce-scatter", summary="every rank ends with the sum of one shard, by halving", does="reduce-scatter",
    options=Partners, images=in_halves, messages=of_rounds, phases=TWO_PHASES[:1],
)  # fmt: skip
def halving_reduce_scatter(group: Group, buffer: Buffer, options: Partners) -> Routine:
    """Leave every rank with the sum of its own shard of `buffer`; other shards are undefined."""
    return _exchanges(group, buffer, options, double=False)


@collective(
    "doubling-all-gather", summary="every rank's shard ends on all ranks, by doubling", does="all-gather",
    options=Partners, images=in_halves, messages=of_rounds, phases=TWO_PHASES[1:],
)  # fmt: skip
def doubling_all_gather(group: Group, buffer: Buffer, options: Partners) -> Routine:
    """Distribute every rank's shard, as `halving_reduce_scatter` leaves it, to all ranks."""
    return _exchanges(group, buffer, options, halve=False)


def _exchanges(group: Group, buffer: Buffer, options: Partners, *, halve: bool = True, double: bool = True) -> Routine:
    """Both halves or one; an excess rank, the guest of its neighbour, has a shard of its own where only one runs."""
    core, own, first = _places(group.size, options.partner == "nearest", not (halve and double))
    shards = buffer.split(first[-1])

    def exchange() -> Routine:
        position = core.index(group.me)
        if halve:
            yield from _halve(group, shards, core, position, first)
        if double:
            shards.finish(own[group.me])
            yield from _double(group, shards, core, position, first)

    return with_guests(group, shards, exchange(), own, halve=halve, double=double)


class Places(NamedTuple):
    """The places of an exchange.

    Attributes:
        core: the member in each place.
        own: member → its shard.
        first: the first shard of each place, then the number of shards.
    """

    core: Sequence[int]
    own: Mapping[int, int]
    first: Sequence[int]


@lru_cache(maxsize=64)
def _places(members: int, nearest: bool, own_shards: bool) -> Places:
    """The places of an exchange, the same for all its members.

    Args:
        members: their number.
        nearest: whether halving begins with the nearest partner.
        own_shards: whether an excess member has a shard of its own.
    """
    core, paired = core_of(members)
    if nearest:  # halving begins with the farthest of places whose bits are reversed
        core = [core[_reversed(place, len(core).bit_length() - 1)] for place in range(len(core))]
    held = [(member ^ 1, member) if own_shards and member < paired else (member,) for member in core]
    own = {member: shard for shard, member in enumerate(chain.from_iterable(held))}
    return Places(core, own, [0, *accumulate(map(len, held))])


def with_guests(
    group: Group,
    pieces: Pieces,
    exchange: Routine,
    own: Mapping[int, int] = {},
    *,
    halve: bool = True,
    double: bool = True,
) -> Routine:
    """Run an exchange that needs a power-of-two number of members.

    Of the first 2(n − 2^k) members, every odd one also represents the even one before it, its guest. The others run the
    exchange. Guests bring their whole buffer, or with `halve` false their `own` finished piece, and receive all
    finished pieces, or with `double` false the sum of their own.
    """
    core, paired = core_of(group.size)
    partner, count = group.me ^ 1, len(pieces.elements)
    if group.me not in core:
        group.to(partner).send(pieces.encode_span(0, count) if halve else pieces.finish(own[group.me]))
        message = yield group.from_(partner).receive()
        if double:
            pieces.unpack(0, count, message)
        else:
            pieces.put(own[group.me], message)
        return
    if group.me < paired:
        message = yield group.from_(partner).receive()
        if halve:
            pieces.add_span(0, count, message)
        else:
            pieces.put(own[partner], message)
    yield from exchange
    if group.me < paired:
        group.to(partner).send(pieces.pack(0, count) if double else pieces.encode(own[partner]))


def core_of(members: int) -> tuple[list[int], int]:
    """The 2^k members of a group that are no guests, and the number of first members that form pairs with one."""
    extra = members - (1 << members.bit_length() - 1)
    return [*range(1, 2 * extra, 2), *range(2 * extra, members)], 2 * extra


def _halve(group: Group, shards: Pieces, core: Sequence[int], position: int, first: Sequence[int]) -> Routine:
    """Exchange halves, then quarters, …, until a place has the sum of its shards, the `first` one up to the next's."""
    distance = len(core) // 2
    while distance:
        peer = position ^ distance
        mine, theirs = (start // distance * distance for start in (position, peer))
        group.to(core[peer]).send(shards.encode_span(first[theirs], first[theirs + distance]))
        shards.add_span(first[mine], first[mine + distance], (yield group.from_(core[peer]).receive()))
        distance //= 2


def _double(group: Group, shards: Pieces, core: Sequence[int], position: int, first: Sequence[int]) -> Routine:
    """Exchange finished shards, then twice as many, …, until a place has all."""
    distance = 1
    while distance < len(core):
        peer = position ^ distance
        mine, theirs = (start // distance * distance for start in (position, peer))
        group.to(core[peer]).send(shards.pack(first[mine], first[mine + distance]))
        shards.unpack(first[theirs], first[theirs + distance], (yield group.from_(core[peer]).receive()))
        distance *= 2


def _reversed(number: int, bits: int) -> int:
    """A number with its bits in reverse order."""
    return int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
