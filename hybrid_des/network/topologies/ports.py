"""Ports shared by node-based topologies: GPU ports into the NVSwitch, and NICs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

from hybrid_des.network.fabric import Bandwidth, ClusterSpec, Fabric, LinkSpec, Route

NicPoint = Callable[[int, int], str]  # (node, NIC) → the point the NIC is connected to


def own_point(node: int, nic: int) -> str:
    """The point of a NIC that its GPUs reach for free."""
    return f"node{node}/nic{nic}"


def nvlinks(cluster: ClusterSpec) -> Iterator[LinkSpec]:
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


def switched(cluster: ClusterSpec, links: dict[str, LinkSpec], route: Callable[[int, int], Route]) -> Fabric:
    """A fabric with one NVSwitch per node; switches with in-network reduction are numbered after the GPUs."""

    def route_to_all(sender: int, receiver: int) -> Route:
        if max(sender, receiver) >= cluster.gpus:
            return _to_reducer(cluster, sender, receiver)
        return route(sender, receiver)

    reducers = {number: cluster.gpus + number for number, node in enumerate(cluster.nodes) if node.in_switch}
    return Fabric(links, route_to_all if reducers else route, cluster.gpus, cluster.node_of, reducers)


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


def uplink(ports: Iterable[Bandwidth], oversubscription: Fraction | int) -> Bandwidth:
    """Uplink bandwidth of a switch per direction: the sum over its ports, divided by the oversubscription."""
    bandwidths = list(ports)
    if any(bandwidth is None for bandwidth in bandwidths):
        return None
    return Fraction(sum(bandwidth or 0 for bandwidth in bandwidths)) / oversubscription
