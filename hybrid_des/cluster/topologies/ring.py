"""A physical ring, for study: every GPU has one link to each of its two neighbours.

    gpu0 ⇄ gpu1 ⇄ gpu2 ⇄ … ⇄ gpu(n−1) ⇄ gpu0

A message takes the shorter way around (ascending on a tie) through all links in between. `nvlink` (within a node) and
`infiniband` (between nodes) describe one link per direction; latencies sum over the links.
"""

from hybrid_des.cluster.fabric import ClusterSpec, Fabric
from hybrid_des.cluster.topologies.pairs import wired
from hybrid_des.cluster.topologies.registration import topology


@topology("ring", summary="for study: links to two neighbours, messages take the shorter way around")
def ring(cluster: ClusterSpec) -> Fabric:
    """Two links per GPU (one for two GPUs, none for one)."""
    n = cluster.gpus
    neighbours = {(gpu, (gpu + way) % n) for gpu in range(n) for way in (1, -1)} if n > 1 else set()

    def path(sender: int, receiver: int) -> list[int]:
        distance = (receiver - sender) % n
        way, hops = (1, distance) if 2 * distance <= n else (-1, n - distance)
        return [(sender + way * hop) % n for hop in range(hops + 1)]

    return wired(cluster, sorted(neighbours), path)
