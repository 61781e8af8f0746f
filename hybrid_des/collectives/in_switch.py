"""In-switch all-reduce: the switch itself adds up (NVIDIA SHARP, Graham et al., COM-HPC 2016; NVLS on NVSwitch).

    gpu0 ─ piece ─►            ─► sum ─ gpu0      every GPU sends each piece up once and gets its sum once;
    gpu1 ─ piece ─► [ switch ] ─► sum ─ gpu1      while one piece comes down the next goes up
    gpu2 ─ piece ─►            ─► sum ─ gpu2

On idle ports latency + S/bandwidth · (1 + 1/pieces), S bytes a rank up and S down, whatever n is.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_des.collectives import Site, collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.pipelining import Pipelining, pieces_of
from hybrid_des.errors import Refusal


def switch(site: Site, options: Pipelining) -> Sequence[int]:
    """The switch that all members hang on."""
    nodes = sorted({site.fabric.node_of[member] for member in site.members})
    if len(nodes) > 1:
        raise Refusal(f"in-switch: the switch of one node adds up; this group is on nodes {', '.join(map(str, nodes))}")
    if nodes[0] not in site.fabric.reducers:
        raise Refusal(f"in-switch: node {nodes[0]} has no switch that adds up (NVSwitch from the H100 on does)")
    return (site.fabric.reducers[nodes[0]],)


@collective("in-switch", summary="the switch adds up: S up and S down each port", options=Pipelining, servers=switch)
def in_switch(group: Group, buffer: Buffer, options: Pipelining) -> Routine:
    """All-reduce `buffer` over the group, in so many pieces (default: from its size)."""
    count = options.pieces or pieces_of(buffer.bytes)
    cut = buffer.split(count)
    if group.me < group.size:
        above = group.size
        for i in range(count):
            group.to(above).send(cut.encode(i))
        for i in range(count):
            cut.put(i, (yield group.from_(above).receive()))
        return
    for i in range(count):
        for rank in range(group.size):
            cut.add(i, (yield group.from_(rank).receive()))
        message = cut.finish(i)
        for rank in range(group.size):
            group.to(rank).send(message)
