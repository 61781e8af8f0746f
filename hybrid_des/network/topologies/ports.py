"""The ports that topologies with nodes share: a GPU's into the NVSwitch of its node, and the NICs'."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

from hybrid_des.network.fabric import Bandwidth, ClusterSpec, Fabric, LinkSpec, Route

Place = Callable[[int, int], str]  # node, NIC → the point that the NIC is plugged into


def own_point(node: int, nic: int) -> str:
    """A NIC that hangs on nothing but itself: its GPUs reach it for free."""
    return f"node{node}/nic{nic}"


def nvlinks(cluster: ClusterSpec) -> Iterator[LinkSpec]:
    """Two links a GPU: out to the NVSwitch of its node, and in."""
    for gpu, (node, index) in enumerate(cluster.places):
        port = cluster.nodes[node].nvlink
        ends = (f"gpu{gpu}", f"node{node}/nvswitch")
        yield from both_ways(f"node{node}/gpu{index}/nvlink-", ("out", "in"), port.bandwidth, ends, port.latency)


def nics(cluster: ClusterSpec, beyond: Place, inside: Place = own_point) -> Iterator[LinkSpec]:
    """Two links a NIC: out to the point of the network `beyond`, and in to the point `inside` the node."""
    for node, spec in enumerate(cluster.nodes):
        for nic in range(spec.nics):
            ends = (inside(node, nic), beyond(node, nic))
            port = spec.infiniband
            yield from both_ways(f"node{node}/nic{nic}/", ("out", "in"), port.bandwidth, ends, port.latency)


def both_ways(
    prefix: str, ways: tuple[str, str], bandwidth: Bandwidth, ends: tuple[str, str], latency: int = 0
) -> tuple[LinkSpec, LinkSpec]:
    """One link each way between two points; the latency, if any, is behind the first."""
    there, back = ways
    return (
        LinkSpec(prefix + there, bandwidth, ends[0], ends[1], latency),
        LinkSpec(prefix + back, bandwidth, ends[1], ends[0]),
    )


def by_name(*groups: Iterable[LinkSpec]) -> dict[str, LinkSpec]:
    """Put links together."""
    return {link.name: link for group in groups for link in group}


def through_nvswitch(cluster: ClusterSpec, sender: int, receiver: int) -> Route:
    """The route between two GPUs of one node: port out, port in."""
    (node, index), (_, to_index) = cluster.places[sender], cluster.places[receiver]
    ends = (f"node{node}/gpu{index}/nvlink-out", f"node{node}/gpu{to_index}/nvlink-in")
    return Route(ends, (cluster.nodes[node].nvlink.latency, 0))


def switched(cluster: ClusterSpec, links: dict[str, LinkSpec], route: Callable[[int, int], Route]) -> Fabric:
    """A fabric whose nodes have an NVSwitch each; those that add up get places behind the GPUs'."""

    def route_to_all(sender: int, receiver: int) -> Route:
        if max(sender, receiver) >= cluster.gpus:
            return _to_reducer(cluster, sender, receiver)
        return route(sender, receiver)

    reducers = {number: cluster.gpus + number for number, node in enumerate(cluster.nodes) if node.in_switch}
    return Fabric(links, route_to_all if reducers else route, cluster.gpus, cluster.node_of, reducers)


def _to_reducer(cluster: ClusterSpec, sender: int, receiver: int) -> Route:
    """The route between a GPU and its NVSwitch: the port out or in, and half the latency from GPU to GPU."""
    node, index = cluster.places[min(sender, receiver)]
    half = cluster.nodes[node].nvlink.latency // 2
    if receiver > sender:
        return Route((f"node{node}/gpu{index}/nvlink-out",), (cluster.nodes[node].nvlink.latency - half,))
    return Route((f"node{node}/gpu{index}/nvlink-in",), (half,))


def through_nics(cluster: ClusterSpec, sender: int, receiver: int, between: tuple[str, ...] = ()) -> Route:
    """The route between GPUs of two nodes: NIC out, what lies between, NIC in; the latency is behind the first."""
    (node, index), (to_node, to_index) = cluster.places[sender], cluster.places[receiver]
    nic, to_nic = cluster.nodes[node].nic_of(index), cluster.nodes[to_node].nic_of(to_index)
    links = (f"node{node}/nic{nic}/out", *between, f"node{to_node}/nic{to_nic}/in")
    return Route(links, (cluster.latency(node, to_node), *(0 for _ in links[1:])))


def uplink(ports: Iterable[Bandwidth], oversubscription: Fraction | int) -> Bandwidth:
    """What a switch has towards the spine, each way: its ports' bandwidths together, divided by the factor."""
    bandwidths = list(ports)
    if any(bandwidth is None for bandwidth in bandwidths):
        return None
    return Fraction(sum(bandwidth or 0 for bandwidth in bandwidths)) / oversubscription
