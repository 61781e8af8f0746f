"""Nodes with one NVSwitch each, connected through NICs: by a non-blocking network, by leaves and a spine, or by rails.

    gpu0 ─nvlink-out─► NVSwitch ─nvlink-in─► gpu1          within a node
    gpu0 ─nic-out─► network ─nic-in─► gpu8                 between nodes; GPU i of g uses NIC floor(i·nics/g)

The latency of a path is counted once, after its first link. A single node is an NVSwitch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import Annotated, Literal

from hybrid_des.errors import Refusal
from hybrid_des.network.fabric import Bandwidth, Blocks, ClusterSpec, Fabric, LinkSpec, Route
from hybrid_des.network.topologies import (
    OfNode,
    OptionRefusal,
    blocks_of,
    both_ways,
    links_of,
    nics,
    through_nics,
    topology,
)
from hybrid_des.options import Count, Factor, Options, choice

KNOWN_ROUTES = 2**14  # that are kept: the same few thousand are asked for again and again


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


# Leaf-spine: non-blocking within a leaf; traffic between leaves shares the leaf's uplink to the spine.
#
#     gpu0 ─nic-out─► leaf0 ─────────────────────────────────nic-in─► gpu8       nodes of one leaf
#     gpu0 ─nic-out─► leaf0 ─up─► spine ─down─► leaf1 ─nic-in─► gpu16            nodes of two leaves
#
# A leaf has `leaf_size` nodes (default 1). Its uplink and downlink each have the total bandwidth of its NICs divided by
# `oversubscription` (default 1): at 4, with all NICs sending beyond the leaf, each gets a quarter. The spine itself is
# non-blocking. Links within nodes, and latencies, are those of `nodes`.


class LeafSpine(Options):
    """Sizes of leaves and spine."""

    oversubscription: Factor = Fraction(1)
    """Bandwidth below a switch divided by its bandwidth towards the spine."""
    leaf_size: Count = 1
    """Nodes per leaf."""


@topology(
    "leaf-spine",
    summary="nodes under leaf switches, leaves under a spine with optional oversubscription",
    options=LeafSpine,
)
def leaf_spine(cluster: ClusterSpec, options: LeafSpine) -> Fabric:
    """The links of `nodes`, plus an uplink and a downlink per leaf."""
    size, node_of = options.leaf_size, cluster.node_of
    network = partial(nics, cluster, beyond=lambda node, nic: f"leaf{node // size}")

    def links_up(leaf: int) -> tuple[LinkSpec, LinkSpec]:
        nodes = cluster.nodes[leaf * size : (leaf + 1) * size]
        ports = [node.infiniband.bandwidth for node in nodes for _ in range(node.nics)]
        return uplinks(f"leaf{leaf}", ports, options.oversubscription)

    def route(sender: int, receiver: int) -> Route:
        leaf, to_leaf = node_of[sender] // size, node_of[receiver] // size
        between = () if leaf == to_leaf else (f"leaf{leaf}/up", f"leaf{to_leaf}/down")
        return through_nics(cluster, sender, receiver, between)

    above = {f"leaf{leaf}": links_up(leaf) for leaf in range(-(-len(cluster.nodes) // size))}
    return switched(cluster, network, route, above, blocks_of(cluster, size))


# Rails: NIC i of every node is on leaf i, so that traffic of different rails never shares a network link.
#
#     gpu0 ─nic0-out─► rail0 ─nic0-in─► gpu8                                     the same rail
#     gpu0 ─nvlink─► gpu1 ─nic1-out─► rail1 ─nic1-in─► gpu9                      across, cross_rail: nvlink (default)
#     gpu0 ─nic0-out─► rail0 ─up─► spine ─down─► rail1 ─nic1-in─► gpu9           across, cross_rail: spine
#
# `nvlink` first forwards a message to the GPU of the sender's node on the receiver's rail, as NCCL does since 2.12
# (PXN), and needs no spine (Wang et al., "Rail-only", HotI 2024). With `spine`, a rail's uplink has the total bandwidth
# of its NICs divided by `oversubscription` (default 1). The latencies of NVLink and network are each counted once.


class Rails(Options):
    """How rails are connected."""

    cross_rail: Annotated[Literal["nvlink", "spine"], choice("nvlink", "spine")] = "nvlink"
    """How messages cross rails; nvlink: through the GPU of the sender's node on the receiver's rail."""
    oversubscription: Factor = Fraction(1)
    """Bandwidth below a switch divided by its bandwidth towards the spine."""


def check_rails(cluster: ClusterSpec, options: Rails) -> None:
    """Refuse clusters in which a node would have no NIC or no GPU on some rail."""
    counts = sorted({node.nics for node in cluster.nodes})
    if len(counts) > 1:
        raise Refusal(f"rails need the same number of NICs in every node, not {' and '.join(map(str, counts))}")
    fewest = min(node.gpus for node in cluster.nodes)
    if fewest < counts[0]:
        raise Refusal(
            f"rails need at least one GPU per NIC of a node; {fewest} GPUs leave some of the {counts[0]} rails empty"
        )
    if options.oversubscription != 1 and options.cross_rail != "spine":
        raise OptionRefusal("oversubscription", "applies to the spine, which exists only with cross_rail: spine")


@topology(
    "rails",
    summary="NIC i of every node on leaf i; crossing rails over NVLink (PXN) or a spine",
    options=Rails,
    check=check_rails,
)
def rails(cluster: ClusterSpec, options: Rails) -> Fabric:
    """The links of `nodes` and, with a spine, an uplink and a downlink per rail."""
    check_rails(cluster, options)
    network = partial(nics, cluster, beyond=lambda node, nic: f"rail{nic}")
    spine = options.cross_rail == "spine"
    ports = [node.infiniband.bandwidth for node in cluster.nodes]
    named = [f"rail{rail}" for rail in range(cluster.nodes[0].nics if spine else 0)]
    above = {rail: uplinks(rail, ports, options.oversubscription) for rail in named}

    def route(sender: int, receiver: int) -> Route:
        (node, index), (to_node, to_index) = cluster.places[sender], cluster.places[receiver]
        rail, to_rail = cluster.nodes[node].nic_of(index), cluster.nodes[to_node].nic_of(to_index)
        if rail == to_rail:
            return through_nics(cluster, sender, receiver)
        if spine:
            return through_nics(cluster, sender, receiver, (f"rail{rail}/up", f"rail{to_rail}/down"))
        relay = sender - index + _on_rail(cluster, node, to_rail, to_index)
        first, second = through_nvswitch(cluster, sender, relay), through_nics(cluster, relay, receiver)
        return Route(first.links + second.links, first.latencies + second.latencies)

    return switched(cluster, network, route, above, blocks_of(cluster))


def _on_rail(cluster: ClusterSpec, node: int, rail: int, like: int) -> int:
    """The GPU of a node that forwards to a rail: preferably the one with the receiver's index."""
    spec = cluster.nodes[node]
    if like < spec.gpus and spec.nic_of(like) == rail:
        return like
    return next(gpu for gpu in range(spec.gpus) if spec.nic_of(gpu) == rail)
