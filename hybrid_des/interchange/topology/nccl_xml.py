"""The topology of one machine, or of one NVLink domain: XML of NCCL_TOPO_DUMP_FILE as NCCL or RCCL saw it.

    <cpu numaid>  <pci busid device link_speed link_width>  <gpu dev sm>  <nvlink target count tclass>   RCCL: <xgmi>
                  <pci …>  <nic>  <net name speed>          (NVIDIA/nccl, src/graph/xml.h; ROCm/rccl the same)

An NVLink whose target has class 0x068000 goes to an NVSwitch; others go to a GPU. Speeds of <net> are in Mb/s.
Adapters below the same PCIe switch as a GPU are those of the GPUs; others (storage) are left out, unless there are no
such; ports too slow for a network of GPUs always are. Bridges of one kind below each other are ports of one switch, as
NCCL takes them to be (ncclTopoFlattenBcmSwitches in src/graph/topo.cc): so all its adapters are equally near.

NCCL writes several hosts into one dump only where NVSwitches connect their GPUs (comm->MNNVL in ncclTopoGetSystem,
src/graph/topo.cc): they are one node here, which is an NVLink domain.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from xml.etree import ElementTree

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.topology.block import Block
from hybrid_des.interchange.topology.node_links import Links, add_meshed, add_switched
from hybrid_des.interchange.topology.pasted import from_here, note_others

SWITCH, CPU = "0x068000", "0x068001"
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
_GPU_CLASSES, _NIC_CLASSES = ("0x0302", "0x0380", "0x1200"), ("0x0207", "0x0200")


class _Port(NamedTuple):
    """A network adapter's port, or a GPU: its name, PCIe address, the bridges above it, and its host."""

    name: str
    bus: str
    above: tuple[str, ...]
    element: ElementTree.Element
    pci: Mapping[str, str]
    host: str = ""


def read_nccl_xml(text: str, name: str) -> Block:
    """The cluster of one machine.

    Raises:
        UsageError: it is damaged, or holds no GPU.
    """
    system = _parsed(text, name)
    listed = _found(system, "gpu")
    gpus = list({(gpu.host, gpu.bus or place): gpu for place, gpu in reversed([*enumerate(listed)])}.values())[::-1]
    nets = _distinct(_found(system, "net"))
    library = "NCCL" if next(system.iter("xgmi"), None) is None else "RCCL"
    block = Block(f"From {one_line(name)}: the topology that {library} saw.")
    note_others(block.notes, text, [found.start() for found in re.finditer(r"<system[\s>]", text)])
    if not gpus:
        return _pci_only(block, system, name)
    devices = {gpu.pci.get("device", "") for gpu in gpus}
    number = next(iter(devices)) if len(devices) == 1 else ""
    capability = gpus[0].element.get("sm", "?")
    kind = gpus[0].element.get("gcn") or f"compute capability {capability[:-1]}.{capability[-1:]}"
    block.gpu(DEVICES.get(number), f"{kind}, PCI device {number}" if number else kind)
    if len(devices) > 1:
        block.notes.append(f"GPUs differ: PCI devices {', '.join(sorted(devices))}; links are those of the first")
    if len(listed) > len(gpus):
        block.notes.append(f"{len(listed)} ranks on {len(gpus)} GPUs: each GPU is counted once")
    hosts = len({gpu.host for gpu in gpus})
    block.add("nodes", 1, f"one NVLink domain of {hosts} hosts" if hosts > 1 else "one machine was dumped")
    block.add("gpus_per_node", len(gpus))
    _links(block, gpus, hosts, name)
    _adapters(block, gpus, nets)
    return block


def _parsed(text: str, name: str) -> ElementTree.Element:
    """The first <system> of a text."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise UsageError(f"{name}: holds a document type; expected plain XML of NCCL_TOPO_DUMP_FILE")
    whole, end, _ = from_here(text, text.index("<system")).partition("</system>")
    try:
        return ElementTree.fromstring(whole + end)
    except ElementTree.ParseError as error:
        raise UsageError(f"{name}: not whole XML: {error}; expected a dump of NCCL_TOPO_DUMP_FILE") from None


def _found(system: ElementTree.Element, tag: str) -> list[_Port]:
    """All elements of a kind, with their places in the tree of PCIe switches."""
    ports = [port for port in _placed(system) if port.element.tag == tag]
    numbers = [port.element.get("dev", "") for port in ports]
    if len({*numbers}) < len(numbers):  # those of several hosts
        return [port._replace(name=f"GPU {place}") for place, port in enumerate(ports)] if tag == "gpu" else ports
    if all(number.isdecimal() for number in numbers):
        ports.sort(key=lambda port: int(port.element.get("dev", "")))
    return ports


def _placed(
    element: ElementTree.Element,
    above: tuple[str, ...] = (),
    bus: str = "",
    pci: Mapping[str, str] = MappingProxyType({}),
    host: str = "",
) -> Iterator[_Port]:
    """All elements below one, each with its PCIe address, the switches above it, and the attributes of its port."""
    for inner in element:
        if inner.tag != "pci":
            here = inner.get("host_hash", "") if inner.tag == "cpu" else host
            yield _Port(inner.get("name") or f"GPU {inner.get('dev', '?')}", bus, above, inner, pci, here)
            yield from _placed(inner, above, bus, pci, here)
            continue
        kind = (inner.get("vendor"), inner.get("device"))
        one_switch = bus and None not in kind and kind == (pci.get("vendor"), pci.get("device"))
        over = above if one_switch or not bus else (*above, f"{host} {bus}")
        yield _Port("", inner.get("busid", ""), over, inner, inner.attrib, host)
        yield from _placed(inner, over, bus if one_switch else inner.get("busid", ""), inner.attrib, host)


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


def _links(block: Block, gpus: Sequence[_Port], hosts: int, name: str) -> None:
    """The links between the GPUs of a node: to a switch, or from GPU to GPU."""
    places = {(gpu.host, gpu.bus): place for place, gpu in enumerate(gpus)}
    to_switch = [0] * len(gpus)
    both: Counter[tuple[int, int]] = Counter()  # each pair in both directions
    elsewhere: Counter[str] = Counter()
    for rank, gpu in enumerate(gpus):
        for link in [*gpu.element.iter("nvlink"), *gpu.element.iter("xgmi")]:
            count, kind = _number(link, "count", name), link.get("tclass", "")
            if kind.startswith(SWITCH):
                to_switch[rank] += count
            elif (other := places.get((gpu.host, link.get("target", "")))) is not None:
                both[rank, other] += count
            else:
                elsewhere["CPUs" if kind.startswith(CPU) else "devices that are not in the dump"] += count
    for where, count in elsewhere.items():
        block.notes.append(f"left out, to {where}: {count} links of all GPUs together")
    kind = "XGMI" if gpus[0].element.get("gcn") else "NVLink"
    links = Links([gpu.name for gpu in gpus], _link_bandwidth(gpus[0].element), kind, [_pcie(gpu.pci) for gpu in gpus])
    pairs = sorted({(min(pair), max(pair)) for pair, count in both.items() if count})
    if any(to_switch):
        add_switched(block, links, to_switch)
    elif hosts > 1:
        raise UsageError(f"{name}: {hosts} hosts without links to switches; expected the dump of one machine")
    elif pairs:
        add_meshed(block, links, {pair: max(both[pair], both[pair[::-1]]) for pair in pairs})
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


def _adapters(block: Block, gpus: Sequence[_Port], nets: Sequence[_Port]) -> None:
    """Network adapters of the node, with their bandwidth, and which GPU is near which."""
    fast = [net for net in nets if not _slow(net)]
    near = [net for net in fast if any({*net.above} & {*gpu.above} for gpu in gpus)]
    used = near or fast
    if slow := [f"{net.name} ({net.element.get('speed')} Mb/s)" for net in nets if _slow(net)]:
        block.notes.append(f"left out, too slow for a network of GPUs: {', '.join(slow)}")
    if not used:
        block.ask_adapters("no adapter for a network of GPUs in the dump: bandwidth of each")
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
    block.add("infiniband.nics_per_node", count, names)
    left = [f"{net.name} ({net.element.get('speed')} Mb/s)" for net in fast if net not in used]
    if left:
        block.notes.append(f"left out, on no PCIe switch of a GPU: {', '.join(left)}")
    _pairs(block, gpus, used)


def _distinct(nets: Sequence[_Port]) -> list[_Port]:
    """Adapters without those listed twice, as sockets are below each CPU, and those that NCCL merges out of others."""
    once = list({(net.host, net.name, net.element.get("port")): net for net in reversed(nets)}.values())[::-1]
    names = {(net.host, net.name) for net in once}
    return [net for net in once if "+" not in net.name or not {(net.host, one) for one in net.name.split("+")} <= names]


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
    devices = [one for one in _placed(system) if one.element.tag == "pci" and one.pci.get("class", "")[:6] in classes]
    return [device._replace(name=f"{noun} {number}") for number, device in enumerate(devices)]
