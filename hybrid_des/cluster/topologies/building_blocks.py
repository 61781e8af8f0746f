"""Links and routes that topologies share: NICs, pairs of links between two points, blocks of nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from hybrid_des.cluster.fabric import Bandwidth, Blocks, ClusterSpec, LinksByOwner, LinkSpec, Route

NicPoint = Callable[[int, int], str]  # (node, NIC) → the point the NIC is connected to


OfNode = Callable[[int], Iterable[LinkSpec]]  # node → some of its links


def nics(cluster: ClusterSpec, node: int, beyond: NicPoint, inside: NicPoint | None = None) -> Iterator[LinkSpec]:
    """Two links per NIC of a node: out to the network point `beyond`, and in to the point `inside` the node.

    Without such a point, GPUs reach the NIC for free.
    """
    spec = cluster.nodes[node]
    for nic in range(spec.nics):
        ends = (inside(node, nic) if inside else f"node{node}/nic{nic}", beyond(node, nic))
        port = spec.infiniband
        yield from both_ways(f"node{node}/nic{nic}/", ("out", "in"), port.bandwidth, ends, port.latency)


def both_ways(
    prefix: str, ways: tuple[str, str], bandwidth: Bandwidth, ends: tuple[str, str], latency: int = 0
) -> tuple[LinkSpec, LinkSpec]:
    """One link per direction between two points; the latency, if any, follows the first."""
    there, back = ways
    return (
        LinkSpec(prefix + there, bandwidth, ends[0], ends[1], latency),
        LinkSpec(prefix + back, bandwidth, ends[1], ends[0]),
    )


def links_of(
    cluster: ClusterSpec, *kinds: OfNode, above: Mapping[str, Iterable[LinkSpec]] | None = None
) -> LinksByOwner:
    """The links of all nodes, kind by kind, and then those of the switches above them, by the switches' names."""
    switches = above or {}

    def of_owner(owner: str) -> Iterable[LinkSpec]:
        number = owner[4:] if owner.startswith("node") else ""
        if number.isdecimal() and (node := int(number)) < len(cluster.nodes):
            return chain.from_iterable([kind(node) for kind in kinds])
        return switches.get(owner, ())

    def every() -> Iterator[LinkSpec]:
        for kind in kinds:
            for node in range(len(cluster.nodes)):
                yield from kind(node)
        yield from chain.from_iterable(switches.values())

    return LinksByOwner(of_owner, every)


def blocks_of(cluster: ClusterSpec, nodes: int = 1) -> Blocks | None:
    """Blocks of this many nodes each; None if nodes differ, or do not fill the last block."""
    if not cluster.isomorphic or len(cluster.nodes) % nodes:
        return None

    def of(link: str) -> int | None:
        owner = link.partition("/")[0]
        if owner.startswith("node"):
            return int(owner[4:]) // nodes
        return int(owner[4:]) if owner.startswith("leaf") else None

    return Blocks(nodes * cluster.nodes[0].gpus, of)


def through_nics(cluster: ClusterSpec, sender: int, receiver: int, between: tuple[str, ...] = ()) -> Route:
    """The route between GPUs of two nodes: NIC out, links in between, NIC in; the latency follows the first link."""
    (node, index), (to_node, to_index) = cluster.places[sender], cluster.places[receiver]
    nic, to_nic = cluster.nodes[node].nic_of(index), cluster.nodes[to_node].nic_of(to_index)
    links = (f"node{node}/nic{nic}/out", *between, f"node{to_node}/nic{to_nic}/in")
    return Route(links, (cluster.latency(node, to_node), *(0 for _ in links[1:])))
