"""Links and routes shared by topologies: GPU ports into the NVSwitch, NICs, and direct links between GPUs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

from hybrid_des.network.fabric import Bandwidth, ClusterSpec, Fabric, LinkSpec, PortSpec, Route

NicPoint = Callable[[int, int], str]  # (node, NIC) → the point the NIC is connected to


def own_point(node: int, nic: int) -> str:
    """The point of a NIC that its GPUs reach for free."""
    return f"node{node}/nic{nic}"


def _nvlinks(cluster: ClusterSpec) -> Iterator[LinkSpec]:
    """Two links per GPU: out to the NVSwitch of its node, and in."""
    for gpu, (node, index) in enumerate(cluster.places):
        port = cluster.nodes[node].nvlink
        ends = (f"gpu{gpu}", f"node{node}/nvswitch")
        yield from both_ways(f"node{node}/gpu{index}/nvlink-", ("out", "in"), port.bandwidth, ends, port.latency)


def nics(cluster: ClusterSpec, beyond: NicPoint, inside: NicPoint = own_point) -> Iterator[LinkSpec]:
    """Two links per NIC: out to the network point `beyond`, and in to the point `inside` the node."""
    for node, spec in enumerate(cluster.nodes):
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


def by_name(*groups: Iterable[LinkSpec]) -> dict[str, LinkSpec]:
    """Collect links into a mapping by name."""
    return {link.name: link for group in groups for link in group}


def through_nvswitch(cluster: ClusterSpec, sender: int, receiver: int) -> Route:
    """The route between two GPUs of one node: port out, port in."""
    (node, index), (_, to_index) = cluster.places[sender], cluster.places[receiver]
    ends = (f"node{node}/gpu{index}/nvlink-out", f"node{node}/gpu{to_index}/nvlink-in")
    return Route(ends, (cluster.nodes[node].nvlink.latency, 0))


def switched(cluster: ClusterSpec, network: Iterable[LinkSpec], between: Callable[[int, int], Route]) -> Fabric:
    """A fabric with one NVSwitch per node; switches with in-network reduction are numbered after the GPUs.

    `network` holds the links beyond NVLink, `between` maps two GPUs of different nodes to a route.
    """
    gpus, node_of = cluster.gpus, cluster.node_of
    reducers = {number: gpus + number for number, node in enumerate(cluster.nodes) if node.in_switch}

    def route(sender: int, receiver: int) -> Route:
        if reducers and max(sender, receiver) >= gpus:
            return _to_reducer(cluster, sender, receiver)
        if node_of[sender] == node_of[receiver]:
            return through_nvswitch(cluster, sender, receiver)
        return between(sender, receiver)

    return Fabric(by_name(_nvlinks(cluster), network), route, gpus, node_of, reducers)


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

    return Fabric(by_name(wire(*ends) for ends in pairs), route, cluster.gpus, cluster.node_of)


def _wire_name(sender: int, receiver: int) -> str:
    return f"gpu{sender}/to/gpu{receiver}"


def _wire_port(cluster: ClusterSpec, sender: int, receiver: int) -> PortSpec:
    """Figures of a direct link: NVLink within a node, else the slower NIC's bandwidth and the network's latency."""
    node, other = cluster.node_of[sender], cluster.node_of[receiver]
    if node == other:
        return cluster.nodes[node].nvlink
    if cluster.nodes[node] is cluster.nodes[other]:  # alike, as nearly always
        return cluster.nodes[node].infiniband
    bandwidths = [cluster.nodes[end].infiniband.bandwidth for end in (node, other)]
    slowest = min((bandwidth for bandwidth in bandwidths if bandwidth is not None), default=None)
    return PortSpec(slowest, cluster.latency(node, other))
