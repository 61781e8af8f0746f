"""A physical ring, for study: every GPU has a link to the next and one to the one before, and nothing else.

    gpu0 ⇄ gpu1 ⇄ gpu2 ⇄ … ⇄ gpu(n−1) ⇄ gpu0

A message goes the shorter way around, upwards where both are as long, through all the links between. The figures of
`nvlink` (in a node) and `infiniband` (between nodes) are those of one link each way; latencies add up link by link.
"""

from __future__ import annotations

from itertools import pairwise

from hybrid_des.network.fabric import ClusterSpec, Fabric, Route
from hybrid_des.network.topologies import topology
from hybrid_des.network.topologies.direct import wire, wire_name, wire_port
from hybrid_des.network.topologies.ports import by_name


@topology("ring", summary="for study: a link to each of two neighbours, messages go the shorter way around")
def ring(cluster: ClusterSpec) -> Fabric:
    """Two links a GPU (one where there are two GPUs, none where there is one)."""
    n = cluster.gpus
    neighbours = {(gpu, (gpu + way) % n) for gpu in range(n) for way in (1, -1)} if n > 1 else set()
    links = by_name(wire(cluster, *ends) for ends in sorted(neighbours))

    def route(sender: int, receiver: int) -> Route:
        distance = (receiver - sender) % n
        way, hops = (1, distance) if 2 * distance <= n else (-1, n - distance)
        path = [(sender + way * hop) % n for hop in range(hops + 1)]
        ends = list(pairwise(path))
        return Route(
            tuple(wire_name(*pair) for pair in ends), tuple(wire_port(cluster, *pair).latency for pair in ends)
        )

    return Fabric(links, route, n, cluster.node_of)
