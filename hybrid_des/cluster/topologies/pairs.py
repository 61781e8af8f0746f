"""Fabrics of direct links between pairs of GPUs, over which messages pass GPU by GPU."""

from collections.abc import Callable, Iterable
from itertools import pairwise

from hybrid_des.cluster.fabric import ClusterSpec, Fabric, LinkSpec, PortSpec, Route


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
