"""A full mesh, for study: a dedicated link from every GPU to every other, so that flows never share a link.

`nvlink` (within a node) and `infiniband` (between nodes) describe one link per direction: a GPU that sends to all
others concurrently has n−1 times that bandwidth. To compare with a switch of equal ports, divide port bandwidth by
n−1.
"""

from itertools import permutations

from hybrid_des.cluster.fabric import ClusterSpec, Fabric
from hybrid_des.cluster.topologies.pairs import wired
from hybrid_des.cluster.topologies.registration import topology
from hybrid_des.errors import Refusal

MOST_GPUS = 512


def check_mesh(cluster: ClusterSpec) -> None:
    """Refuse clusters that would need millions of links."""
    n = cluster.gpus
    if n > MOST_GPUS:
        raise Refusal(f"a mesh of {n} GPUs would need {n * (n - 1)} links; at most {MOST_GPUS} GPUs")


@topology("mesh", summary="for study: a dedicated link between any two GPUs", check=check_mesh)
def mesh(cluster: ClusterSpec) -> Fabric:
    """One link per ordered pair of GPUs."""
    check_mesh(cluster)
    return wired(cluster, permutations(range(cluster.gpus), 2), lambda sender, receiver: (sender, receiver))
