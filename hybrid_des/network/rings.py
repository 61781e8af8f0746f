"""Channels: the rings of a group that together use all adapters of its nodes.

With nodes of GPUs 0 1 2 and 3 4 5, one ring would leave a node through the adapter of one GPU. Three use all adapters:
0 1 2 3 4 5, 1 2 0 4 5 3 and 2 0 1 5 3 4. A library such as NCCL runs them concurrently, with equal shares.
"""

from collections.abc import Sequence

from hybrid_des.network.fabric import Fabric

Ring = Sequence[int]


def channels(fabric: Fabric, ranks: Sequence[int]) -> list[list[int]]:
    """One ring per member that the group has on a node, each leaving a node through a different member's adapter.

    A group on one node, or with different numbers of members on its nodes, has one ring. All carry equal shares.
    """
    on: dict[int, list[int]] = {}
    for rank in ranks:
        on.setdefault(fabric.node_of[rank], []).append(rank)
    nodes = list(on.values())
    if len(nodes) == 1 or len({len(members) for members in nodes}) > 1:
        return [list(ranks)]
    return [[rank for members in nodes for rank in members[i:] + members[:i]] for i in range(len(nodes[0]))]
