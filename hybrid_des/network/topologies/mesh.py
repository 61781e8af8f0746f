"""A full mesh, for study: a link of its own from every GPU to every other one, so that no two flows ever meet.

The figures of `nvlink` (in a node) and `infiniband` (between nodes) are those of one link each way: a GPU that sends to
all others at once has n−1 times that. To compare a mesh with a switch of the same ports, give it a port's bandwidth
divided by n−1.
"""

from __future__ import annotations

from itertools import permutations

from hybrid_des.errors import Refusal
from hybrid_des.network.fabric import ClusterSpec, Fabric, Route
from hybrid_des.network.topologies import topology
from hybrid_des.network.topologies.direct import wire, wire_name, wire_port
from hybrid_des.network.topologies.ports import by_name

MOST_GPUS = 512


def check(cluster: ClusterSpec) -> None:
    """Refuse what would need millions of links."""
    n = cluster.gpus
    if n > MOST_GPUS:
        raise Refusal(f"a mesh of {n} GPUs would need {n * (n - 1)} links; at most {MOST_GPUS} GPUs")


@topology("mesh", summary="for study: a link of its own between any two GPUs", check=check)
def mesh(cluster: ClusterSpec) -> Fabric:
    """One link for each ordered pair of GPUs."""
    check(cluster)
    n = cluster.gpus
    links = by_name(wire(cluster, *ends) for ends in permutations(range(n), 2))

    def route(sender: int, receiver: int) -> Route:
        return Route((wire_name(sender, receiver),), (wire_port(cluster, sender, receiver).latency,))

    return Fabric(links, route, n, cluster.node_of)
