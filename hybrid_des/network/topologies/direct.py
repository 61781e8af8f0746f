"""Direct links between GPUs, for topologies meant for study."""

from __future__ import annotations

from hybrid_des.network.fabric import ClusterSpec, LinkSpec, PortSpec


def wire_name(sender: int, receiver: int) -> str:
    """Name of the link from one GPU to another."""
    return f"gpu{sender}/to/gpu{receiver}"


def wire_port(cluster: ClusterSpec, sender: int, receiver: int) -> PortSpec:
    """Figures of a direct link: NVLink within a node, else the slower NIC's bandwidth and the network's latency."""
    node, other = cluster.node_of[sender], cluster.node_of[receiver]
    if node == other:
        return cluster.nodes[node].nvlink
    if cluster.nodes[node] is cluster.nodes[other]:  # alike, as nearly always
        return cluster.nodes[node].infiniband
    bandwidths = [cluster.nodes[end].infiniband.bandwidth for end in (node, other)]
    slowest = min((bandwidth for bandwidth in bandwidths if bandwidth is not None), default=None)
    return PortSpec(slowest, cluster.latency(node, other))


def wire(cluster: ClusterSpec, sender: int, receiver: int) -> LinkSpec:
    """The link from one GPU to another."""
    port = wire_port(cluster, sender, receiver)
    return LinkSpec(wire_name(sender, receiver), port.bandwidth, f"gpu{sender}", f"gpu{receiver}", port.latency)
