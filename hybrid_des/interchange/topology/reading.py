"""A `cluster:` block from the dump of a machine's or a network's topology, recognised by its content.

read_topology(text, "topo.xml")     # a Block: the cluster's values with comments, and what is unknown

machines         NCCL_TOPO_DUMP_FILE of NCCL and RCCL, nvidia-smi topo -m
slurm            SLURM's topology.conf and topology.yaml
ibnetdiscover    the fabric that InfiniBand's tool of this name finds
"""

import re

from hybrid_des.errors import UsageError
from hybrid_des.interchange.topology.block import Block
from hybrid_des.interchange.topology.ibnetdiscover import read_ibnetdiscover
from hybrid_des.interchange.topology.machines import read_matrix, read_nccl_xml
from hybrid_des.interchange.topology.slurm import read_slurm, read_slurm_yaml

_READERS = (  # the first whose pattern is found
    (r"<system[\s>]", read_nccl_xml),
    (r"(?m)^\s*(\x1b\[\d*m)*\s*GPU0\s", read_matrix),
    (r"(?m)^(Switch|Ca)\s+\d+\s+\"", read_ibnetdiscover),
    (r"(?mi)^\s*(SwitchName|BlockName)\s*=", read_slurm),
    (r"(?m)^\s*-?\s*(tree|block|flat)\s*:", read_slurm_yaml),
)
EXPECTED = "XML of NCCL or RCCL, nvidia-smi topo -m, SLURM's topology.conf or .yaml, or ibnetdiscover"


def read_topology(text: str, name: str) -> Block:
    """The cluster that a dump describes.

    Args:
        text: the dump.
        name: where it comes from, for errors.

    Raises:
        UsageError: it is none of the known formats, or is damaged; the message says where.
    """
    for pattern, read in _READERS:
        if re.search(pattern, text):
            return read(text, name)
    raise UsageError(f"{name}: not recognised; expected {EXPECTED}")
