"""Links and routes shared by topologies: GPU ports into the NVSwitch, NICs, and direct links between GPUs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain, pairwise

from hybrid_des.network.fabric import Bandwidth, Blocks, ClusterSpec, Fabric, LinksByOwner, LinkSpec, PortSpec, Route

KNOWN_ROUTES = 2**14  # that are kept: the same few thousand are asked for again and again

NicPoint = Callable[[int, int], str]  # (node, NIC) → the point the NIC is connected to
OfNode = Callable[[int], Iterable[LinkSpec]]  # node → some of its links


def own_point(node: int, nic: int) -> str:
    """The point of a NIC that its GPUs reach for free."""
    return f"node{node}/nic{nic}"


def _nvlinks(cluster: ClusterSpec, node: int) -> Iterator[LinkSpec]:
    """Two links per GPU of a node: out to its NVSwitch, and in."""
    spec, first = cluster.nodes[node], cluster.first_gpu(node)
    port = spec.nvlink
    for index in range(spec.gpus):
        ends = (f"gpu{first + index}", f"node{node}/nvswitch")
        yield from both_ways(f"node{node}/gpu{index}/nvlink-", ("out", "in"), port.bandwidth, ends, port.latency)


def nics(cluster: ClusterSpec, node: int, beyond: NicPoint, inside: NicPoint = own_point) -> Iterator[LinkSpec]:
    """Two links per NIC of a node: out to the network point `beyond`, and in to the point `inside` the node."""
    spec = cluster.nodes[node]
    for nic in range(spec.nics):
        ends = (inside(node, nic), beyond(node, nic))
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


def through_nvswitch(cluster: ClusterSpec, sender: int, receiver: int) -> Route:
    """The route between two GPUs of one node: port out, port in."""
    (node, index), (_, to_index) = cluster.places[sender], cluster.places[receiver]
    ends = (f"node{node}/gpu{index}/nvlink-out", f"node{node}/gpu{to_index}/nvlink-in")
    return Route(ends, (cluster.nodes[node].nvlink.latency, 0))


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


def switched(
    cluster: ClusterSpec,
    network: OfNode,
    between: Callable[[int, int], Route],
    above: Mapping[str, Iterable[LinkSpec]] | None = None,
    blocks: Blocks | None = None,
) -> Fabric:
    """A fabric with one NVSwitch per node; switches with in-network reduction are numbered after the GPUs.

    Args:
        cluster: the nodes.
        network: node → its links beyond NVLink.
        between: maps two GPUs of different nodes to a route.
        above: switch → its links to the spine.
        blocks: equal blocks of GPUs.
    """
    gpus, node_of = cluster.gpus, cluster.node_of
    reducers = {} if cluster.isomorphic and not cluster.nodes[0].in_switch else {
        number: gpus + number for number, node in enumerate(cluster.nodes) if node.in_switch
    }  # fmt: skip

    @lru_cache(maxsize=KNOWN_ROUTES)
    def route(sender: int, receiver: int) -> Route:
        if reducers and max(sender, receiver) >= gpus:
            return _to_reducer(cluster, sender, receiver)
        if node_of[sender] == node_of[receiver]:
            return through_nvswitch(cluster, sender, receiver)
        return between(sender, receiver)

    links = links_of(cluster, partial(_nvlinks, cluster), network, above=above)
    return Fabric(links, route, gpus, node_of, reducers, blocks)


def _to_reducer(cluster: ClusterSpec, sender: int, receiver: int) -> Route:
    """The route between a GPU and its NVSwitch: one port, and half the GPU-to-GPU latency."""
    node, index = cluster.places[min(sender, receiver)]
    half = cluster.nodes[node].nvlink.latency // 2
    if receiver > sender:
        return Route((f"node{node}/gpu{index}/nvlink-out",), (cluster.nodes[node].nvlink.latency - half,))
    return Route((f"node{node}/gpu{index}/nvlink-in",), (half,))


def through_nics(cluster: ClusterSpec, sender: int, receiver: int, between: tuple[str, ...] = ()) -> Route:
    """The route between GPUs of two nodes: NIC out, links in between, NIC in; the latency follows the first link."""
    (node, index), (to_node, to_index) = cluster.places[sender], cluster.places[receiver]
    nic, to_nic = cluster.nodes[node].nic_of(index), cluster.nodes[to_node].nic_of(to_index)
    links = (f"node{node}/nic{nic}/out", *between, f"node{to_node}/nic{to_nic}/in")
    return Route(links, (cluster.latency(node, to_node), *(0 for _ in links[1:])))


def uplinks(switch: str, ports: Sequence[Bandwidth], oversubscription: Fraction) -> tuple[LinkSpec, LinkSpec]:
    """A switch's links to the spine and back, each with the sum over its ports divided by the oversubscription."""
    bandwidth = None if None in ports else Fraction(sum(filter(None, ports))) / oversubscription
    return both_ways(f"{switch}/", ("up", "down"), bandwidth, (switch, "spine"))


def wired(cluster: ClusterSpec, pairs: Iterable[tuple[int, int]], path: Callable[[int, int], Iterable[int]]) -> Fabric:
    """A fabric of direct links between pairs of GPUs; `path` lists the GPUs that a message passes, ends included."""

    def wire(sender: int, receiver: int) -> LinkSpec:
        port = _wire_port(cluster, sender, receiver)
        return LinkSpec(_wire_name(sender, receiver), port.bandwidth, f"gpu{sender}", f"gpu{receiver}", port.latency)

    def route(sender: int, receiver: int) -> Route:
        hops = list(pairwise(path(sender, receiver)))
        return Route(
            tuple(_wire_name(*ends) for ends in hops), tuple(_wire_port(cluster, *ends).latency for ends in hops)
        )

    links = {link.name: link for link in (wire(*ends) for ends in pairs)}
    return Fabric(links, route, cluster.gpus, cluster.node_of)


def _wire_name(sender: int, receiver: int) -> str:
    return f"gpu{sender}/to/gpu{receiver}"


def _wire_port(cluster: ClusterSpec, sender: int, receiver: int) -> PortSpec:
    """Figures of a direct link: NVLink within a node, else the slower NIC's bandwidth and the network's latency."""
    node, other = cluster.node_of[sender], cluster.node_of[receiver]
    if node == other:
        return cluster.nodes[node].nvlink
    if cluster.nodes[node] is cluster.nodes[other]:  # the usual case
        return cluster.nodes[node].infiniband
    bandwidths = [cluster.nodes[end].infiniband.bandwidth for end in (node, other)]
    slowest = min((bandwidth for bandwidth in bandwidths if bandwidth is not None), default=None)
    return PortSpec(slowest, cluster.latency(node, other))
