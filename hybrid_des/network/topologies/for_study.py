"""Topologies for study: a full mesh and a physical ring."""

from itertools import permutations

from hybrid_des.errors import Refusal
from hybrid_des.network.fabric import ClusterSpec, Fabric
from hybrid_des.network.topologies import topology
from hybrid_des.network.topologies.ports import wired

# A full mesh, for study: a dedicated link from every GPU to every other, so that flows never share a link.
#
# `nvlink` (within a node) and `infiniband` (between nodes) describe one link per direction: a GPU that sends to all
# others concurrently has n−1 times that bandwidth. To compare with a switch of equal ports, divide port bandwidth by
# n−1.


MOST_GPUS = 512


def check(cluster: ClusterSpec) -> None:
    """Refuse clusters that would need millions of links."""
    n = cluster.gpus
    if n > MOST_GPUS:
        raise Refusal(f"a mesh of {n} GPUs would need {n * (n - 1)} links; at most {MOST_GPUS} GPUs")


@topology("mesh", summary="for study: a dedicated link between any two GPUs", check=check)
def mesh(cluster: ClusterSpec) -> Fabric:
    """One link per ordered pair of GPUs."""
    check(cluster)
    return wired(cluster, permutations(range(cluster.gpus), 2), lambda sender, receiver: (sender, receiver))


# A physical ring, for study: every GPU has one link to each of its two neighbours.
#
#     gpu0 ⇄ gpu1 ⇄ gpu2 ⇄ … ⇄ gpu(n−1) ⇄ gpu0
#
# A message takes the shorter way around (ascending on a tie) through all links in between. `nvlink` (within a node) and
# `infiniband` (between nodes) describe one link per direction; latencies sum over the links.


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
