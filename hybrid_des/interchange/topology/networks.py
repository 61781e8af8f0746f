"""The network between nodes: SLURM's topology files, and the fabric that ibnetdiscover finds.

    SwitchName=leaf1 Nodes=n[01-16]          SLURM: who is below which switch; no bandwidths
    Ca  1 "H-0002" # "node1 mlx5_0"          ibnetdiscover: an adapter, or a switch, with its links:
    [1](guid) "S-0001"[4] # lid 5 lmc 0 "leaf1" lid 1 4xNDR

If every adapter of a node is below another leaf, the leaves are rails. (schedmd.com topology.conf; ibnetdiscover(8))
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.topology.block import Block

# Gb/s of data on 4 lanes (InfiniBand Trade Association roadmap)
RATES = {"SDR": 8, "DDR": 16, "QDR": 32, "FDR10": 40, "FDR": 54, "EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
MOST_NODES = 2**20


def _ask_nodes(block: Block) -> None:
    block.gpu(None, "")
    block.ask("gpus_per_node", "the network does not show them")


# SLURM


def read_slurm(text: str, name: str) -> Block:
    """The cluster of a topology.conf, of plugin tree or block.

    Raises:
        UsageError: a line or a list of hosts is damaged.
    """
    leaves: dict[str, list[str]] = {}
    above: dict[str, list[str]] = {}
    blocks = False
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        words = dict(re.findall(r"(\w+)\s*=\s*(\S+)", line.partition("#")[0]))
        keys = {key.lower(): value for key, value in words.items()}
        switch = keys.get("switchname") or keys.get("blockname")
        if switch is None:
            continue
        blocks = blocks or "blockname" in keys
        if "nodes" in keys:
            leaves[switch] = hosts(keys["nodes"], f"{name}:{number}")
        elif "switches" in keys:
            above[switch] = hosts(keys["switches"], f"{name}:{number}")
        else:
            raise UsageError(f"{name}:{number}: {one_line(switch, LONGEST_SHOWN)}: expected Nodes= or Switches=")
    return _slurm_block(name, leaves, above, blocks)


def read_slurm_yaml(text: str, name: str) -> Block:
    """The cluster of a topology.yaml: its default topology, or else the first.

    Raises:
        UsageError: it is damaged.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not YAML: {one_line(str(error))}") from None
    listed = [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]
    shaped = [one for one in listed if isinstance(one.get("tree") or one.get("block"), dict)]
    if not shaped:
        raise UsageError(f"{name}: no topology with tree: or block: in it")
    chosen = next((one for one in shaped if one.get("cluster_default")), shaped[0])
    blocks = isinstance(chosen.get("block"), dict)
    items = (chosen["block"].get("blocks") if blocks else chosen["tree"].get("switches")) or []
    if not isinstance(items, list):
        raise UsageError(f"{name}: expected a list of switches or blocks, found {one_line(str(items), LONGEST_SHOWN)}")
    leaves: dict[str, list[str]] = {}
    above: dict[str, list[str]] = {}
    for item in items:
        if not isinstance(item, dict):
            raise UsageError(f"{name}: expected a switch with nodes: or children:, found {one_line(str(item), 40)}")
        switch = str(item.get("switch") or item.get("block"))
        for key, into in (("nodes", leaves), ("children", above)):
            if item.get(key):
                into[switch] = hosts(str(item[key]), name)
    return _slurm_block(name, leaves, above, blocks)


def hosts(text: str, name: str) -> list[str]:
    """The names in a list of hosts such as n[01-03,7],gpu5.

    Raises:
        UsageError: a bracket is not closed, or a range is none.
    """
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[\]]*)(?:\[([\d,\-]+)\]([^\[\]]*))?", part)
        if match is None:
            raise UsageError(f'{name}: "{one_line(part, LONGEST_SHOWN)}": expected hosts such as n[01-16]')
        if match[2] is None:
            found.append(match[1])
            continue
        for piece in match[2].split(","):
            first, _, last = piece.partition("-")
            if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) - int(first) > MOST_NODES:
                raise UsageError(f'{name}: "{one_line(part, LONGEST_SHOWN)}": expected hosts such as n[01-16]')
            numbers = range(int(first), int(last or first) + 1)
            found += [f"{match[1]}{one:0{len(first)}}{match[3]}" for one in numbers]
    return found


def _slurm_block(
    name: str, leaves: Mapping[str, Sequence[str]], above: Mapping[str, Sequence[str]], blocks: bool
) -> Block:
    if not leaves:
        raise UsageError(f"{name}: no switch with nodes in it")
    block = Block(f"From {one_line(name)}: SLURM's topology, which gives membership and no bandwidth.")
    _ask_nodes(block)
    nodes = {node for members in leaves.values() for node in members}
    block.add("nodes", len(nodes))
    _leaves(block, [len(members) for members in leaves.values()], "block" if blocks else "leaf")
    block.ask("oversubscription", "bandwidth below a leaf over its bandwidth to the spine; 1: non-blocking")
    block.ask("infiniband.bandwidth", "of each adapter")
    block.ask("infiniband.nics_per_node", "their number")
    depth = _depth(above)
    if depth > 1:
        block.notes.append(f"{depth + 1} levels of switches; above the leaves, one spine is simulated")
    return block


def _depth(above: Mapping[str, Sequence[str]]) -> int:
    """Levels of switches that have switches below them."""
    depths: dict[str, int] = {}
    for _ in above:
        depths = {one: 1 + max((depths.get(child, 0) for child in below), default=0) for one, below in above.items()}
    return max(depths.values(), default=0)


def _leaves(block: Block, sizes: list[int], word: str) -> None:
    """The size of a leaf: that of all but the last."""
    sizes = sorted(sizes, reverse=True)
    if len(sizes) == 1:
        block.add("topology", "nodes", f"one {word}")
        return
    block.add("topology", "leaf-spine", f"{len(sizes)} {'leaves' if word == 'leaf' else 'blocks'}")
    if len(set(sizes[:-1])) == 1:
        rest = f"; the last has {sizes[-1]}" if sizes[-1] < sizes[0] else ""
        block.add("leaf_size", sizes[0], f"nodes per {word}{rest}")
    else:
        block.ask("leaf_size", f"nodes per {word}, which differ: {_ranges(sizes)}")


def _ranges(sizes: Sequence[int]) -> str:
    return ", ".join(f"{count} of {size}" for size, count in Counter(sizes).items())


# ibnetdiscover


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
    by_node: dict[str, list[str]] = defaultdict(list)
    for key, adapter in adapters.items():
        by_node[(adapter.name.split() or [key])[0]].append(key)
    block = Block(f"From {one_line(name)}: the fabric that ibnetdiscover found.")
    _ask_nodes(block)
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
        _leaves(block, [len(nodes) for nodes in below.values()], "leaf")
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
