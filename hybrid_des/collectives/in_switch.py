"""All-reduce by in-network reduction (NVIDIA SHARP, Graham et al., COM-HPC 2016; NVLS on NVSwitch).

    gpu0 ─ segment ─►            ─► sum ─ gpu0    every GPU sends each segment once and receives its sum once;
    gpu1 ─ segment ─► [ switch ] ─► sum ─ gpu1    one segment is received while the next is sent
    gpu2 ─ segment ─►            ─► sum ─ gpu2

On idle ports latency + S/bandwidth · (1 + 1/segments); S bytes up and S down per rank, independent of n.
"""

from collections.abc import Sequence

from hybrid_des.collectives.buffer import Buffer, Pipelining
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.permutation import Permutation, at_switches
from hybrid_des.collectives.registration import Site, collective
from hybrid_des.collectives.servers import serve
from hybrid_des.errors import Refusal


def switch(site: Site, options: Pipelining) -> Sequence[int]:
    """The switch that all members are connected to."""
    nodes = sorted({site.fabric.node_of[member] for member in site.members})
    if len(nodes) > 1:
        raise Refusal(f"in-switch: needs a group within one node, not on nodes {', '.join(map(str, nodes))}")
    if nodes[0] not in site.fabric.reducers:
        raise Refusal(f"in-switch: node {nodes[0]} has no in-network reduction (NVSwitch has it since the H100)")
    return (site.fabric.reducers[nodes[0]],)


def one_switch(permutation: Permutation, options: Pipelining) -> str:
    """Members of one switch do the same."""
    return at_switches(permutation, lambda buffer: 1)


@collective(
    "in-switch", summary="in-network reduction: S bytes up and S down per port", options=Pipelining, servers=switch,
    images=one_switch, messages=lambda call, options: options.most_segments(),
)  # fmt: skip
def in_switch(group: Group, buffer: Buffer, options: Pipelining) -> Routine:
    """All-reduce `buffer` over the group, in `options.pieces` segments."""
    count = options.segments(buffer.bytes)
    cut = buffer.split(count)
    if group.me < group.size:
        above = group.size
        for i in range(count):
            group.to(above).send(cut.encode(i))
        for i in range(count):
            cut.put(i, (yield group.from_(above).receive()))
        return
    ranks = group.simulated(range(group.size))
    for i in range(count):
        yield from serve(group, cut, i, ranks)
