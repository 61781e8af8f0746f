"""Groups of GPUs that do not interfere with each other: sets that share no link, and which of these sets are alike.

    node 0    0 1 2 3     groups (0, 4) and (1, 5) leave both nodes by one adapter: one set;
    node 1    4 5 6 7     if every GPU has an adapter they are two sets, alike

A set then behaves as it would alone, and sets that are alike behave the same at the same times. A link counts as used
by a group if it is on the route between any two members, whether or not they send to each other.

`flows_apart` divides groups of flows that are given into sets that do not interfere with each other, as no link that
limits them is on routes of two sets.

    ring of channel 0    0 → 1 → … → 64 → …       by adapters 0: one set
    ring of channel 1    1 → 2 → … → 65 → …       by adapters 1: another, alike

Each does as it would alone, and those that are alike do the same at the same times. Unlike above, where it is
not known which members send to each other, flows are given, and links that are infinitely fast join nothing.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, permutations, product
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.connections import Connection, links_of, signature
from hybrid_des.cluster.fabric import Bandwidth, Fabric, Route
from hybrid_des.units import collected

Numbers = NDArray[np.int64]

MOST_ROUTES = 2**16  # between the places of blocks; groups that have more in total are treated as one set
SWITCH = -1  # the place of a node's switch with in-network reduction


class Isomorphic(NamedTuple):
    """Sets of groups that are wired alike.

    Attributes:
        groups: the numbers of the groups of the first such set.
        sets: the number of such sets.
    """

    groups: Sequence[int]
    sets: int


class MemberPlaces(NamedTuple):
    """Where the members of a group are: their blocks, and their places in them."""

    blocks: Numbers
    places: Numbers


class Footprint(NamedTuple):
    """The properties of a group that decide which links of its blocks it uses.

    Attributes:
        places: those that it occupies in any of its blocks.
        spans_blocks: whether it spans several blocks.
        several_per_block: whether several members are in one block.
    """

    places: tuple[int, ...]
    spans_blocks: bool
    several_per_block: bool

    @property
    def routes(self) -> int:
        """Number of routes to examine."""
        return len(self.places) ** 2 * (2 * self.spans_blocks + self.several_per_block)


class HopSignature(NamedTuple):
    """A link of a signature.

    Attributes:
        link: its name in the first block; None if it belongs to no block, or to one in between.
        there: whether it belongs to the receiver's block, and that is not the sender's.
        bandwidth, latency: of the link, and after it.
    """

    link: str | None
    there: bool
    bandwidth: Bandwidth
    latency: int


class RouteSignature(NamedTuple):
    """The route from one place to another, in the same block or in another one."""

    sender: int
    receiver: int
    spans_blocks: bool
    hops: tuple[HopSignature, ...]


OfFootprints = Mapping[Footprint, Sequence[RouteSignature]]


def independent_sets(fabric: Fabric, groups: Sequence[Sequence[int]], does: Sequence[Hashable]) -> list[Isomorphic]:
    """Divide groups into sets that share no link, and find those that are alike; if that is unknown, all are one set.

    Sets are isomorphic if their groups, in the same order, do the same on routes of the same signatures, which share
    links in the same way. Sets are compared under exchanges of equal blocks first, then by signatures between places.

    Args:
        fabric: the wiring; without `blocks` nothing is known.
        groups: the members of each group: GPUs, followed by switches with in-network reduction.
        does: a value per group, equal for groups that do the same.
    """
    members = [found for found in (_members_of(fabric, ranks) for ranks in groups) if found is not None]
    kinds = [_footprint(one) for one in members]
    if len(members) < len(groups) or sum(kind.routes for kind in set(kinds)) > MOST_ROUTES:
        return [Isomorphic(range(len(groups)), 1)]
    signatures = {kind: list(_signatures(fabric, kind)) for kind in set(kinds)}
    by_places: dict[Hashable, Isomorphic] = {}  # cheap, and it leaves few sets whose signatures are compared
    for numbers in _sets(members, kinds, signatures):
        pattern, places = _pattern([members[number] for number in numbers])
        _count(by_places, (*(does[number] for number in numbers), pattern, places.tobytes()), Isomorphic(numbers, 1))
    by_signatures: dict[Hashable, Isomorphic] = {}
    for key, isomorphic in by_places.items():
        pattern, places = _pattern([members[number] for number in isomorphic.groups])
        if named := _named(fabric, places, [signatures[kinds[number]] for number in isomorphic.groups]):
            key = (*(does[number] for number in isomorphic.groups), pattern, named)
        _count(by_signatures, key, isomorphic)
    return list(by_signatures.values())


def _members_of(fabric: Fabric, ranks: Sequence[int]) -> MemberPlaces | None:
    """Where the members of a group are, if that is known; the switch of a group on one node has no place of its own."""
    blocks = fabric.blocks
    if blocks is None or (fabric.gpus > blocks.size and fabric.node_of[blocks.size - 1] == fabric.node_of[blocks.size]):
        return None
    members = np.fromiter(ranks, dtype=np.int64, count=len(ranks))
    if (above := members[members >= fabric.gpus]).size:
        members = members[members < fabric.gpus]
        nodes = {fabric.node_of[rank] for rank in members.tolist()}
        if len(nodes) > 1 or {fabric.reducers.get(node) for node in nodes} != set(above.tolist()):
            return None
    return MemberPlaces(*np.divmod(members, blocks.size))


def _footprint(group: MemberPlaces) -> Footprint:
    blocks, members = np.unique(group.blocks).size, group.blocks.size
    return Footprint(tuple(np.unique(group.places).tolist()), blocks > 1, blocks < members)


def _signatures(fabric: Fabric, kind: Footprint) -> Iterator[RouteSignature]:
    """The signatures between members of a group of this kind."""
    assert fabric.blocks is not None
    size, places = fabric.blocks.size, kind.places
    for this, other in permutations(places, 2) if kind.several_per_block else ():
        yield _signature(fabric, this, other, False, fabric.route(this, other))
    for this, other in product(places, repeat=2) if kind.spans_blocks else ():
        yield _signature(fabric, this, other, True, fabric.route(this, size + other), fabric.route(size + this, other))
    for position in places if fabric.reducers else ():
        if (switch := fabric.reducers.get(fabric.node_of[position])) is not None:
            yield _signature(fabric, position, SWITCH, False, fabric.route(position, switch))
            yield _signature(fabric, SWITCH, position, False, fabric.route(switch, position))


def _signature(
    fabric: Fabric, sender: int, receiver: int, spans_blocks: bool, route: Route, back: Route | None = None
) -> RouteSignature:
    """A signature; `back` is the same route with the first two blocks exchanged."""
    assert fabric.blocks is not None
    hops = []
    for hop, (name, latency) in enumerate(zip(route.links, route.latencies, strict=True)):
        block = fabric.blocks.of(name)
        link = name if block == 0 else back.links[hop] if block == 1 and back is not None else None
        hops.append(HopSignature(link, block == 1, fabric.links[name].bandwidth, latency))
    return RouteSignature(sender, receiver, spans_blocks, tuple(hops))


def _sets(groups: Sequence[MemberPlaces], kinds: Sequence[Footprint], signatures: OfFootprints) -> list[list[int]]:
    """The numbers of groups that share links, directly or through others, in ascending order."""
    links = {kind: {hop.link for signature in each for hop in signature.hops} for kind, each in signatures.items()}
    of_kind = {kind: [number for number, one in enumerate(kinds) if one == kind] for kind in links}
    together = []
    for meeting in connected(_holders(links.items()), links):
        numbers = [number for kind in meeting for number in of_kind[kind]]
        if any(None in links[kind] for kind in meeting):  # a link of no block may be shared by groups of any
            together.append(numbers)
        else:
            together += _holders((number, np.unique(groups[number].blocks).tolist()) for number in numbers)
    return sorted(map(sorted, connected(together, range(len(groups)))))


Item = TypeVar("Item", bound=Hashable)


def _holders(held: Iterable[tuple[Item, Iterable[Hashable]]]) -> list[list[Item]]:
    """For each thing that is held, its holders."""
    return list(collected((thing, holder) for holder, things in held for thing in things).values())


def connected(together: Iterable[Sequence[Item]], every: Iterable[Item]) -> list[list[Item]]:
    """Divide items into connected components: items in one list are connected."""
    above = {item: item for item in every}

    def first(item: Item) -> Item:
        while above[item] != item:
            above[item] = item = above[above[item]]
        return item

    for items in together:
        for item in items[1:]:
            above[first(item)] = first(items[0])
    return _holders((item, [first(item)]) for item in above)


def _pattern(groups: Sequence[MemberPlaces]) -> tuple[Hashable, Numbers]:
    """The sizes of groups with the pattern of their blocks, and the places of all members."""
    blocks = as_they_appear(np.concatenate([one.blocks for one in groups]))
    return (*(len(one.blocks) for one in groups), blocks.tobytes()), np.concatenate([one.places for one in groups])


def as_they_appear(values: Numbers) -> Numbers:
    """Number equal values alike, in the order of their first appearance."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.ravel()]


def _named(fabric: Fabric, places: Numbers, signatures: Sequence[Sequence[RouteSignature]]) -> Hashable:
    """The signatures of a set of groups with places and links numbered as they appear; None if some are in no block."""
    if any(hop.link is None for each in signatures for signature in each for hop in signature.hops):
        return None
    seat = {place: number for number, place in enumerate(dict.fromkeys(places.tolist()))} | {SWITCH: SWITCH}
    node: dict[int, int] = {}
    nodes = [node.setdefault(fabric.node_of[place], len(node)) for place in seat if place != SWITCH]
    links: dict[str | None, int] = {}
    named = [
        (
            seat[one.sender],
            seat[one.receiver],
            one.spans_blocks,
            *((links.setdefault(hop.link, len(links)), *hop[1:]) for hop in one.hops),
        )
        for each in signatures
        for one in each
    ]
    return as_they_appear(places).tobytes(), tuple(nodes), tuple(named)


def _count(counted: dict[Hashable, Isomorphic], key: Hashable, isomorphic: Isomorphic) -> None:
    first, count = counted.get(key, (isomorphic.groups, 0))
    counted[key] = Isomorphic(first, count + isomorphic.sets)


def flows_apart(
    fabric: Fabric, flows: Sequence[Sequence[Connection]], does: Sequence[Hashable]
) -> list[list[list[int]]]:
    """Divide groups of flows into sets that share no link that limits them; those that are alike are listed together.

    Groups have numbers. Alike sets are in the same order, group by group.

    Args:
        fabric: the wiring.
        flows: those of each group, in an order that is the same for groups that are alike.
        does: a value per group, equal for groups that send the same on their flows, in order.
    """
    each = ((link, number) for number, of_group in enumerate(flows) for link in links_of(fabric, of_group))
    users = collected(pair for pair in each if fabric.links[pair[0]].bandwidth is not None)
    alike: dict[Hashable, list[list[int]]] = {}
    for numbers in map(sorted, connected(users.values(), range(len(flows)))):
        wiring = signature(fabric, chain.from_iterable(flows[number] for number in numbers))
        key = tuple((does[number], len(flows[number])) for number in numbers), wiring
        alike.setdefault(key, []).append(numbers)
    return list(alike.values())
