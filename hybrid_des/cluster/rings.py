"""Channels: the rings of a group that together use all adapters of its nodes.

With nodes of GPUs 0 1 2 and 3 4 5, one ring would leave a node through the adapter of one GPU. Three use all
adapters: 0 1 2 3 4 5, 1 2 0 4 5 3 and 2 0 1 5 3 4. A library such as NCCL runs them concurrently, with equal shares.

A group has one channel per adapter that it can use on each of its nodes: no more than it has members there, and no
more than there are different narrowest links on the way to the next node. Nodes with unequal numbers count as the
one with the fewest, as in NCCL's search (NVIDIA/nccl, src/graph/search.cc); a group on one node has one channel, or
as many as the links between its GPUs give.

On nodes whose GPUs are linked pair by pair, without a switch, there are as many as their links give, at full speed
each.

    DGX-1, 8 V100s, 6 NVLinks each: 6 rings, three Hamiltonian cycles in both directions
    8 MI300Xs, a link between each two: 7 rings; every ordered pair is in one of them
    4 A100s, 4 NVLinks between each two: 6 rings; every ordered pair is in two of them, with half of its links for each

NCCL and RCCL run such rings (NVIDIA/nccl, src/graph/search.cc; ROCm/rccl, src/graph/rome_models.cc, models of 7 links
per GPU). In a complete mesh of n GPUs, n − 1 share no link; if n is 4 or 6, one less (Tillson, "A Hamiltonian
decomposition of K*₂ₘ, 2m ≥ 8", 1980). NCCL's search goes on with half of the speed, at which every link carries two
rings, and keeps these if they are faster together (search.cc, ncclTopoCompute). Over several nodes every channel
crosses a node on a path of its own: the zigzag 0 1 −1 2 −2 …, turned, has each ordered pair once if n is even
(Williams, 1949).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from hybrid_des.cluster.connections import in_blocks
from hybrid_des.cluster.fabric import Bandwidth, Fabric, by_node
from hybrid_des.cluster.rate import rate_of

MOST_GPUS = 16  # of a node whose rings are searched for
MOST_STEPS = 20_000  # of the search for a number of rings

Pairs = Mapping[tuple[int, int], int]  # places of sender and receiver → links between them
Links = frozenset[tuple[tuple[int, int], int]]  # the same


def links_between(fabric: Fabric, gpus: Sequence[int]) -> tuple[Pairs, Fraction]:
    """The direct links between GPUs of a node, in units of the slowest one, and its bandwidth; none with a switch."""
    bandwidths: dict[tuple[int, int], Fraction] = {}
    for index, gpu in enumerate(gpus if fabric.linked and len(gpus) <= MOST_GPUS else ()):
        for other, peer in enumerate(gpus):
            names = fabric.route(gpu, peer).links if gpu != peer else ()
            if len(names) == 1 and isinstance(bandwidth := fabric.links[names[0]].bandwidth, Fraction):
                bandwidths[index, other] = bandwidth
    unit = min(bandwidths.values(), default=Fraction(0))
    return {pair: int(bandwidth / unit) for pair, bandwidth in bandwidths.items()}, unit


def rings_on(
    fabric: Fabric, gpus: Sequence[int], count: int | None = None, *, shared: bool = False
) -> list[Sequence[int]]:
    """The rings of GPUs on one node, as places; around all of them in order if no link is known.

    Args:
        fabric: the wiring.
        gpus: of the node.
        count: the number of rings, some of them repeated if there are not as many; None: as links allow.
        shared: whether two rings may share a link, at half of its speed each, if more of all links is used then.
    """
    pairs, _ = links_between(fabric, gpus)
    if not pairs:
        rings: Sequence[Sequence[int]] = [range(len(gpus))]
    else:
        links = frozenset(pairs.items())
        rings = _shared_rings(len(gpus), links) if _share(len(gpus), links, count, shared=shared) else ()
        rings = rings or _rings(len(gpus), links)
    return [rings[number % len(rings)] for number in range(count or len(rings))]


def rings_per_link(fabric: Fabric, gpus: Sequence[int], count: int) -> int:
    """How many of so many rings that may share links pass each of them."""
    links = frozenset(links_between(fabric, gpus)[0].items())
    return 2 if _share(len(gpus), links, count, shared=True) else 1


def _share(size: int, links: Links, count: int | None, *, shared: bool) -> bool:
    """Whether so many rings share links."""
    more = shared and (count is None or count > len(_rings(size, links)))
    return more and bool(_shared_rings(size, links))


def path_of(members: Sequence[int], first: int) -> Sequence[int]:
    """The members of a complete mesh, on the path from one of them that shares no link with those from others."""
    steps = (-(step // 2) if step % 2 == 0 else step // 2 + 1 for step in range(len(members)))
    return [members[(first + step) % len(members)] for step in steps]


def complete(fabric: Fabric, gpus: Sequence[int]) -> bool:
    """Whether there is a link from each of these to each."""
    return len(links_between(fabric, gpus)[0]) == len(gpus) * (len(gpus) - 1) > 0


@lru_cache(maxsize=4096)
def _rings(size: int, links: Links) -> tuple[Sequence[int], ...]:
    """As many rings as are found that share no link; around all in order if it is one."""
    return _most(size, links, above=1) or (range(size),)


@lru_cache(maxsize=4096)
def _shared_rings(size: int, links: Links) -> tuple[Sequence[int], ...]:
    """The rings of which two may share a link; none if they use no more of all links."""
    twice = frozenset((pair, 2 * count) for pair, count in links)
    return _most(size, twice, above=2 * len(_rings(size, links)))


def _most(size: int, links: Links, above: int) -> tuple[Sequence[int], ...]:
    """As many rings as are found, if they are more than some number."""
    degrees = [[count for pair, count in links if pair[end] == place] for end in (0, 1) for place in range(size)]
    searches = (_Search(size, dict(links), count).found for count in range(min(map(sum, degrees)), above, -1))
    return tuple(next(filter(None, searches), ()))


class _Search:
    """A search for so many rings that share no link, next always the place from which the fewest others are left.

    Attributes:
        found: the rings; empty if there are none, or none within the steps allowed.
    """

    def __init__(self, size: int, left: dict[tuple[int, int], int], count: int) -> None:
        self._size, self._left, self._count, self._steps = size, left, count, 0
        self.found: list[Sequence[int]] = []
        if not self._extended((0,)):
            self.found = []

    def _extended(self, path: tuple[int, ...]) -> bool:
        """Whether a path of the next ring, and all further rings, can be completed."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            return False
        if len(path) == self._size:
            return self._closed(path)
        return any(self._with(path[-1], other, (*path, other)) for other in self._after(path))

    def _closed(self, path: tuple[int, ...]) -> bool:
        if not self._left.get((path[-1], 0)):
            return False
        self.found.append(path)
        if self._with(path[-1], 0, None if len(self.found) == self._count else (0,)):
            return True
        self.found.pop()
        return False

    def _with(self, here: int, there: int, path: tuple[int, ...] | None) -> bool:
        """Whether it works out with one link less between two places; no path: nothing is left to do."""
        self._left[here, there] -= 1
        if path is None or self._extended(path):
            return True
        self._left[here, there] += 1
        return False

    def _after(self, path: tuple[int, ...]) -> list[int]:
        here, others = path[-1], [place for place in range(self._size) if place not in path]

        def ways(gpu: int) -> int:
            return sum(self._left.get((gpu, other), 0) > 0 for other in others)

        able = [place for place in others if self._left.get((here, place))]
        return sorted(able, key=lambda gpu: (ways(gpu), (gpu - here) % self._size))


Ring = Sequence[int]


Turned = Callable[[Sequence[int], int, int], Sequence[int]]  # members, number and count of channels


LARGE = 2**20  # bytes; whose time on a link compares constant bandwidths with measured ones


def channels(fabric: Fabric, ranks: Sequence[int], count: int | None = None, *, tuned: bool = False) -> list[Ring]:
    """The rings of a group: its ranks, in the order of each channel.

    Args:
        fabric: the wiring.
        ranks: of the group; a ring of all of them in this order is the only channel if there is one.
        count: the number of channels; None: one per NIC that the group can use, or as its GPUs are linked.
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
