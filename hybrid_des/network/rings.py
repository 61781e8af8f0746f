"""Channels: the rings of a group that together use all adapters of its nodes.

With nodes of GPUs 0 1 2 and 3 4 5, one ring would leave a node through the adapter of one GPU. Three use all adapters:
0 1 2 3 4 5, 1 2 0 4 5 3 and 2 0 1 5 3 4. A library such as NCCL runs them concurrently, with equal shares.

A group has one channel per adapter that it can use on each of its nodes: no more than it has members there, and no more
than there are different narrowest links on the way to the next node. Nodes with unequal numbers count as the one with
the fewest, as in NCCL's search (NVIDIA/nccl, src/graph/search.cc); a group on one node has one channel.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from hybrid_des.network.fabric import Bandwidth, Fabric
from hybrid_des.network.rate import rate_of
from hybrid_des.network.symmetry import in_blocks

Ring = Sequence[int]
LARGE = 2**20  # bytes; whose time on a link compares constant bandwidths with measured ones


def channels(fabric: Fabric, ranks: Sequence[int], count: int | None = None) -> list[Ring]:
    """The rings of a group: its ranks, in the order of each channel.

    Args:
        fabric: the wiring.
        ranks: of the group; a ring of all of them in this order is the only channel if there is one.
        count: the number of channels; None: one per adapter that the group can use.
    """
    return [[ranks[place] for place in ring] for ring in orders(fabric, ranks, count)]


def orders(fabric: Fabric, ranks: Sequence[int], count: int | None = None) -> list[Ring]:
    """The channels as places in the group."""
    on: dict[int, list[int]] = {}
    if count != 1:
        for place, rank in enumerate(ranks):
            on.setdefault(fabric.node_of[rank], []).append(place)
    nodes = list(on.values())
    count = count or _adapters(fabric, [[ranks[place] for place in places] for places in nodes])
    if count == 1:
        return [range(len(ranks))]
    return [[place for places in nodes for place in _turned(places, number, count)] for number in range(count)]


def _turned(members: Sequence[int], number: int, count: int) -> Sequence[int]:
    """The members on a node, in the order in which a channel visits them."""
    first = number * len(members) // count
    return [*members[first:], *members[:first]]


def _adapters(fabric: Fabric, nodes: Sequence[Sequence[int]]) -> int:
    """The number of adapters that a group can use on every node."""
    most = min(map(len, nodes))
    if len(nodes) == 1 or most == 1:
        return 1
    different: dict[Any, tuple[Sequence[int], Sequence[int]]] = {}
    for here, there in pairwise([*nodes, nodes[0]]):
        both = (*here, *there)
        different[len(here), in_blocks(fabric, both) or both] = here, there
    return min(len(set(_crossed(fabric, *pair, most))) for pair in different.values())


def _crossed(fabric: Fabric, here: Sequence[int], there: Sequence[int], rings: int) -> Iterator[str]:
    """The narrowest link that each of some rings crosses between two nodes."""
    for number in range(rings):
        links = fabric.route(_turned(here, number, rings)[-1], _turned(there, number, rings)[0]).links
        yield max(links, key=lambda link: _time(fabric.links[link].bandwidth))


@cache
def _time(bandwidth: Bandwidth) -> int:
    return rate_of(bandwidth)[LARGE]
