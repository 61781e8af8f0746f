"""Recursive doubling all-reduce: whole buffers between partners at distance 1, 2, 4, … (Thakur et al., IJHPCA 2005).

    0 ⇄ 1   2 ⇄ 3   4 ⇄ 5   6 ⇄ 7      all hold the sum of two
    0 ⇄ 2   1 ⇄ 3   4 ⇄ 6   5 ⇄ 7      of four
    0 ⇄ 4   1 ⇄ 5   2 ⇄ 6   3 ⇄ 7      of eight

On idle equal links log2(n) · (latency + S/bandwidth); every rank sends log2(n) · S bytes. If n is not a power of two,
the excess ranks first send their buffers to a neighbour and finally receive the sum from it: at most
2(latency + S/bandwidth) more, and longer under `fair`, where other ranks share the neighbour's port meanwhile. A rank
also rounds its own sum through the codec, so that both partners reduce the same two values.
"""

from collections.abc import Callable

from hybrid_des.collectives import collective
from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.permutation import in_pairs


@collective(
    "recursive-doubling", summary="whole buffers between partners at distance 1, 2, 4, …", images=in_pairs,
    phases=("exchange",),
)  # fmt: skip
def recursive_doubling(group: Group, buffer: Buffer) -> Routine:
    """All-reduce `buffer` over the group."""
    whole = buffer.split(1)

    def exchange(core: list[int], place: int) -> Routine:
        distance = 1
        while distance < len(core):
            peer = core[place ^ distance]
            group.to(peer).send(whole.finish(0) if distance == 1 else whole.agree(0))
            whole.add(0, (yield group.from_(peer).receive()))
            distance *= 2
        if len(core) < group.size:
            whole.agree(0)

    return folded(group, whole, 1, exchange)


def folded(group: Group, pieces: Pieces, count: int, exchange: Callable[[list[int], int], Routine]) -> Routine:
    """Run an all-reduce of `count` pieces that needs a power-of-two number of members.

    Of the first 2(n − 2^k) members, every odd one also represents the even one before it, its guest. `exchange` is run
    by the 2^k non-guests, given their places in the group and this one's place among them; it finishes all pieces.
    """
    core, paired = core_of(group.size)
    partner, in_pair = group.me ^ 1, group.me < paired
    if group.me not in core:
        group.to(partner).send(pieces.encode_span(0, count))
        pieces.unpack(0, count, (yield group.from_(partner).receive()))
        return
    if in_pair:
        pieces.add_span(0, count, (yield group.from_(partner).receive()))
    if len(core) > 1:
        yield from exchange(core, core.index(group.me))
    if in_pair:
        group.to(partner).send(pieces.pack(0, count))


def core_of(members: int) -> tuple[list[int], int]:
    """The 2^k members of a group that are no guests, and the number of first members that form pairs with one."""
    extra = members - (1 << members.bit_length() - 1)
    return [*range(1, 2 * extra, 2), *range(2 * extra, members)], 2 * extra
