"""SLURM's topology.conf, topology.yaml and `scontrol show topology`: switches over hosts, as leaves and a spine.

SwitchName=leaf1 Nodes=n[01-16]          who is below which switch; no bandwidths (schedmd.com, topology.conf)
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[01-32] Switches=leaf[1-2]          scontrol: all nodes below it, too
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import yaml

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.topology.block import Block

MOST_NODES = 2**20


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
        if "switches" in keys:  # `scontrol show topology` lists the nodes below it too
            above[switch] = hosts(keys["switches"], f"{name}:{number}")
        elif "nodes" in keys:
            leaves[switch] = hosts(keys["nodes"], f"{name}:{number}")
        else:
            raise UsageError(f"{name}:{number}: {one_line(switch, LONGEST_SHOWN)}: expected Nodes= or Switches=")
    return _slurm_block(name, leaves, above, blocks)


def read_slurm_yaml(text: str, name: str) -> Block:
    """The cluster of a topology.yaml: its default topology, or else the first.

    Raises:
        UsageError: it is damaged.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not YAML: {one_line(str(error))}") from None
    listed = [one for one in (document if isinstance(document, list) else [document]) if isinstance(one, dict)]
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
        for key, into in (("children", above), ("nodes", leaves)):
            if item.get(key):
                into[switch] = hosts(str(item[key]), name)
                break
    return _slurm_block(name, leaves, above, blocks)


def hosts(text: str, name: str) -> list[str]:
    """The names in a list of hosts such as n[01-03,7],gpu5.

    Raises:
        UsageError: a bracket is not closed, or a range is none.
    """
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[\]]*)(?:\[([\d,\-]+)\]([^\[\]]*))?", part)
        if match is None:
            raise UsageError(f'{name}: "{one_line(part, LONGEST_SHOWN)}": expected hosts such as n[01-16]')
        if match[2] is None:
            names.append(match[1])
            continue
        for piece in match[2].split(","):
            first, _, last = piece.partition("-")
            if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) - int(first) > MOST_NODES:
                raise UsageError(f'{name}: "{one_line(part, LONGEST_SHOWN)}": expected hosts such as n[01-16]')
            numbers = range(int(first), int(last or first) + 1)
            names += [f"{match[1]}{one:0{len(first)}}{match[3]}" for one in numbers]
    return names


def _slurm_block(
    name: str, leaves: Mapping[str, Sequence[str]], above: Mapping[str, Sequence[str]], blocks: bool
) -> Block:
    if not leaves:
        raise UsageError(f"{name}: no switch with nodes in it")
    for switch, below in above.items():
        if lacking := [one for one in below if one not in leaves and one not in above]:
            shown = one_line(lacking[0], LONGEST_SHOWN)
            raise UsageError(f"{name}: {shown} is below {one_line(switch, LONGEST_SHOWN)} but not listed; is it cut?")
    block = Block(f"From {one_line(name)}: SLURM's topology, which gives membership and no bandwidth.")
    block.ask_nodes()
    nodes = {node for members in leaves.values() for node in members}
    block.add("nodes", len(nodes))
    add_leaves(block, [len(members) for members in leaves.values()], "block" if blocks else "leaf")
    block.ask("oversubscription", "bandwidth below a leaf over its bandwidth to the spine; 1: non-blocking")
    block.ask_adapters("of each adapter")
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


def add_leaves(block: Block, sizes: list[int], word: str) -> None:
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
