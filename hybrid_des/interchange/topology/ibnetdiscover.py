"""The fabric that ibnetdiscover finds: switches, adapters and cables with their rates.

    Ca  1 "H-0002" # "node1 mlx5_0"          an adapter, or a switch, with its links:
    [1](guid) "S-0001"[4] # lid 5 lmc 0 "leaf1" lid 1 4xNDR

If every adapter of a node is below another leaf, the leaves are rails. (ibnetdiscover(8))
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.topology.block import Block
from hybrid_des.interchange.topology.slurm import add_leaves
from hybrid_des.units import collected

# Gb/s of data on 4 lanes (InfiniBand Trade Association roadmap)
RATES = {"SDR": 8, "DDR": 16, "QDR": 32, "FDR10": 40, "FDR": 54, "EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}


class _Cable(NamedTuple):
    """A link from a device to another: the other's identity, and lanes with speed, such as 4xNDR."""

    peer: str
    speed: str


class _Device(NamedTuple):
    kind: str
    name: str
    cables: list[_Cable]


_HEAD = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*(?:#\s*"([^"]*)")?')


_CABLE = re.compile(r'\[\d+\](?:\([0-9a-fA-Fx]+\))?\s+"([^"]+)"\[\d+\].*?(?:\b(\d+x\w+))?\s*$')


def read_ibnetdiscover(text: str, name: str) -> Block:
    """The cluster of a fabric.

    Raises:
        UsageError: it holds no adapters, or a line is damaged.
    """
    devices = dict(_devices(text, name))
    adapters = {
        key: one for key, one in devices.items() if one.kind == "Ca" and "aggregation node" not in one.name.lower()
    }
    if not adapters:
        raise UsageError(f"{name}: no adapters (Ca) in it; expected the whole output of ibnetdiscover")
    by_node = collected(((adapter.name.split() or [key])[0], key) for key, adapter in adapters.items())
    block = Block(f"From {one_line(name)}: the fabric that ibnetdiscover found.")
    block.ask_nodes()
    block.add("nodes", len(by_node), "hosts of the adapters' descriptions")
    _fabric(block, devices, adapters, by_node)
    return block


def _devices(text: str, name: str) -> Iterator[tuple[str, _Device]]:
    device: _Device | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if head := _HEAD.match(line):
            device = _Device(head[1], head[3] or "", [])
            yield head[2], device
        elif line.startswith("["):
            cable = _CABLE.match(line)
            if cable is None or device is None:
                shown = one_line(line, LONGEST_SHOWN)
                raise UsageError(f'{name}:{number}: "{shown}": expected a link such as [1] "S-1"[2]')
            device.cables.append(_Cable(cable[1], cable[2] or ""))


def _fabric(
    block: Block, devices: Mapping[str, _Device], adapters: Mapping[str, _Device], by_node: Mapping[str, Sequence[str]]
) -> None:
    below: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))  # leaf → node → adapters
    speeds: Counter[str] = Counter()
    for node, keys in by_node.items():
        for key in keys:
            for cable in adapters[key].cables:
                below[cable.peer][node] += 1
                speeds[cable.speed] += 1
    counts = Counter(sum(len(adapters[key].cables) for key in keys) for keys in by_node.values())
    per_node = counts.most_common(1)[0][0]
    leaf_of = {node: [leaf for leaf in below if node in below[leaf]] for node in by_node}
    rails = per_node > 1 and all(len(leaves) == per_node for leaves in leaf_of.values())
    if len(below) == 1:
        block.add("topology", "nodes", "one switch")
    elif rails:
        block.add("topology", "rails", f"the {per_node} adapters of a node are below different leaves")
    else:
        add_leaves(block, [len(nodes) for nodes in below.values()], "leaf")
    if len(below) > 1:
        ratios = [_oversubscription(devices, leaf, sum(nodes.values())) for leaf, nodes in below.items()]
        known = sorted({ratio for ratio in ratios if ratio is not None})
        if known:
            spread = f"{known[0]:g} … {known[-1]:g} over leaves" if len(known) > 1 else "links down over links up"
            block.add("oversubscription", round(known[-1], 3), spread)
        else:
            block.ask("oversubscription", "no links between switches in the dump")
    speed = speeds.most_common(1)[0][0] if speeds else ""
    rate = _rate(speed)
    if rate:
        block.add("infiniband.bandwidth", f"{rate:g} Gb/s", speed + _others(speeds, speed))
    else:
        block.ask("infiniband.bandwidth", "of each adapter; the dump has no speeds")
    block.add("infiniband.nics_per_node", per_node, _others(counts, per_node).lstrip("; "))


def _others(counts: Mapping[Any, int], chosen: Any) -> str:
    rest = [f"{number} × {one}" for one, number in counts.items() if one != chosen]
    return f"; others: {', '.join(rest)}" if rest else ""


def _rate(speed: str) -> float:
    lanes, _, kind = speed.partition("x")
    return RATES.get(kind, 0) * int(lanes or 0) / 4 if lanes.isdecimal() or not lanes else 0


def _oversubscription(devices: Mapping[str, _Device], leaf: str, adapters: int) -> float | None:
    """Bandwidth of the adapters below a leaf over that of its links to other switches."""
    if leaf not in devices:
        return None
    up = sum(_rate(cable.speed) or 1 for cable in devices[leaf].cables if cable.peer.startswith("S-"))
    down = [_rate(cable.speed) or 1 for cable in devices[leaf].cables if cable.peer.startswith("H-")]
    total = sum(down[:adapters])
    return max(1.0, total / up) if up and total else None
