"""Recursive doubling (Thakur et al., IJHPCA 2005): whole buffers between partners at distance 1, 2, 4 and so on.

    0 ⇄ 1   2 ⇄ 3   4 ⇄ 5   6 ⇄ 7      all hold the sum of two
    0 ⇄ 2   1 ⇄ 3   4 ⇄ 6   5 ⇄ 7      of four
    0 ⇄ 4   1 ⇄ 5   2 ⇄ 6   3 ⇄ 7      of eight

On idle equal links log2(n) · (latency + S/bandwidth); every rank sends log2(n) · S bytes. If n is not a power of two,
the excess ranks first send their buffers to a neighbour and finally receive the sum from it: at most
2(latency + S/bandwidth) more, and longer under `fair`, where other ranks share the neighbour's port meanwhile. A rank
also rounds its own sum through the codec, so that both partners reduce the same two values.
"""

from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.halving_doubling import core_of, of_rounds, with_guests
from hybrid_des.collectives.permutation import in_pairs
from hybrid_des.collectives.registration import collective


@collective(
    "recursive-doubling", summary="whole buffers between partners at distance 1, 2, 4, …", images=in_pairs,
    phases=("exchange",), messages=of_rounds,
)  # fmt: skip
def recursive_doubling(group: Group, buffer: Buffer) -> Routine:
    """All-reduce `buffer` over the group."""
    whole, (core, _) = buffer.split(1), core_of(group.size)

    def exchange() -> Routine:
        distance, position = 1, core.index(group.me)
        while distance < len(core):
            peer = core[position ^ distance]
            group.to(peer).send(whole.finish(0) if distance == 1 else whole.agree(0))
            whole.add(0, (yield group.from_(peer).receive()))
            distance *= 2
        if len(core) < group.size:
            whole.agree(0)

    return with_guests(group, whole, exchange())
