"""The topology of one machine: the matrix of `nvidia-smi topo -m`.

            GPU0  GPU1  NIC0  CPU Affinity …        NV#   # NVLinks          PIX, PXB  below one PCIe switch
    GPU0     X    NV12  PXB   0-15                  PHB, NODE, SYS           over the host
    …
    NIC Legend:  NIC0: mlx5_0

With switches every pair shows all links of a GPU; without, those of the pair, so that a GPU's sum to at most 18. The
generation of NVLink, and so its bandwidth, is that of the GPU, if `nvidia-smi` or `nvidia-smi -L` beside the matrix
names it. `topo -mp` has the same matrix without NVLinks, and no NV# in its legend; `topo -p2p` another one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.topology.block import Block
from hybrid_des.interchange.topology.node_links import Links, add_meshed, add_switched
from hybrid_des.interchange.topology.pasted import from_here, note_others
from hybrid_des.units import format_bandwidth

MOST_LINKS = 18  # of a GPU: NVIDIA H100 and B200 datasheets
EACH, EACH_OF_5 = 25, 50  # GB/s of an NVLink and direction: versions 2 … 4; 5 (NVIDIA datasheets of V100 … H100; B200)
AMBIGUOUS = 18  # links that GPUs of version 4 and of version 5 have
BRIDGED = 4, 14.0625  # links, and GB/s of each: NVIDIA datasheets of A40 and RTX A6000, 112.5 GB/s both ways
NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")  # from near to far: nvidia-smi topo -m, its legends
RELATION = re.compile(rf"X|NV\d+|PSB|{'|'.join(NEAR)}")
HEADER = re.compile(r"(?m)^.*?(?P<dump>\bGPU0(?=[ \t|]+(?:GPU1|NIC0|mlx|hfi|bnxt|CPU)\b|[ \t|]*$)).*$")
_NAMES = (  # of GPUs: nvidia-smi -L, its table, and rows of --query-gpu
    r"(?m)^\W*GPU \d+: ([^(\n]+?)\s*(?:\(UUID|$)",
    r"(?m)^\W*\|\s+\d+\s+(\S[^|\n]*?)\s+(?:On|Off|N/A)\s*\|",
    r"(?m)^\s*\d+, *((?:NVIDIA|Tesla|A100)[^,\n]*),",
)


class Matrix(NamedTuple):
    """The relations of a machine's devices.

    Attributes:
        rows: of each device to those of the columns.
        gpus: names of GPUs.
        nics: names of adapters, with those that the legend gives them.
        beside: the text around it, for the names of GPUs and the legend.
    """

    rows: Mapping[str, Mapping[str, str]]
    gpus: Sequence[str]
    nics: Mapping[str, str]
    beside: str


def read_matrix(text: str, name: str) -> Block:
    """The cluster of one machine.

    Raises:
        UsageError: rows and columns do not fit, or are those of another command.
    """
    headers = list(HEADER.finditer(text))
    problems: list[UsageError] = []
    for number, header in enumerate(headers):
        try:
            matrix = _matrix(text, from_here(text, header.start("dump")), name)
        except UsageError as problem:
            problems.append(problem)
            continue
        block = Block(f"From {one_line(name)}: nvidia-smi topo -m of one machine.")
        note_others(block.notes, text, [one.start("dump") for one in headers], number)
        _fill(block, matrix)
        return block
    raise problems[0]


def _matrix(text: str, dump: str, name: str) -> Matrix:
    rows = _rows(dump, name)
    columns = next(iter(rows.values()))
    names = dict(re.findall(r"(?m)^\W*(NIC\d+)\s*:\s*(\S+)", dump))
    nics = {device: names.get(device, device) for device in columns if not device.startswith("GPU")}
    return Matrix(rows, [device for device in columns if device.startswith("GPU")], nics, text)


def _rows(dump: str, name: str) -> dict[str, dict[str, str]]:
    """The relations of every device in the matrix to the devices of its columns."""
    lines = [line.replace("|", " ") for line in dump.split("\n")]
    header = lines[0].partition("CPU")[0].split()
    rows: dict[str, dict[str, str]] = {}
    for line in lines[1:]:
        device, *cells = line.split() or [""]
        if device not in header:
            if rows:
                break
            continue
        if len(cells) < len(header):
            raise UsageError(f"{name}: row {device}: {len(cells)} cells for {len(header)} devices; is the dump cut?")
        rows[device] = dict(zip(header, cells, strict=False))
        if wrong := [cell for cell in rows[device].values() if not RELATION.fullmatch(cell)]:
            shown = one_line(wrong[0], LONGEST_SHOWN)
            raise UsageError(f'{name}: row {device}: "{shown}"; expected relations of topo -m, such as NV4, PIX or SYS')
    if missing := [device for device in header if device.startswith("GPU") and device not in rows]:
        raise UsageError(f"{name}: row {missing[0]} is missing; is the dump cut?")
    return rows


def _fill(block: Block, matrix: Matrix) -> None:
    named = _named(matrix.beside)
    known = catalogue.named_in(named[0]) if len(named) == 1 else None
    block.gpu(known, " and ".join(named))
    block.add("nodes", 1, "one machine was listed")
    block.add("gpus_per_node", len(matrix.gpus))
    _nvlinks(block, matrix, known, named)
    _adapters(block, matrix)


def _named(text: str) -> list[str]:
    """The names of GPUs beside a matrix, each once."""
    names = (name for pattern in _NAMES for name in re.findall(pattern, text))
    return list(dict.fromkeys(one_line(name.removeprefix("NVIDIA "), LONGEST_SHOWN) for name in names))


def _nvlinks(block: Block, matrix: Matrix, known: str | None, named: Sequence[str]) -> None:
    gpus = matrix.gpus
    counts = [[_count(matrix.rows[one].get(other, "")) for other in gpus] for one in gpus]
    most = max(max(row) for row in counts)
    if len(gpus) > 1 and not most:
        block.ask("nvlink.bandwidth", _without(matrix))
    if not most:
        return
    links = _links(gpus, most, known, named)
    limit = MOST_LINKS if known is None or links.each is None else _links_of(known, links.each)
    if len(gpus) == 2 or max(map(sum, counts)) > limit:
        bridged = known is None and len(gpus) == 2 and most == BRIDGED[0]
        unless = f"; {most * BRIDGED[1]:g} GB/s for A40, RTX A6000, RTX 3090" if bridged else ""
        add_switched(block, links, [max(row) for row in counts], unless)
        return
    unless = "" if known else f"; if that is of an NVSwitch, topology: nodes and {links.bandwidth(most)}"
    pairs = {(one, other): count for one, row in enumerate(counts) for other, count in enumerate(row) if one < other}
    add_meshed(block, links, {pair: count for pair, count in pairs.items() if count}, unless)


def _count(cell: str) -> int:
    return int(cell[2:]) if cell.startswith("NV") else 0


def _links(gpus: Sequence[str], most: int, known: str | None, named: Sequence[str]) -> Links:
    """What the NVLinks of a matrix are, by the GPU if it is known."""
    if known is not None:
        part = catalogue.part(known)
        each = EACH_OF_5 if part.nvlink.name == "nvlink5" else EACH
        return Links(gpus, each, ports=[format_bandwidth(part.pcie.bandwidth)] * len(gpus))
    if named:
        return Links(gpus, None, question=f"NV{most} of {' and '.join(named)}: links × bandwidth of each")
    if most < AMBIGUOUS:
        return Links(gpus, EACH)
    values = f"{most * EACH} GB/s with NVLink 4 (H100, H200), {most * EACH_OF_5} with NVLink 5 (Blackwell)"
    return Links(gpus, None, question=f"NV{most} is {values}")


def _links_of(gpu: str, each: float) -> int:
    """How many NVLinks a GPU of the catalogue has."""
    return int(catalogue.part(gpu).nvlink.bandwidth / 10**9 / int(each))


def _without(matrix: Matrix) -> str:
    """What to state where the matrix has no NVLink: `topo -mp` does not show them."""
    beside = matrix.beside
    port = "the bandwidth of each GPU's PCIe port, or topology: pcie"
    if "topo -mp" in beside or (re.search(r"(?m)^\W*PIX\s*=", beside) and not re.search(r"(?m)^\W*NV#", beside)):
        return "nvidia-smi topo -mp hides NVLinks; nvidia-smi topo -m shows them"
    if re.search(r"(?m)^\W*NV#|\btopo -m\b", beside):
        return f"no NVLink: {port}"
    return f"no NVLink; if this is of nvidia-smi topo -mp, which hides them, see topo -m; else {port}"


def _adapters(block: Block, matrix: Matrix) -> None:
    """Which adapters GPUs use, and which GPU is near which."""
    nics, rows = matrix.nics, matrix.rows
    if not nics:
        block.ask_adapters("no adapter is listed: bandwidth of each")
        return
    below = [nic for nic in nics if any(rows[gpu].get(nic) in ("PIX", "PXB", "PSB") for gpu in matrix.gpus)]
    used = below or list(nics)
    block.ask("infiniband.bandwidth", "of each adapter: nvidia-smi does not say it; ibstat does")
    block.add("infiniband.nics_per_node", len(used), ", ".join(nics[nic] for nic in used))
    if left := [nics[nic] for nic in nics if nic not in used]:
        block.notes.append(f"left out, below no PCIe switch of a GPU: {', '.join(left)}")
    block.notes += [f"{gpu}: {near}" for gpu, near in _near(matrix, used)]


def _near(matrix: Matrix, used: Sequence[str]) -> Iterator[tuple[str, str]]:
    for gpu in matrix.gpus:
        distance = {nic: NEAR.index(cell) for nic in used if (cell := matrix.rows[gpu].get(nic, "")) in NEAR}
        nearest = [nic for nic, far in distance.items() if far == min(distance.values())]
        word = f" ({NEAR[min(distance.values())]})" if distance else ""
        yield gpu, f"{', '.join(matrix.nics[nic] for nic in nearest) or 'no adapter'}{word}"
