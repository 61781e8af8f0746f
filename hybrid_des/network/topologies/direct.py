"""GPUs linked pair by pair, without a switch: nodes such as AMD's XGMI meshes, and a mesh and a ring for study.

    gpu0 ─► gpu1   gpu0 ─► gpu2   …               within a node; each pair has 1/(g−1) of a GPU's bandwidth
    gpu0 ─nic-out─► network ─nic-in─► gpu8        between nodes, as in `nodes`

`nvlink.bandwidth` is the sum over a GPU's links: MI300X, 7 links of 64 GB/s.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise, permutations

from hybrid_des.errors import Refusal
from hybrid_des.network.fabric import ClusterSpec, Fabric, LinkSpec, PortSpec, Route
from hybrid_des.network.topologies import blocks_of, links_of, nics, through_nics, topology


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


# A full mesh, for study: a dedicated link from every GPU to every other, so that flows never share a link.
#
# `nvlink` (within a node) and `infiniband` (between nodes) describe one link per direction: a GPU that sends to all
# others concurrently has n−1 times that bandwidth. To compare with a switch of equal ports, divide port bandwidth by
# n−1.


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


def wired(cluster: ClusterSpec, pairs: Iterable[tuple[int, int]], path: Callable[[int, int], Iterable[int]]) -> Fabric:
    """A fabric of direct links between pairs of GPUs; `path` lists the GPUs that a message passes, ends included."""

    def wire(sender: int, receiver: int) -> LinkSpec:
        port = _wire_port(cluster, sender, receiver)
        return LinkSpec(_wire_name(sender, receiver), port.bandwidth, f"gpu{sender}", f"gpu{receiver}", port.latency)

    def route(sender: int, receiver: int) -> Route:
        hops = list(pairwise(path(sender, receiver)))
        return Route(
            tuple(_wire_name(*ends) for ends in hops), tuple(_wire_port(cluster, *ends).latency for ends in hops)
        )

    links = {link.name: link for link in (wire(*ends) for ends in pairs)}
    return Fabric(links, route, cluster.gpus, cluster.node_of)


def _wire_name(sender: int, receiver: int) -> str:
    return f"gpu{sender}/to/gpu{receiver}"


def _wire_port(cluster: ClusterSpec, sender: int, receiver: int) -> PortSpec:
    """Figures of a direct link: NVLink within a node, else the slower NIC's bandwidth and the network's latency."""
    node, other = cluster.node_of[sender], cluster.node_of[receiver]
    if node == other:
        return cluster.nodes[node].nvlink
    if cluster.nodes[node] is cluster.nodes[other]:  # the usual case
        return cluster.nodes[node].infiniband
    bandwidths = [cluster.nodes[end].infiniband.bandwidth for end in (node, other)]
    slowest = min((bandwidth for bandwidth in bandwidths if bandwidth is not None), default=None)
    return PortSpec(slowest, cluster.latency(node, other))
