"""Nodes with one NVSwitch each, connected through NICs: by a non-blocking network, by leaves and a spine, or by rails.

    gpu0 ─nvlink-out─► NVSwitch ─nvlink-in─► gpu1          within a node
    gpu0 ─nic-out─► network ─nic-in─► gpu8                 between nodes; GPU i of g uses NIC floor(i·nics/g)

The latency of a path is counted once, after its first link. A single node is an NVSwitch alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial

from hybrid_des.cluster.fabric import Bandwidth, Blocks, ClusterSpec, Fabric, LinkSpec, Route
from hybrid_des.cluster.topologies.building_blocks import OfNode, blocks_of, both_ways, links_of, nics, through_nics
from hybrid_des.cluster.topologies.registration import topology

KNOWN_ROUTES = 2**15  # that are kept: a plan of 1,024 GPUs with experts asks for 16,463


def _nvlinks(cluster: ClusterSpec, node: int) -> Iterator[LinkSpec]:
    """Two links per GPU of a node: out to its NVSwitch, and in."""
    spec, first = cluster.nodes[node], cluster.first_gpu(node)
    port = spec.nvlink
    for index in range(spec.gpus):
        ends = (f"gpu{first + index}", f"node{node}/nvswitch")
        yield from both_ways(f"node{node}/gpu{index}/nvlink-", ("out", "in"), port.bandwidth, ends, port.latency)


def through_nvswitch(cluster: ClusterSpec, sender: int, receiver: int) -> Route:
    """The route between two GPUs of one node: port out, port in."""
    (node, index), (_, to_index) = cluster.places[sender], cluster.places[receiver]
    ends = (f"node{node}/gpu{index}/nvlink-out", f"node{node}/gpu{to_index}/nvlink-in")
    return Route(ends, (cluster.nodes[node].nvlink.latency, 0))


def switched(
    cluster: ClusterSpec,
    network: OfNode,
    between: Callable[[int, int], Route],
    above: Mapping[str, Iterable[LinkSpec]] | None = None,
    blocks: Blocks | None = None,
) -> Fabric:
    """A fabric with one NVSwitch per node; switches with in-network reduction are numbered after the GPUs.

    Args:
        cluster: the nodes.
        network: node → its links beyond NVLink.
        between: maps two GPUs of different nodes to a route.
        above: switch → its links to the spine.
        blocks: equal blocks of GPUs.
    """
    gpus, node_of = cluster.gpus, cluster.node_of
    reducers = {} if cluster.isomorphic and not cluster.nodes[0].in_switch else {
        number: gpus + number for number, node in enumerate(cluster.nodes) if node.in_switch
    }  # fmt: skip

    @lru_cache(maxsize=KNOWN_ROUTES)
    def route(sender: int, receiver: int) -> Route:
        if reducers and max(sender, receiver) >= gpus:
            return _to_reducer(cluster, sender, receiver)
        if node_of[sender] == node_of[receiver]:
            return through_nvswitch(cluster, sender, receiver)
        return between(sender, receiver)

    links = links_of(cluster, partial(_nvlinks, cluster), network, above=above)
    return Fabric(links, route, gpus, node_of, reducers, blocks)


def _to_reducer(cluster: ClusterSpec, sender: int, receiver: int) -> Route:
    """The route between a GPU and its NVSwitch: one port, and half the GPU-to-GPU latency."""
    node, index = cluster.places[min(sender, receiver)]
    half = cluster.nodes[node].nvlink.latency // 2
    if receiver > sender:
        return Route((f"node{node}/gpu{index}/nvlink-out",), (cluster.nodes[node].nvlink.latency - half,))
    return Route((f"node{node}/gpu{index}/nvlink-in",), (half,))


def uplinks(switch: str, ports: Sequence[Bandwidth], oversubscription: Fraction) -> tuple[LinkSpec, LinkSpec]:
    """A switch's links to the spine and back, each with the sum over its ports divided by the oversubscription."""
    bandwidth = None if None in ports else Fraction(sum(filter(None, ports))) / oversubscription
    return both_ways(f"{switch}/", ("up", "down"), bandwidth, (switch, "spine"))


@topology("nodes", summary="an NVSwitch in each node, a non-blocking network between NICs")
def nodes(cluster: ClusterSpec) -> Fabric:
    """Two links per GPU and two per NIC: out and in."""
    network = partial(nics, cluster, beyond=lambda node, nic: "network")
    return switched(cluster, network, partial(through_nics, cluster), blocks=blocks_of(cluster))
