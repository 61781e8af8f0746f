"""Whether GPUs are wired alike, so that the same happens to their flows at the same times.

Two groups are connected alike if their routes have one canonical form: links numbered as they appear, with bandwidths
and latencies. Where the wiring declares equal blocks, groups that differ by an exchange of blocks need no such look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations
from typing import Any, NamedTuple

from hybrid_des.layout import Layout
from hybrid_des.network.fabric import Bandwidth, Fabric, by_node
from hybrid_des.network.linked import complete, path_of, rings_on
from hybrid_des.network.rate import rate_of


class Connection(NamedTuple):
    """Messages from one GPU to another; `what` distinguishes flows between the same two."""

    sender: int
    receiver: int
    what: str | int = ""


def links_of(fabric: Fabric, flows: Iterable[Connection]) -> set[str]:
    """The links on the routes of flows."""
    return {link for flow in flows for link in fabric.route(flow.sender, flow.receiver).links}


def between_all(algorithm: str, ranks: Sequence[int]) -> Iterator[Connection]:
    """The pairs between which an all-reduce sends: neighbours on a ring, or possibly all."""
    return iter(around(ranks)) if algorithm == "ring" else (Connection(*pair) for pair in permutations(ranks, 2))


def around(ring: Sequence[int], what: str | int = "") -> list[Connection]:
    """The flows around a ring."""
    return [Connection(*ends, what) for ends in pairwise([*ring, ring[0]])]


def signature(fabric: Fabric, flows: Iterable[Connection]) -> tuple[Any, ...]:
    """The canonical form of routes: equal if the same flows share equal links in the same way."""
    names: dict[str, int] = {}
    routes = []
    for flow in flows:
        route = fabric.route(flow.sender, flow.receiver)
        hops = ((names.setdefault(name, len(names)), fabric.links[name].bandwidth) for name in route.links)
        routes.append((*hops, *route.latencies))
    return tuple(routes)


def in_blocks(fabric: Fabric, gpus: Iterable[int]) -> tuple[tuple[int, int], ...] | None:
    """The canonical form of GPUs under exchanges of equal blocks; None if the wiring has none."""
    if fabric.blocks is None:
        return None
    blocks: dict[int, int] = {}
    places = (divmod(gpu, fabric.blocks.size) for gpu in gpus)
    return tuple((blocks.setdefault(block, len(blocks)), place) for block, place in places)


def distinct(fabric: Fabric, groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The first of each set of groups whose rings are connected alike."""
    seen: dict[Any, Sequence[int]] = {}
    for group in groups:
        seen.setdefault(in_blocks(fabric, group) or tuple(group), group)
    found: dict[Any, Sequence[int]] = {}
    for group in seen.values():
        found.setdefault(signature(fabric, flows_of(fabric, group)), group)
    return list(found.values())


def flows_of(fabric: Fabric, group: Sequence[int]) -> list[Connection]:
    """The flows around a group, and around its channels where they depend on which of its GPUs are linked."""
    rings = channels(fabric, group, tuned=True) if fabric.linked else []
    return [flow for ring in (group, *rings) for flow in around(ring)]


def isomorphic(fabric: Fabric, images: Mapping[Connection, Connection]) -> bool:
    """Whether every flow shares its links just as its image does.

    That is so if each link has one counterpart of the same bandwidth, and the images of the flows on it are distinct
    and exactly those on the counterpart. Flows that send at the same times as their images then stay alike.
    """
    counterpart: dict[str, str] = {}
    carried: dict[str, list[Connection]] = {}
    of_images: dict[str, set[Connection]] = {}
    for image in set(images.values()):
        for link in fabric.route(image.sender, image.receiver).links:
            of_images.setdefault(link, set()).add(image)
    for flow, image in images.items():
        route, other = fabric.route(flow.sender, flow.receiver), fabric.route(image.sender, image.receiver)
        if route.latencies != other.latencies:
            return False
        for link, same in zip(route.links, other.links, strict=True):
            equal = fabric.links[link].bandwidth == fabric.links[same].bandwidth
            if not equal or counterpart.setdefault(link, same) != same:
                return False
            carried.setdefault(link, []).append(image)
    return all(
        len(set(flows)) == len(flows) and set(flows) == of_images[counterpart[link]] for link, flows in carried.items()
    )


# Channels: the rings of a group that together use all adapters of its nodes.
#
# With nodes of GPUs 0 1 2 and 3 4 5, one ring would leave a node through the adapter of one GPU. Three use all
# adapters: 0 1 2 3 4 5, 1 2 0 4 5 3 and 2 0 1 5 3 4. A library such as NCCL runs them concurrently, with equal shares.
#
# A group has one channel per adapter that it can use on each of its nodes: no more than it has members there, and no
# more than there are different narrowest links on the way to the next node. Nodes with unequal numbers count as the
# one with the fewest, as in NCCL's search (NVIDIA/nccl, src/graph/search.cc); a group on one node has one channel, or
# as many as the links between its GPUs give (`network.linked`).


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
    nodes = list(by_node(fabric.node_of[rank] for rank in ranks).values()) if count != 1 else []
    if len(nodes) == 1 and (fabric.linked == "mesh" or (fabric.linked and tuned)):
        rings = rings_on(fabric, ranks)
        return [rings[number % len(rings)] for number in range(count or len(rings))]
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


# Whether collectives of layers may be replayed: a static analysis of the links that they and all other traffic use.
#
# A replayed collective takes as long as it would alone. That is exact if its members start and end together, share no
# link, and no other traffic uses a link of their routes at the same time, which either of two arguments can prove:
#
#     apart       nothing else uses the links of the axis, and all other traffic treats the members of a group alike
#     in step     pipeline messages treat all ranks of a pipeline rank alike, so these do the same at the same time, one
#                 thing after the other; no traffic of another pipeline rank uses the links of the axis
#
# The first covers tensor ranks that have a node to themselves, the second those that share it with replicas whose
# gradients are reduced after the pipeline. Otherwise `TensorTraffic.delay` estimates how much longer a step may be.


Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class AllFlows:
    """All messages that ranks send, as flows.

    Attributes:
        layout: the ranks.
        layers: axis → the flows of each group of ranks along it that share layers.
        pipeline: the flows between stages.
        gradients: the flows of replica groups, parameter gathers included; None if not known.
        overlapped: whether gradients or parameters are sent while the pipeline runs.
        pairs: axes whose collectives send between any two members.
    """

    layout: Layout
    layers: Mapping[str, Sequence[Sequence[Connection]]]
    pipeline: Sequence[Connection]
    gradients: Sequence[Connection] | None
    overlapped: bool
    pairs: Collection[str]


def crossing(fabric: Fabric, traffic: AllFlows) -> set[str]:
    """The axes with groups whose own rings share some link, where the order of requests decides their duration."""
    return {
        axis
        for axis, each in traffic.layers.items()
        for flows in each
        if axis not in traffic.pairs and not _disjoint(links_of(fabric, [flow]) for flow in flows)
    }


def exact(fabric: Fabric, traffic: AllFlows) -> set[str]:
    """The axes whose collectives are proven to take as long in a run as alone."""
    used = {axis: [links_of(fabric, flows) for flows in each] for axis, each in traffic.layers.items()}
    shared = traffic.layout.shared  # one duration holds for all groups that are connected alike
    found = {axis for axis in used if len(distinct(fabric, shared[axis])) == 1 and _disjoint(used[axis])}
    if found == set(used) and all(_in_step(fabric, traffic, axis, used) for axis in used):
        return found
    return {axis for axis in found if _apart(fabric, traffic, axis, used)}


def _disjoint(sets: Iterable[set[str]]) -> bool:
    """Whether no link is in two sets."""
    seen: set[str] = set()
    for links in sets:
        if not seen.isdisjoint(links):
            return False
        seen |= links
    return True


def _apart(fabric: Fabric, traffic: AllFlows, axis: str, used: Mapping[str, Sequence[set[str]]]) -> bool:
    others = [*traffic.pipeline, *(traffic.gradients or ())]
    others += [flow for other, each in traffic.layers.items() if other != axis for flows in each for flow in flows]
    if traffic.gradients is None or not set().union(*used[axis]).isdisjoint(links_of(fabric, others)):
        return False
    return _members_alike(fabric, traffic, axis, others)


def reached_together(fabric: Fabric, traffic: AllFlows, axis: str) -> bool:
    """Whether messages between stages and of gradients reach all members of a group at the same time."""
    return traffic.gradients is not None and _members_alike(
        fabric, traffic, axis, [*traffic.pipeline, *traffic.gradients]
    )


def _members_alike(fabric: Fabric, traffic: AllFlows, axis: str, flows: Sequence[Connection]) -> bool:
    first = {rank: ranks[0] for ranks in traffic.layout.shared[axis] for rank in ranks}
    images = {flow: flow._replace(sender=first[flow.sender], receiver=first[flow.receiver]) for flow in flows}
    return all(image.sender != image.receiver for image in images.values()) and isomorphic(fabric, images)


def _in_step(fabric: Fabric, traffic: AllFlows, axis: str, used: Mapping[str, Sequence[set[str]]]) -> bool:
    if traffic.overlapped or traffic.gradients is None:
        return False
    layout, stride = traffic.layout, traffic.layout.strides["pipeline"]
    place = [layout.coordinate(rank, "pipeline") for rank in range(layout.ranks)]
    mine = {
        link: place[ranks[0]]
        for ranks, links in zip(traffic.layout.shared[axis], used[axis], strict=True)
        for link in links
    }
    if not links_of(fabric, traffic.pipeline).isdisjoint(mine):
        return False
    others = [*traffic.gradients, *(flow for each in traffic.layers.values() for flows in each for flow in flows)]
    for flow in others:
        at = {place[flow.sender], place[flow.receiver]}
        if any({mine[link]} != at for link in links_of(fabric, [flow]) if link in mine):
            return False
    images = {
        flow: flow._replace(sender=place[flow.sender] * stride, receiver=place[flow.receiver] * stride)
        for flow in traffic.pipeline
    }
    return isomorphic(fabric, images)
