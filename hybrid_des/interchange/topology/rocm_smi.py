"""The topology of one machine: tables of `rocm-smi --showtopo` and `amd-smi topology`.

    ===== Weight between two GPUs =====      WEIGHT TABLE:
    ===== Hops between two GPUs =======      HOPS TABLE:          15 × hops for XGMI (Linux, amdgpu's kfd_crat.c)
    ===== Link Type between two GPUs ==      LINK TYPE TABLE:     XGMI, PCIE
           GPU0         GPU1                             0000:05:00.0 0000:26:00.0
    GPU0   0            XGMI                 0000:05:00.0 SELF         XGMI

They have neither the number of links nor adapters.
"""

import re
from collections.abc import Mapping, Sequence

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.topology.block import Block
from hybrid_des.interchange.topology.node_links import Links, add_meshed
from hybrid_des.interchange.topology.pasted import from_here, note_others
from hybrid_des.units import format_bandwidth

HEADS = re.compile(
    r"(?m)^.*?(?P<dump>=*[ \t]*\b(?P<kind>Weight|Hops|Link Type) (?:between two GPUs|TABLE)\b)", flags=re.IGNORECASE
)
WEIGHT = "15"  # of one hop over XGMI: KFD_CRAT_XGMI_WEIGHT
EACH = {"MI300X, MI325X": 64.0, "MI355X": 76.8, "MI250X": 50.0, "MI100": 46.0}  # GB/s of a link: see nccl_xml.py
Table = Mapping[str, Mapping[str, str]]


def read_rocm_smi(text: str, name: str) -> Block:
    """The cluster of one machine.

    Raises:
        UsageError: a table is damaged, or there is none of link types.
    """
    tables: dict[str, Table] = {}
    starts = []
    for head in HEADS.finditer(text):
        kind = head["kind"].lower()
        starts += [head.start("dump")] if kind == "link type" else []
        if kind not in tables:
            tables[kind] = _table(from_here(text, head.start("dump")), kind, name)
    if "link type" not in tables:
        raise UsageError(f"{name}: no table of link types; expected the whole output of rocm-smi --showtopo")
    types = tables["link type"]
    block = Block(f"From {one_line(name)}: the topology of one machine, by AMD's tool.")
    note_others(block.notes, text, starts)
    device = re.search(r"Card [Ss]eries:\s*(.*\S)|MARKET_NAME:\s*(.*\S)", text)
    label = one_line(device[1] or device[2], LONGEST_SHOWN) if device else ""
    known = catalogue.named_in(label)
    block.gpu(known, label)
    block.add("nodes", 1, "one machine was listed")
    block.add("gpus_per_node", len(types))
    _xgmi(block, types, tables, known)
    block.ask_adapters("of each adapter: AMD's tool does not list them")
    return block


def _table(dump: str, kind: str, name: str) -> Table:
    """Cells by row and column of the table that begins below its title."""
    lines = [line.replace("|", " ").split() for line in dump.split("\n")[1:]]
    filled = [words for words in lines if words]
    header = filled[0] if filled else []
    rows = {}
    for device, *cells in filled[1 : len(header) + 1]:
        if device in header and len(cells) >= len(header):
            rows[device] = dict(zip(header, cells, strict=False))
    if not header or len(rows) < len(header):
        raise UsageError(f"{name}: the table of {kind}s has {len(rows)} of {len(header)} rows; is the dump cut?")
    return rows


def _xgmi(block: Block, types: Table, tables: Mapping[str, Table], known: str | None) -> None:
    """The pairs of GPUs that XGMI links directly."""
    gpus = list(types)
    cells = {(one, other): types[one][other] for one in gpus for other in gpus if one != other}
    if strange := sorted(set(cells.values()) - {"XGMI", "PCIE"}):
        block.notes.append(f"not understood, and taken for no link: {', '.join(one_line(one, 20) for one in strange)}")
    weights, hops = tables.get("weight"), tables.get("hops")
    pairs = {
        (place, further): 1
        for place, one in enumerate(gpus)
        for further, other in enumerate(gpus)
        if place < further and cells[one, other] == "XGMI"
        if weights is None or weights[one].get(other) == WEIGHT
        if weights is not None or hops is None or hops[one].get(other) == "1"
    }
    if len(gpus) > 1 and not pairs:
        block.ask("nvlink.bandwidth", "no XGMI: the bandwidth of each GPU's PCIe port, or topology: pcie")
    elif pairs:
        add_meshed(block, _links(gpus, known), pairs)


def _links(gpus: Sequence[str], known: str | None) -> Links:
    """What the XGMI links are, by the GPU if it is known: one to each other of its usual node."""
    if known is None:
        values = ", ".join(f"{each:g} GB/s ({names})" for names, each in EACH.items())
        return Links(
            gpus, None, "XGMI", question=f"how many XGMI links a GPU has is not in the dump; of each: {values}"
        )
    part = catalogue.part(known)
    each = float(part.nvlink.bandwidth) / 10**9 / (part.gpus_per_node - 1)
    return Links(gpus, each, "XGMI", [format_bandwidth(part.pcie.bandwidth)] * len(gpus))
