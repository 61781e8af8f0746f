"""All-to-all, direct or once per node: every rank has a shard, or tokens for experts, for every other (MPI_Alltoall).

    rank 0: shard 1 to rank 1, then 2 to 2, then 3 to 3       in every round, each rank receives from one other, so that
    rank 1: shard 2 to rank 2, then 3 to 3, then 0 to 0       no two use the same port; over several nodes, those of a
    rank 2: …                                                 round are as many nodes, and places on a node, away

On idle ports latency + (n−1)/n · S/bandwidth; every rank sends (n−1)/n · S bytes. Order of rounds: NVIDIA/nccl,
src/init.cc (p2pSchedule).
"""

from collections.abc import Sequence
from functools import lru_cache

from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine, seats
from hybrid_des.collectives.registration import collective, to_all


@collective(
    "all-to-all", summary="every rank sends a different shard to every other rank", does="all-to-all", messages=to_all,
    direct=True,
)  # fmt: skip
def all_to_all(group: Group, buffer: Buffer) -> Routine:
    """Replace shard j of `buffer` with shard `me` of rank j."""
    n, me = group.size, group.me
    shards = buffer.shards(n, me)
    receivers, senders = rounds(group.nodes)[me]
    for peer in receivers:
        group.to(peer).send(shards.encode(peer))
    for peer in senders:
        shards.put(peer, (yield group.from_(peer).receive()))


@lru_cache(maxsize=64)
def rounds(nodes: tuple[int, ...]) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
    """For each place, whom it sends to and whom it receives from, round by round."""
    grid, at = seats(nodes)
    if len({len(places) for places in grid}) > 1:
        grid, at = seats([0] * len(nodes))
    away = [(far, near) for far in range(len(grid)) for near in range(len(grid[0]))][1:]

    def peers(member: int, sign: int) -> list[int]:
        node, index = at[member]
        return [grid[(node + sign * far) % len(grid)][(index + sign * near) % len(grid[0])] for far, near in away]

    return [(peers(place, 1), peers(place, -1)) for place in range(len(nodes))]
