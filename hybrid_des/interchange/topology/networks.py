"""The network between nodes: SLURM's topology files, and the fabric that ibnetdiscover finds.

    SwitchName=leaf1 Nodes=n[01-16]          SLURM: who is below which switch; no bandwidths
    Ca  1 "H-0002" # "node1 mlx5_0"          ibnetdiscover: an adapter, or a switch, with its links:
    [1](guid) "S-0001"[4] # lid 5 lmc 0 "leaf1" lid 1 4xNDR

If every adapter of a node is below another leaf, the leaves are rails. (schedmd.com topology.conf; ibnetdiscover(8))
"""

from hybrid_des.interchange.topology.block import Block

# Gb/s of data on 4 lanes (InfiniBand Trade Association roadmap)
RATES = {"SDR": 8, "DDR": 16, "QDR": 32, "FDR10": 40, "FDR": 54, "EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}


MOST_NODES = 2**20


def _ask_nodes(block: Block) -> None:
    block.gpu(None, "")
    block.ask("gpus_per_node", "the network does not show them")
