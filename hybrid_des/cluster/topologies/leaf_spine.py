"""Leaf-spine: non-blocking within a leaf; traffic between leaves shares the leaf's uplink to the spine.

    gpu0 ─nic-out─► leaf0 ─────────────────────────────────nic-in─► gpu8       nodes of one leaf
    gpu0 ─nic-out─► leaf0 ─up─► spine ─down─► leaf1 ─nic-in─► gpu16            nodes of two leaves

A leaf has `leaf_size` nodes (default 1). Its uplink and downlink each have the total bandwidth of its NICs divided by
`oversubscription` (default 1): at 4, with all NICs sending beyond the leaf, each gets a quarter. The spine itself is
non-blocking. Links within nodes, and latencies, are those of `nodes`.
"""

from fractions import Fraction
from functools import partial

from hybrid_des.cluster.fabric import ClusterSpec, Fabric, LinkSpec, Route
from hybrid_des.cluster.topologies.building_blocks import blocks_of, nics, through_nics
from hybrid_des.cluster.topologies.nodes import switched, uplinks
from hybrid_des.cluster.topologies.registration import topology
from hybrid_des.options import Count, Factor, Options


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
