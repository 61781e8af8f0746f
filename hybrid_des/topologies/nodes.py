"""Nodes with an NVSwitch in each, joined through NICs by a network that never blocks.

    gpu0 ─nvlink-out─► NVSwitch ─nvlink-in─► gpu1          in a node
    gpu0 ─nic-out─► network ─nic-in─► gpu8                 between nodes; GPU i of g uses NIC floor(i·nics/g)

The latency of a path is counted once, behind its first link.
"""

from __future__ import annotations

from hybrid_des.fabric import ClusterSpec, Fabric, LinkSpec, Route
from hybrid_des.topologies import topology


@topology("nodes", summary="an NVSwitch in each node, a non-blocking network between NICs")
def nodes(cluster: ClusterSpec) -> Fabric:
    """Two ports a GPU and two a NIC: out and in."""
    size = cluster.gpus_per_node
    links: dict[str, LinkSpec] = {}
    for node in range(cluster.nodes):
        for gpu in range(size):
            for way in ("out", "in"):
                name = f"node{node}/gpu{gpu}/nvlink-{way}"
                links[name] = LinkSpec(name, cluster.nvlink.bandwidth)
        for nic in range(cluster.nics_per_node):
            for way in ("out", "in"):
                name = f"node{node}/nic{nic}/{way}"
                links[name] = LinkSpec(name, cluster.infiniband.bandwidth)

    def route(sender: int, receiver: int) -> Route:
        (node, gpu), (to_node, to_gpu) = divmod(sender, size), divmod(receiver, size)
        if node == to_node:
            ends = (f"node{node}/gpu{gpu}/nvlink-out", f"node{node}/gpu{to_gpu}/nvlink-in")
            return Route(ends, (cluster.nvlink.latency, 0))
        nic, to_nic = (index * cluster.nics_per_node // size for index in (gpu, to_gpu))
        ends = (f"node{node}/nic{nic}/out", f"node{to_node}/nic{to_nic}/in")
        return Route(ends, (cluster.infiniband.latency, 0))

    return Fabric(links, route, cluster.nodes * size, tuple(gpu // size for gpu in range(cluster.nodes * size)))
