"""A `cluster:` block from the dump of a machine's or a network's topology, recognised by its content."""

from hybrid_des.interchange.topology.block import UNKNOWN, Block
from hybrid_des.interchange.topology.reading import read_topology

__all__ = [
    "UNKNOWN", "Block", "read_topology",
]  # fmt: skip
