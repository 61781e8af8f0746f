"""GPUs linked pair by pair, without a switch: nodes such as AMD's XGMI meshes, and a mesh and a ring for study.

    gpu0 ─► gpu1   gpu0 ─► gpu2   …               within a node; each pair has 1/(g−1) of a GPU's bandwidth
    gpu0 ─nic-out─► network ─nic-in─► gpu8        between nodes, as in `nodes`

`nvlink.bandwidth` is the sum over a GPU's links: MI300X, 7 links of 64 GB/s.
"""

from collections.abc import Iterator
from functools import partial

from hybrid_des.cluster.fabric import ClusterSpec, Fabric, LinkSpec, Route
from hybrid_des.cluster.topologies.building_blocks import blocks_of, links_of, nics, through_nics
from hybrid_des.cluster.topologies.registration import topology


@topology("direct", summary="a link between each two GPUs of a node, a non-blocking network between NICs")
def direct(cluster: ClusterSpec) -> Fabric:
    """A link per ordered pair of GPUs of a node, and two per NIC."""
    node_of = cluster.node_of

    def route(sender: int, receiver: int) -> Route:
        if node_of[sender] != node_of[receiver]:
            return through_nics(cluster, sender, receiver)
        (node, index), (_, other) = cluster.places[sender], cluster.places[receiver]
        return Route((_name(node, index, other),), (cluster.nodes[node].nvlink.latency,))

    network = partial(nics, cluster, beyond=lambda node, nic: "network")
    links, blocks = links_of(cluster, partial(_pairs, cluster), network), blocks_of(cluster)
    return Fabric(links, route, cluster.gpus, node_of, {}, blocks, linked="mesh")


def _pairs(cluster: ClusterSpec, node: int) -> Iterator[LinkSpec]:
    """The links between the GPUs of a node."""
    spec, first = cluster.nodes[node], cluster.first_gpu(node)
    port = spec.nvlink
    each = None if port.bandwidth is None else port.bandwidth / max(1, spec.gpus - 1)
    for index in range(spec.gpus):
        for other in range(spec.gpus):
            if index != other:
                ends = (f"gpu{first + index}", f"gpu{first + other}")
                yield LinkSpec(_name(node, index, other), each, *ends, port.latency)


def _name(node: int, index: int, other: int) -> str:
    return f"node{node}/gpu{index}/to-gpu{other}"
