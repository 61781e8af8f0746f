"""Recursive doubling all-reduce: whole buffers between partners at distance 1, 2, 4, … (Thakur et al., IJHPCA 2005).

    0 ⇄ 1   2 ⇄ 3   4 ⇄ 5   6 ⇄ 7      all hold the sum of two
    0 ⇄ 2   1 ⇄ 3   4 ⇄ 6   5 ⇄ 7      of four
    0 ⇄ 4   1 ⇄ 5   2 ⇄ 6   3 ⇄ 7      of eight

On idle equal links log2(n) · (latency + S/bandwidth); every rank sends log2(n) · S bytes. If n is not a power of two,
the excess ranks first send their buffers to a neighbour and finally receive the sum from it: at most
2(latency + S/bandwidth) more, and longer under `fair`, where other ranks share the neighbour's port meanwhile. A rank
also rounds its own sum through the codec, so that both partners reduce the same two values.
"""

from __future__ import annotations

from hybrid_des.collectives import collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine


@collective("recursive-doubling", summary="whole buffers between partners at distance 1, 2, 4, …")
def recursive_doubling(group: Group, buffer: Buffer) -> Routine:
    """All-reduce `buffer` over the group."""
    whole = buffer.split(1)
    core, place = folded(group)
    partner = group.me ^ 1
    if place is None:
        group.to(partner).send(whole.encode(0))
        whole.put(0, (yield group.from_(partner).receive()))
        return
    has_guest = group.me < 2 * (group.size - len(core))
    if has_guest:
        whole.add(0, (yield group.from_(partner).receive()))
    distance = 1
    while distance < len(core):
        peer = core[place ^ distance]
        group.to(peer).send(whole.finish(0) if distance == 1 else whole.agree(0))
        whole.add(0, (yield group.from_(peer).receive()))
        distance *= 2
    if len(core) < group.size:
        message = whole.agree(0)
        if has_guest:
            group.to(partner).send(message)


def folded(group: Group) -> tuple[list[int], int | None]:
    """A power-of-two subset of the members, and this one's place in it; None if a neighbour represents it.

    Of the first 2(n − 2^k) members, every odd one also represents the even one before it.
    """
    extra = group.size - (1 << group.size.bit_length() - 1)
    core = [*range(1, 2 * extra, 2), *range(2 * extra, group.size)]
    return core, core.index(group.me) if group.me in core else None
