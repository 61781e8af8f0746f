"""Topologies, each a function that maps a `ClusterSpec` to the links and routes of a `Fabric`."""

from hybrid_des.cluster.topologies.building_blocks import (
    NicPoint,
    OfNode,
    blocks_of,
    both_ways,
    links_of,
    nics,
    through_nics,
)
from hybrid_des.cluster.topologies.registration import Check, Topology, find, names, topology
from hybrid_des.errors import OptionRefusal

__all__ = [
    "Check", "NicPoint", "OfNode", "OptionRefusal", "Topology", "blocks_of", "both_ways", "find", "links_of",
    "names", "nics", "through_nics", "topology",
]  # fmt: skip
