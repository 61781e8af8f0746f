"""Collectives around all rings of a group concurrently, as a library such as NCCL runs them.

A ring over many nodes that are wired alike is folded: the same happens on every second node (or third, …), so the
members on two nodes act and send to each other as if they were the whole ring, step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hybrid_des.collectives.benchmark import Outcome, measure
from hybrid_des.collectives.buffer import Buffer, Channels
from hybrid_des.collectives.codecs import Codec
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.rings import Ring, channels
from hybrid_des.network.symmetry import Connection, alike
from hybrid_des.units import split_evenly

LONG = 16  # members; shorter rings are not folded, so that shards of any size are exact


def measure_rings(
    fabric: Fabric,
    name: str,
    groups: Sequence[Sequence[int]],
    elements: int,
    codec: Codec,
    sharing: str,
    *,
    count: int | None = None,
) -> Outcome:
    """Run a ring reduce-scatter, all-gather or all-reduce of `elements` in all groups concurrently, on all channels.

    Without a `count` of channels, each group has as many as it can use.

    Where rings are folded, shards are rounded up to whole elements, as if padded; bytes are counted without padding.
    """
    rings, sizes = [], []
    for ranks in groups:
        of_group = channels(fabric, ranks, count)
        rings += of_group
        sizes += split_evenly(elements, len(of_group))
    members = len(rings[0])
    acting = folded(fabric, rings) if members > LONG else members
    run = partial(measure, fabric, name, options=Channels(channels=1), sharing=sharing)  # each ring is a group
    if acting == members:
        return run(rings, lambda ring, place: Buffer(sizes[ring], codec))
    images = [[ring[place % acting] for place in range(members)] for ring in rings]
    padded = [-(-size // members) * members for size in sizes]
    found = run(images, lambda ring, place: Buffer(padded[ring], codec), acting=acting)
    passes = found.messages // (len(rings) * acting)  # of a shard, from member to member
    sent = [Buffer(size, codec).split(members).pack(0, members) for size in sizes]
    passes = found.messages // (len(rings) * acting)  # of a shard, from member to member
    return Outcome(
        found.duration,
        passes * members * len(rings),
        passes * sum(shards.size - shards.scales for shards in sent),
        passes * sum(shards.scales for shards in sent),
        found.even,
    )


def folded(fabric: Fabric, rings: Sequence[Ring]) -> int:
    """The number of members of each ring that can stand for all of them.

    They can if their flows are alike: then nothing distinguishes the members from their stand-ins.
    """
    members = len(rings[0])
    if any(len(ring) != members for ring in rings):
        return members
    nodes = [fabric.node_of[rank] for rank in rings[0]]
    on_node = next((place for place, node in enumerate(nodes) if node != nodes[0]), members)
    if members % on_node:
        return members
    count = members // on_node
    least = next((few for few in range(2, count) if count % few == 0), count) * on_node
    return least if least < members and _repeats(fabric, rings, least) else members


def _repeats(fabric: Fabric, rings: Sequence[Ring], period: int) -> bool:
    """Whether the flows of all members are like those of the members `period` places before."""
    stand_in: dict[int, int] = {}
    images: dict[Connection, Connection] = {}
    for number, ring in enumerate(rings):
        for place, rank in enumerate(ring):
            after = (place + 1) % len(ring)
            if stand_in.setdefault(rank, ring[place % period]) != ring[place % period]:
                return False
            images[Connection(rank, ring[after], number)] = Connection(
                ring[place % period], ring[after % period], number
            )
    return alike(fabric, images)
