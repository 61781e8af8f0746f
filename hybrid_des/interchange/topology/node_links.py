"""The links between the GPUs of a node, as a dump lists them: to switches, from GPU to GPU, and over the host.

    as many links to switches from each GPU       nvlink.bandwidth: that of all links of a GPU
    as many links from each GPU to each other     topology: direct, nvlink.bandwidth the same
    anything else                                 topology: links, wire by wire

Wires lead to switches, between GPUs and, where NVLinks do not connect all GPUs, from each to the host.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hybrid_des.interchange.topology.block import UNKNOWN, Block

Pair = tuple[int, int]
LATENCY = "the latency is that of NVLink in hybrid-des's catalogue"


class Links(NamedTuple):
    """The links of a node's GPUs.

    Attributes:
        gpus: their names, for notes.
        each: GB/s of one link and direction; None if the dump does not say it.
        kind: NVLink or XGMI.
        ports: bandwidth of each GPU's PCIe port, or None.
        question: what to state where `each` is None, with the bandwidths that it may have.
    """

    gpus: Sequence[str]
    each: float | None
    kind: str = "NVLink"
    ports: Sequence[str | None] = ()
    question: str = ""

    def bandwidth(self, count: int) -> str:
        """That of several links, or UNKNOWN."""
        return UNKNOWN if self.each is None else f"{count * self.each:g} GB/s"

    @property
    def plural(self) -> str:
        """Several links of the kind."""
        return "NVLinks" if self.kind == "NVLink" else f"{self.kind} links"

    def named(self, places: Iterable[int]) -> str:
        """The names of some GPUs."""
        return ", ".join(self.gpus[place] for place in places)


def add_switched(block: Block, links: Links, counts: Sequence[int], unless: str = "") -> None:
    """Add links to switches, or of one pair; GPUs that have fewer than others are named.

    Args:
        block: to which they are added.
        links: what they are.
        counts: their number per GPU.
        unless: under which condition they are something else.
    """
    usual = max(counts)
    if min(counts) == usual:
        if links.each is None:
            block.notes.append(f"nvlink.bandwidth is left to the GPU: {links.question}")
        else:
            comment = f"{usual} link{'s' * (usual > 1)} of each GPU × {links.each:g} GB/s{unless}"
            block.add("nvlink.bandwidth", links.bandwidth(usual), comment)
        return
    for count in sorted({*counts} - {usual}):
        few = [place for place, one in enumerate(counts) if one == count]
        block.notes.append(f"{links.named(few)}: {count or 'none'} of {usual} {links.plural} to switches are up")
    wires = [_wire(f"gpu{place}", "nvswitch", links.bandwidth(count)) for place, count in enumerate(counts) if count]
    if 0 in counts:
        wires += _to_host(block, links)
    _add_wires(block, links, wires)


def add_meshed(block: Block, links: Links, counts: Mapping[Pair, int], unless: str = "") -> None:
    """Add links from GPU to GPU, with their number per pair; `unless` as in `add_switched`."""
    size = len(links.gpus)
    alike = {*counts.values()}
    if len(counts) == size * (size - 1) // 2 and len(alike) == 1:
        count = alike.pop()
        block.add("topology", "direct", f"{links.kind}{f' × {count}' * (count > 1)} between each two GPUs{unless}")
        if links.each is None:
            block.ask("nvlink.bandwidth", links.question)
        else:
            of = f"{(size - 1) * count} links of each GPU × {links.each:g} GB/s"
            block.add("nvlink.bandwidth", links.bandwidth((size - 1) * count), of)
        return
    wires = [_wire(f"gpu{one}", f"gpu{other}", links.bandwidth(count)) for (one, other), count in counts.items()]
    groups = _groups(size, counts)
    if alone := [group[0] for group in groups if len(group) == 1]:
        block.notes.append(f"no {links.kind} of {links.named(alone)} is up")
    if len(groups) > 1:
        wires += _to_host(block, links)
    else:
        apart = size * (size - 1) // 2 - len(counts)
        if apart:
            block.notes.append(f"{apart} pairs of GPUs have no link of their own; their routes lead over other GPUs")
    _add_wires(block, links, wires)


def _add_wires(block: Block, links: Links, wires: Sequence[Mapping[str, Any]]) -> None:
    block.add("topology", "links", "wired link by link; for one node")
    beside = LATENCY if links.each is None else f"{links.plural} of {links.each:g} GB/s each way; {LATENCY}"
    block.add("links", list(wires), beside)
    if links.each is None:
        block.asked["links"] = "; ".join([links.question, *filter(None, [block.asked.get("links")])])


def _wire(here: str, there: str, bandwidth: str) -> dict[str, Any]:
    return {"between": [here, there], "bandwidth": bandwidth, "latency": "1.5 us"}


def _to_host(block: Block, links: Links) -> list[dict[str, Any]]:
    """A link of each GPU to the host."""
    ports = links.ports or [None] * len(links.gpus)
    block.notes.append("some GPUs reach others over the host only; links between its sockets are not in the dump")
    if None in ports:
        block.asked["links"] = "bandwidth of each GPU's PCIe port to the host, such as 31.5 GB/s (PCIe 4 x16)"
    return [_wire(f"gpu{place}", "host", port or UNKNOWN) for place, port in enumerate(ports)]


def _groups(size: int, pairs: Collection[Pair]) -> list[list[int]]:
    """The GPUs that links connect with each other, directly or over others."""
    group_of = list(range(size))
    for pair in pairs:
        old, new = (group_of[place] for place in pair)
        group_of = [new if group == old else group for group in group_of]
    return [[place for place in range(size) if group_of[place] == group] for group in Counter(group_of)]
