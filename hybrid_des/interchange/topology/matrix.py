"""The text of `nvidia-smi topo -m`: links between each two devices of one machine.

            GPU0  GPU1  NIC0  CPU Affinity …        NV#   # NVLinks          PIX, PXB  below one PCIe switch
    GPU0     X    NV12  PXB   0-15                  PHB, NODE, SYS           over the host
    …
    NIC Legend:  NIC0: mlx5_0

With switches every pair shows all links of a GPU; without, those of the pair, at most 18 in all.
"""

import re
from collections.abc import Mapping

from hybrid_des.errors import UsageError, one_line
from hybrid_des.interchange.topology.block import Block

MOST_LINKS = 18  # of a GPU: NVIDIA H100 and B200 datasheets
EACH = 25  # GB/s of an NVLink and direction: versions 2 … 4; 50 in version 5
NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")  # from near to far: nvidia-smi topo -m, its legend
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")


def read_matrix(text: str, name: str) -> Block:
    """The cluster of one machine.

    Raises:
        UsageError: rows and columns do not fit.
    """
    rows = _rows(_ESCAPE.sub("", text), name)
    gpus = [device for device in rows if device.startswith("GPU")]
    nics = [device for device in next(iter(rows.values())) if not device.startswith("GPU")]
    names = dict(re.findall(r"^\s*(NIC\d+)\s*:\s*(\S+)", text, flags=re.MULTILINE))
    block = Block(f"From {one_line(name)}: nvidia-smi topo -m of one machine.")
    block.gpu(None, "")
    block.add("nodes", 1, "one machine was listed")
    block.add("gpus_per_node", len(gpus))
    links = {(one, other): _links(rows[one].get(other, "")) for one in gpus for other in gpus if one != other}
    totals = {one: sum(count for pair, count in links.items() if pair[0] == one) for one in gpus}
    if not any(links.values()):
        block.ask("nvlink.bandwidth", "no NVLink: the bandwidth of each GPU's PCIe port, or topology: pcie")
    elif len(gpus) == 2 or max(totals.values()) > MOST_LINKS:
        count = min(filter(None, links.values()))
        comment = f"NV{count} × {EACH} GB/s; × 50 with NVLink 5 (Blackwell)"
        block.add("nvlink.bandwidth", f"{count * EACH} GB/s", comment)
    else:
        _mesh(block, gpus, links)
    _adapters(block, rows, gpus, nics, names)
    return block


def _rows(text: str, name: str) -> dict[str, dict[str, str]]:
    """The relations of every device in the matrix to the devices of its columns."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if re.match(r"\s*GPU0\s", f"{line} "))
    header = [word for word in lines[start].split() if re.fullmatch(r"(GPU|NIC)\d+|mlx\w*|hfi\w*|bnxt\w*", word)]
    rows: dict[str, dict[str, str]] = {}
    for line in lines[start + 1 :]:
        device, *cells = line.split() or [""]
        if device not in header:
            if rows:
                break
            continue
        if len(cells) < len(header):
            raise UsageError(f"{name}: row {device}: {len(cells)} cells for {len(header)} devices; is the dump cut?")
        rows[device] = dict(zip(header, cells, strict=False))
    if missing := [device for device in header if device.startswith("GPU") and device not in rows]:
        raise UsageError(f"{name}: row {missing[0]} is missing; is the dump cut?")
    return rows


def _links(cell: str) -> int:
    match = re.fullmatch(r"NV(\d+)", cell)
    return int(match[1]) if match else 0


def _mesh(block: Block, gpus: list[str], links: Mapping[tuple[str, str], int]) -> None:
    """NVLinks from GPU to GPU, as in a DGX-1."""
    wires = [
        {"between": [one.lower(), other.lower()], "bandwidth": f"{count * EACH} GB/s", "latency": "1.5 us"}
        for (one, other), count in links.items()
        if count and gpus.index(one) < gpus.index(other)
    ]
    block.add("topology", "links", "GPUs are linked to each other, without a switch")
    block.add("links", wires, f"NV# × {EACH} GB/s each way; the latency is that of NVLink in hybrid-des's catalogue")


def _adapters(
    block: Block, rows: Mapping[str, Mapping[str, str]], gpus: list[str], nics: list[str], names: Mapping[str, str]
) -> None:
    if not nics:
        block.ask("infiniband.bandwidth", "no adapter is listed: bandwidth of each")
        block.ask("infiniband.nics_per_node", "their number")
        return
    below = [nic for nic in nics if any(rows[gpu].get(nic) in ("PIX", "PXB") for gpu in gpus)]
    used = below or nics
    block.ask("infiniband.bandwidth", "of each adapter: nvidia-smi does not say it; ibstat does")
    block.add("infiniband.nics_per_node", len(used), ", ".join(names.get(nic, nic) for nic in used))
    if left := [names.get(nic, nic) for nic in nics if nic not in used]:
        block.notes.append(f"left out, below no PCIe switch of a GPU: {', '.join(left)}")
    for gpu in gpus:
        distance = {nic: NEAR.index(cell) for nic in used if (cell := rows[gpu].get(nic, "")) in NEAR}
        nearest = [nic for nic, far in distance.items() if far == min(distance.values())]
        word = f" ({NEAR[min(distance.values())]})" if distance else ""
        block.notes.append(f"{gpu}: {', '.join(names.get(nic, nic) for nic in nearest) or 'no adapter'}{word}")
