"""The topology of one machine: XML of NCCL_TOPO_DUMP_FILE as NCCL or RCCL saw it, and `nvidia-smi topo -m`.

    <cpu numaid>  <pci busid device link_speed link_width>  <gpu dev sm>  <nvlink target count tclass>   RCCL: <xgmi>
                  <pci …>  <nic>  <net name speed>          (NVIDIA/nccl, src/graph/xml.h; ROCm/rccl the same)

An NVLink whose target has class 0x068000 goes to an NVSwitch; others go to a GPU. Speeds of <net> are in Mb/s.
Adapters below the same PCIe switch as a GPU are those of the GPUs; others (storage) are left out, unless there are no
such; ports too slow for a network of GPUs always are. Bridges of one kind below each other are ports of one switch, as
NCCL takes them to be (ncclTopoFlattenBcmSwitches in src/graph/topo.cc): so all its adapters are equally near.

            GPU0  GPU1  NIC0  CPU Affinity …        NV#   # NVLinks          PIX, PXB  below one PCIe switch
    GPU0     X    NV12  PXB   0-15                  PHB, NODE, SYS           over the host
    …
    NIC Legend:  NIC0: mlx5_0

With switches every pair shows all links of a GPU; without, those of the pair, at most 18 in all.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from xml.etree import ElementTree

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.topology.block import UNKNOWN, Block

SWITCH = "0x068000"
# GB/s of a link and direction, by compute capability. NVLink 1 … 5: 20, 25, 25, 25, 50 (NVIDIA datasheets of P100,
# V100, A100, H100: 900 GB/s both ways over 18 links; B200: 1,800 over 18)
NVLINK = {"6": 20, "7": 25, "8": 25, "9": 25, "10": 50, "12": 50}
# GB/s of an XGMI link and direction, by architecture: 92, 100, 100 and 128 GB/s both ways (AMD's CDNA, CDNA 2, CDNA 3
# white papers: MI100 3 links, MI250X, MI300X 7 links of 128 GB/s; MI355X 7 of 153.6)
XGMI = {"908": 46.0, "910": 50.0, "gfx90a": 50.0, "gfx942": 64.0, "gfx950": 76.8}
# Names by PCI device (pci-ids.ucw.cz)
DEVICES = {
    "0x1db1": "v100-16gb", "0x1db5": "v100-32gb", "0x20b0": "a100-40gb", "0x20b2": "a100-80gb", "0x2330": "h100",
    "0x2335": "h200", "0x2329": "h20", "0x2901": "b200", "0x2941": "gb200", "0x3182": "b300", "0x31c2": "gb300",
    "0x74a1": "mi300x", "0x74a5": "mi325x", "0x75a3": "mi355x",
}  # fmt: skip
SLOW = 10_000  # Mb/s: below it, Ethernet that manages a node; InfiniBand had 10 Gb/s from its first rate, SDR, on
Wire = dict[str, Any]
_GPU_CLASSES, _NIC_CLASSES = ("0x0302", "0x0380", "0x1200"), ("0x0207", "0x0200")


class _Port(NamedTuple):
    """A network adapter's port, or a GPU: its name, PCIe address, and the bridges above it."""

    name: str
    bus: str
    above: tuple[str, ...]
    element: ElementTree.Element
    pci: Mapping[str, str]


def read_nccl_xml(text: str, name: str) -> Block:
    """The cluster of one machine.

    Raises:
        UsageError: it is damaged, or holds no GPU.
    """
    system = _parsed(text, name)
    gpus, nets = _found(system, "gpu"), _found(system, "net")
    library = "NCCL" if next(system.iter("xgmi"), None) is None else "RCCL"
    block = Block(f"From {one_line(name)}: the topology that {library} saw.")
    if not gpus:
        return _pci_only(block, system, name)
    hosts = {cpu.get("host_hash") for cpu in system.iter("cpu")}
    device = {gpu.pci.get("device", "") for gpu in gpus}
    number = device.pop() if len(device) == 1 else ""
    capability = gpus[0].element.get("sm", "?")
    kind = gpus[0].element.get("gcn") or f"compute capability {capability[:-1]}.{capability[-1:]}"
    block.gpu(DEVICES.get(number), f"{kind}, PCI device {number}" if number else kind)
    block.add("nodes", len(hosts), "as many as were dumped" if len(hosts) > 1 else "one machine was dumped")
    per_node = len(gpus) // len(hosts)
    block.add("gpus_per_node", per_node)
    _links(block, gpus, name)
    _adapters(block, gpus, nets, len(hosts))
    return block


def _parsed(text: str, name: str) -> ElementTree.Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise UsageError(f"{name}: holds a document type; expected plain XML of NCCL_TOPO_DUMP_FILE")
    try:
        system = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise UsageError(f"{name}: not whole XML: {error}; expected a dump of NCCL_TOPO_DUMP_FILE") from None
    root = system if system.tag == "system" else system.find(".//system")
    if root is None:
        raise UsageError(f"{name}: no <system>; expected a dump of NCCL_TOPO_DUMP_FILE")
    return root


def _found(system: ElementTree.Element, tag: str) -> list[_Port]:
    """All elements of a kind, with their places in the tree of PCIe switches."""
    ports = [
        _Port(element.get("name") or f"GPU {element.get('dev', '?')}", bus, above, element, pci)
        for element, bus, above, pci in _placed(system)
        if element.tag == tag
    ]
    numbers = [port.element.get("dev", "") for port in ports]
    if all(number.isdecimal() for number in numbers) and len(set(numbers)) == len(numbers):
        ports.sort(key=lambda port: int(port.element.get("dev", "")))
    return ports


_Placed = tuple[ElementTree.Element, str, tuple[str, ...], Mapping[str, str]]


def _placed(
    element: ElementTree.Element,
    above: tuple[str, ...] = (),
    bus: str = "",
    pci: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[_Placed]:
    """All elements below one, each with its PCIe address, the switches above it, and the attributes of its port."""
    for inner in element:
        if inner.tag != "pci":
            yield inner, bus, above, pci
            yield from _placed(inner, above, bus, pci)
            continue
        kind = (inner.get("vendor"), inner.get("device"))
        one_switch = bus and None not in kind and kind == (pci.get("vendor"), pci.get("device"))
        over = above if one_switch or not bus else (*above, bus)
        yield inner, inner.get("busid", ""), over, inner.attrib
        yield from _placed(inner, over, bus if one_switch else inner.get("busid", ""), inner.attrib)


def _pcie(pci: Mapping[str, str]) -> str | None:
    """Bandwidth of a PCIe port: transfers per second × lanes, of which 128 of 130 bits (up to 5 GT/s 8 of 10) count."""
    rate, width = re.match(r"[\d.]+", pci.get("link_speed", "")), pci.get("link_width", "")
    if rate is None or not width.isdecimal():
        return None
    transfers = float(rate[0])
    return f"{transfers * int(width) / 8 * (128 / 130 if transfers > 5 else 8 / 10):.4g} GB/s"


def _number(element: ElementTree.Element, key: str, name: str) -> int:
    """A whole number of an element.

    Raises:
        UsageError: it is none.
    """
    text = element.get(key, "")
    if not text.isdecimal():
        shown = one_line(text, LONGEST_SHOWN)
        raise UsageError(f'{name}: <{element.tag} {key}="{shown}">: expected a whole number')
    return int(text)


def _links(block: Block, gpus: Sequence[_Port], name: str) -> None:
    """The links between the GPUs of a node: to a switch, or from GPU to GPU."""
    places = {gpu.bus: number for number, gpu in enumerate(gpus)}
    to_switch: list[int] = []
    pairs: Counter[tuple[int, int]] = Counter()
    for number, gpu in enumerate(gpus):
        switched = 0
        for link in [*gpu.element.iter("nvlink"), *gpu.element.iter("xgmi")]:
            count = _number(link, "count", name)
            if link.get("tclass", "").startswith(SWITCH):
                switched += count
            elif (other := places.get(link.get("target", ""))) is not None:
                pairs[number, other] += count  # each pair in both directions
        to_switch.append(switched)
    each = _link_bandwidth(gpus[0].element)
    if any(to_switch):
        counts = sorted(set(to_switch))
        total = counts[0] * each
        unequal = f"; GPUs have {', '.join(map(str, counts))} links" if len(counts) > 1 else ""
        block.add("nvlink.bandwidth", f"{total:g} GB/s", f"{counts[0]} links to NVSwitches × {each:g} GB/s{unequal}")
    elif pairs:
        both = sorted({(min(pair), max(pair)) for pair in pairs})
        counts_of = {pair: max(pairs[pair], pairs[pair[::-1]]) for pair in both}
        _mesh(block, counts_of, each, "links", _over_host(block, both, gpus))
    else:
        block.ask(
            "nvlink.bandwidth",
            "no NVLink or XGMI in the dump: the bandwidth of each GPU's PCIe port, or topology: pcie",
        )


def _link_bandwidth(gpu: ElementTree.Element) -> float:
    architecture = gpu.get("gcn")
    if architecture:
        return XGMI.get(architecture, XGMI["gfx942"])
    return NVLINK.get(gpu.get("sm", "")[:-1], 25)


def _mesh(
    block: Block, pairs: Mapping[tuple[int, int], int], each: float, what: str, further: Sequence[Wire] = ()
) -> None:
    """Add GPUs that are linked to each other directly: pairs of them, with the number of their links."""
    block.add("topology", "links", "GPUs are linked to each other, without a switch")
    wires = [_wire((f"gpu{one}", f"gpu{other}"), f"{count * each:g} GB/s") for (one, other), count in pairs.items()]
    comment = f"{what} × {each:g} GB/s each way; the latency is that of NVLink in hybrid-des's catalogue"
    block.add("links", [*wires, *further], comment)


def _wire(ends: tuple[str, str], bandwidth: str) -> Wire:
    return {"between": [*ends], "bandwidth": bandwidth, "latency": "1.5 us"}


def _over_host(block: Block, pairs: Iterable[tuple[int, int]], gpus: Sequence[_Port]) -> list[Wire]:
    """Links of the GPUs to their host, if only that connects groups of them."""
    reached, waiting = {0}, [0]
    while waiting:
        point = waiting.pop()
        near = {other for pair in pairs if point in pair for other in pair} - reached
        reached |= near
        waiting += near
    if len(reached) == len(gpus):
        return []
    ports = [_pcie(gpu.pci) for gpu in gpus]
    block.notes.append("only the host connects groups of GPUs; links between its sockets are not in the dump")
    if None in ports:
        block.asked["links"] = "bandwidth of each GPU's PCIe port"
    return [_wire((f"gpu{place}", "host"), port or UNKNOWN) for place, port in enumerate(ports)]


def _adapters(block: Block, gpus: Sequence[_Port], nets: Sequence[_Port], hosts: int) -> None:
    """Network adapters per node, with their bandwidth, and which GPU is near which."""
    fast = [net for net in nets if not _slow(net)]
    near = [net for net in fast if any({*net.above} & {*gpu.above} for gpu in gpus)]
    used = near or fast
    if slow := [f"{net.name} ({net.element.get('speed')} Mb/s)" for net in nets if _slow(net)]:
        block.notes.append(f"left out, too slow for a network of GPUs: {', '.join(slow)}")
    if not used:
        block.ask("infiniband.bandwidth", "no adapter for a network of GPUs in the dump: bandwidth of each")
        block.ask("infiniband.nics_per_node", "their number")
        return
    speeds = Counter(net.element.get("speed", "") for net in used)
    speed, count = speeds.most_common(1)[0]
    if speed.isdecimal() and int(speed):
        rest = ", ".join(f"{number} × {one} Mb/s" for one, number in speeds.items() if one != speed)
        others = f"; others: {rest}" if rest else ""
        block.add("infiniband.bandwidth", f"{int(speed) / 1000:g} Gb/s", f"speed {speed} Mb/s{others}")
    else:
        block.ask("infiniband.bandwidth", "the dump has no speed: bandwidth of each adapter")
    names = ", ".join(net.name for net in used if net.element.get("speed", "") == speed)
    block.add("infiniband.nics_per_node", max(1, count // hosts), names)
    left = [f"{net.name} ({net.element.get('speed')} Mb/s)" for net in fast if net not in used]
    if left:
        block.notes.append(f"left out, on no PCIe switch of a GPU: {', '.join(left)}")
    _pairs(block, gpus, used)


def _slow(net: _Port) -> bool:
    speed = net.element.get("speed", "")
    return speed.isdecimal() and 0 < int(speed) < SLOW


def _pairs(block: Block, gpus: Sequence[_Port], nets: Sequence[_Port]) -> None:
    """Note for each GPU the adapters that share most PCIe switches with it."""
    for gpu in gpus:
        shared = {net.name: len({*net.above} & {*gpu.above}) for net in nets}
        most = max(shared.values())
        nearest = [net for net, common in shared.items() if common == most] if most else []
        block.notes.append(f"{gpu.name} ({gpu.bus}): {', '.join(nearest) or 'no adapter on its PCIe switch'}")


def _pci_only(block: Block, system: ElementTree.Element, name: str) -> Block:
    """A file that a cloud ships: only which GPU is near which adapter."""
    gpus, nics = _of_class(system, _GPU_CLASSES, "GPU"), _of_class(system, _NIC_CLASSES, "adapter")
    if not gpus:
        raise UsageError(f"{name}: no GPU in it; expected a dump of NCCL_TOPO_DUMP_FILE")
    block.notes.append("the file holds the PCIe tree only")
    block.gpu(None, "")
    block.add("nodes", 1, "one machine was described")
    block.add("gpus_per_node", len(gpus), "devices of class 3D controller")
    block.ask("nvlink.bandwidth", "per GPU and direction; leave it out for that of the GPU")
    block.ask("infiniband.bandwidth", "of each adapter")
    if nics:
        block.add("infiniband.nics_per_node", len(nics), "devices of class network controller")
        _pairs(block, gpus, [nic._replace(name=f"{nic.name} ({nic.bus})") for nic in nics])
    else:
        block.ask("infiniband.nics_per_node", "their number")
    return block


def _of_class(system: ElementTree.Element, classes: Sequence[str], noun: str) -> list[_Port]:
    """PCIe devices of some classes, numbered in the order of the file."""
    devices = [one for one in _placed(system) if one[0].tag == "pci" and (one[3].get("class") or "")[:6] in classes]
    return [_Port(f"{noun} {number}", bus, above, one, pci) for number, (one, bus, above, pci) in enumerate(devices)]


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
    links = {(one, other): _link_count(rows[one].get(other, "")) for one in gpus for other in gpus if one != other}
    totals = {one: sum(count for pair, count in links.items() if pair[0] == one) for one in gpus}
    if not any(links.values()):
        block.ask("nvlink.bandwidth", "no NVLink: the bandwidth of each GPU's PCIe port, or topology: pcie")
    elif len(gpus) == 2 or max(totals.values()) > MOST_LINKS:
        count = min(filter(None, links.values()))
        comment = f"NV{count} × {EACH} GB/s; × 50 with NVLink 5 (Blackwell)"
        block.add("nvlink.bandwidth", f"{count * EACH} GB/s", comment)
    else:
        pairs = {(int(one[3:]), int(other[3:])): count for (one, other), count in links.items()}
        _mesh(block, {pair: count for pair, count in pairs.items() if count and pair[0] < pair[1]}, EACH, "NV#")
    _listed_adapters(block, rows, gpus, nics, names)
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


def _link_count(cell: str) -> int:
    match = re.fullmatch(r"NV(\d+)", cell)
    return int(match[1]) if match else 0


def _listed_adapters(
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
