"""Channels: the rings of a group that together use all adapters of its nodes.

With nodes of GPUs 0 1 2 and 3 4 5, one ring would leave a node through the adapter of one GPU. Three use all
adapters: 0 1 2 3 4 5, 1 2 0 4 5 3 and 2 0 1 5 3 4. A library such as NCCL runs them concurrently, with equal shares.

A group has one channel per adapter that it can use on each of its nodes: no more than it has members there, and no
more than there are different narrowest links on the way to the next node. Nodes with unequal numbers count as the
one with the fewest, as in NCCL's search (NVIDIA/nccl, src/graph/search.cc); a group on one node has one channel, or
as many as the links between its GPUs give (`cluster.linked`).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from hybrid_des.cluster.connections import in_blocks
from hybrid_des.cluster.fabric import Bandwidth, Fabric, by_node
from hybrid_des.cluster.linked import complete, path_of, rings_on
from hybrid_des.cluster.rate import rate_of

Ring = Sequence[int]


Turned = Callable[[Sequence[int], int, int], Sequence[int]]  # members, number and count of channels


LARGE = 2**20  # bytes; whose time on a link compares constant bandwidths with measured ones


def channels(fabric: Fabric, ranks: Sequence[int], count: int | None = None, *, tuned: bool = False) -> list[Ring]:
    """The rings of a group: its ranks, in the order of each channel.

    Args:
        fabric: the wiring.
        ranks: of the group; a ring of all of them in this order is the only channel if there is one.
        count: the number of channels; None: one per adapter that the group can use, or as its GPUs are linked.
        tuned: whether a library chooses them, which looks at links that the user gives; else they are a ring there.
    """
    return [[ranks[place] for place in ring] for ring in orders(fabric, ranks, count, tuned=tuned)]


def orders(fabric: Fabric, ranks: Sequence[int], count: int | None = None, *, tuned: bool = False) -> list[Ring]:
    """The channels as places in the group."""
    ranks = [*ranks]
    nodes = list(by_node(fabric.node_of[rank] for rank in ranks).values()) if count != 1 else []
    if len(nodes) == 1 and (fabric.linked == "mesh" or (fabric.linked and tuned)):
        return [*rings_on(fabric, ranks, count, shared=tuned)]
    turned = _turned
    if nodes and fabric.linked == "mesh" and complete(fabric, [ranks[place] for place in nodes[0]]):
        turned = _own_path
    count = count or _adapters(fabric, [[ranks[place] for place in places] for places in nodes], turned)
    if count == 1:
        return [range(len(ranks))]
    return [[place for places in nodes for place in turned(places, number, count)] for number in range(count)]


def _turned(members: Sequence[int], number: int, count: int) -> Sequence[int]:
    """The members on a node, in the order in which a channel visits them."""
    first = number * len(members) // count
    return [*members[first:], *members[:first]]


def _own_path(members: Sequence[int], number: int, count: int) -> Sequence[int]:
    """The same where all are linked: no two channels take the same link."""
    return path_of(members, number * len(members) // count)


def _adapters(fabric: Fabric, nodes: Sequence[Sequence[int]], turned: Turned) -> int:
    """The number of adapters that a group can use on every node."""
    most = min(map(len, nodes))
    if len(nodes) == 1 or most == 1:
        return 1
    different: dict[Any, tuple[Sequence[int], Sequence[int]]] = {}
    for here, there in pairwise([*nodes, nodes[0]]):
        both = (*here, *there)
        different[len(here), in_blocks(fabric, both) or both] = here, there
    return min(len(set(_crossed(fabric, *pair, most, turned))) for pair in different.values())


def _crossed(fabric: Fabric, here: Sequence[int], there: Sequence[int], rings: int, turned: Turned) -> Iterator[str]:
    """The narrowest link that each of some rings crosses between two nodes."""
    for number in range(rings):
        links = fabric.route(turned(here, number, rings)[-1], turned(there, number, rings)[0]).links
        yield max(links, key=lambda link: _time(fabric.links[link].bandwidth))


@lru_cache(maxsize=4096)
def _time(bandwidth: Bandwidth) -> int:
    return rate_of(bandwidth)[LARGE]
