"""Nodes with one NVSwitch each, connected through NICs by a non-blocking network.

    gpu0 ─nvlink-out─► NVSwitch ─nvlink-in─► gpu1          within a node
    gpu0 ─nic-out─► network ─nic-in─► gpu8                 between nodes; GPU i of g uses NIC floor(i·nics/g)

The latency of a path is counted once, after its first link. A single node is an NVSwitch alone.
"""

from __future__ import annotations

from hybrid_des.network.fabric import ClusterSpec, Fabric, Route
from hybrid_des.network.topologies import topology
from hybrid_des.network.topologies.ports import by_name, nics, nvlinks, switched, through_nics, through_nvswitch


@topology("nodes", summary="an NVSwitch in each node, a non-blocking network between NICs")
def nodes(cluster: ClusterSpec) -> Fabric:
    """Two links per GPU and two per NIC: out and in."""
    links = by_name(nvlinks(cluster), nics(cluster, lambda node, nic: "network"))
    node_of = cluster.node_of

    def route(sender: int, receiver: int) -> Route:
        same = node_of[sender] == node_of[receiver]
        return (through_nvswitch if same else through_nics)(cluster, sender, receiver)

    return switched(cluster, links, route)
