"""A `cluster:` block from the dump of a machine's or a network's topology, recognised by its content.

read_topology(text, "topo.xml")     # a Block: the cluster's values with comments, and what is unknown

nccl_xml         NCCL_TOPO_DUMP_FILE of NCCL and RCCL
rocm_smi         rocm-smi --showtopo, amd-smi topology
nvidia_smi       nvidia-smi topo -m
slurm            SLURM's topology.conf, topology.yaml, and scontrol show topology
ibnetdiscover    the fabric that InfiniBand's tool of this name finds
"""

import re

from hybrid_des.errors import UsageError
from hybrid_des.interchange.topology.block import Block
from hybrid_des.interchange.topology.ibnetdiscover import read_ibnetdiscover
from hybrid_des.interchange.topology.nccl_xml import read_nccl_xml
from hybrid_des.interchange.topology.nvidia_smi import HEADER, read_matrix
from hybrid_des.interchange.topology.pasted import plain
from hybrid_des.interchange.topology.rocm_smi import HEADS, read_rocm_smi
from hybrid_des.interchange.topology.slurm import read_slurm, read_slurm_yaml

_READERS = (  # the first whose pattern is found
    (re.compile(r"<system[\s>]"), read_nccl_xml),
    (HEADS, read_rocm_smi),
    (HEADER, read_matrix),
    (re.compile(r"(?m)^(Switch|Ca)\s+\d+\s+\""), read_ibnetdiscover),
    (re.compile(r"(?i)\b(SwitchName|BlockName)\s*="), read_slurm),
    (re.compile(r"(?m)^\s*-?\s*(tree|block|flat)\s*:"), read_slurm_yaml),
)
EXPECTED = (
    "XML of NCCL or RCCL, nvidia-smi topo -m, rocm-smi --showtopo, SLURM's topology.conf or .yaml, "
    "scontrol show topology, or ibnetdiscover"
)


def read_topology(text: str, name: str) -> Block:
    """The cluster that a dump describes.

    Args:
        text: the dump.
        name: where it comes from, for errors.

    Raises:
        UsageError: it is none of the known formats, or is damaged; the message says where.
    """
    text = plain(text)
    for pattern, read in _READERS:
        if pattern.search(text):
            return read(text, name)
    raise UsageError(f"{name}: not recognised; expected {EXPECTED}")
