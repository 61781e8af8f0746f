"""Nodes with one NVSwitch each, connected through NICs by a non-blocking network.

    gpu0 ─nvlink-out─► NVSwitch ─nvlink-in─► gpu1          within a node
    gpu0 ─nic-out─► network ─nic-in─► gpu8                 between nodes; GPU i of g uses NIC floor(i·nics/g)

The latency of a path is counted once, after its first link. A single node is an NVSwitch alone.
"""

from functools import partial

from hybrid_des.network.fabric import ClusterSpec, Fabric
from hybrid_des.network.topologies import topology
from hybrid_des.network.topologies.ports import blocks_of, nics, switched, through_nics


@topology("nodes", summary="an NVSwitch in each node, a non-blocking network between NICs")
def nodes(cluster: ClusterSpec) -> Fabric:
    """Two links per GPU and two per NIC: out and in."""
    network = partial(nics, cluster, beyond=lambda node, nic: "network")
    return switched(cluster, network, partial(through_nics, cluster), blocks=blocks_of(cluster))
