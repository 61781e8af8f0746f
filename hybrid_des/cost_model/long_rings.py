"""The time of a collective around a ring over many nodes that are wired alike, from the members on two nodes only.

    node 0 ─► node 1 ─► node 2 ─► node 3 ─► …       the same happens on nodes 0, 2, 4 …, and on 1, 3, 5 …
    node 0 ─► node 1 ─┐
      ▲───────────────┘                             so two of them, which send to each other, act for all, step by step

It may also be every third node, and so on. Shards are rounded up to whole elements, as if padded, so that all members
send the same; bytes are counted without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.components import flows_apart
from hybrid_des.cluster.connections import Connection, around
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rings import Ring
from hybrid_des.cluster.symmetry import isomorphic
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.benchmark import NOTHING, Outcome, run_collective
from hybrid_des.collectives.buffer import Buffer, Channels, shares_of
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.units import split_evenly


class LongRings(NamedTuple):
    """Collectives around rings at the same time.

    Attributes:
        groups: the rings of all groups, numbered by `stage`.
        buffers: what a member has on each.
        algorithm: what goes around them.
    """

    groups: Sequence[ProcessGroup]
    buffers: Sequence[Buffer]
    algorithm: collectives.Collective

    @property
    def members(self) -> int:
        """Of a ring."""
        return self.groups[0].size

    def outcome(self, fabric: Fabric, sharing: str, acting: int) -> Outcome:
        """What happens if only so many members of each ring act, the first ones, at whose places the others are.

        Of rings that do the same and share no link with others, one is simulated.
        """
        flows = [around(ring.ranks, number) for number, ring in enumerate(self.groups)]
        does = [(ring.tuned, buffer.elements) for ring, buffer in zip(self.groups, self.buffers, strict=True)]
        whole, last = NOTHING, dict[int, int]()  # rank → when its last member ends
        for sets in flows_apart(fabric, flows, does):
            rings = [replace(self.groups[ring], stage=number) for number, ring in enumerate(sets[0])]
            part, ends = self._replace(groups=rings, buffers=[self.buffers[ring] for ring in sets[0]]), list[int]()
            whole = whole.beside(part._together(fabric, sharing, acting, ends), len(sets))
            for numbers in sets:
                ranks = (rank for number in numbers for rank in self.groups[number].ranks[:acting])
                for rank, end in zip(ranks, ends, strict=True):
                    last[rank] = max(last.get(rank, 0), end)
        return whole._replace(even=len({*last.values()}) == 1)

    def _together(self, fabric: Fabric, sharing: str, acting: int, ends: list[int]) -> Outcome:
        """The same, with all rings simulated; `ends` learns when each member of each ring has ended."""
        network = Transport(Links(Environment(), fabric, sharing), Recorder())
        folded, count = acting < self.members, self.members
        groups, buffers = self.groups, self.buffers
        if folded:
            groups = [replace(ring, ranks=[ring.ranks[place % acting] for place in range(count)]) for ring in groups]
            buffers = [replace(one, elements=-(-one.elements // count) * count) for one in buffers]
        members = [(ring, place) for ring in groups for place in range(acting)]
        outcome = run_collective(network, self.algorithm, members, lambda ring, member: buffers[ring], ends=ends)
        if not folded:
            return outcome
        passes = outcome.messages // len(members)  # of a shard, from member to member
        sent = [one.split(count).pack(0, count) for one in self.buffers]
        return Outcome(
            outcome.duration,
            passes * count * len(groups),
            passes * sum(shards.size - shards.scales for shards in sent),
            passes * sum(shards.scales for shards in sent),
            outcome.even,
        )


def of_textbook(name: str, fabric: Fabric, groups: Sequence[Sequence[Ring]], buffer: Buffer) -> LongRings:
    """A textbook's collective around the rings of groups, each of which has equal parts of the buffer."""
    rings = [ring for each in groups for ring in each]
    sizes = [size for each in groups for size in split_evenly(buffer.elements, len(each))]
    alone = Channels(channels=1)  # each ring is a group
    made = [
        collectives.process_group(name, collectives.Site(fabric, ring, ()), alone, stage=number)
        for number, ring in enumerate(rings)
    ]
    return LongRings(made, [Buffer(size, buffer.codec) for size in sizes], collectives.configured(name, alone))


def of_library(groups: Sequence[ProcessGroup], buffer: Buffer) -> LongRings | None:
    """A library's collective around the rings of groups; None if it does not go around rings in all of them."""
    along = collectives.find(groups[0].kind).facts["along"]
    if along is None or not all(along(group.tuned, buffer.bytes) for group in groups):
        return None
    rings, buffers = list[ProcessGroup](), list[Buffer]()
    for group in groups:
        of_group = [ring for ring, _ in group.rings] or [replace(group, ranks=group.ranks[: group.size], servers=0)]
        rings += of_group
        shares = shares_of(buffer.elements, group.size, len(of_group))
        buffers += [Buffer(size, buffer.codec) for size in shares]

    def around(ring: Group, part: Buffer) -> Routine:
        routine: Routine = along(ring.tuned, buffer.bytes)(ring, part)
        return routine

    numbered = [replace(ring, stage=number, channels=()) for number, ring in enumerate(rings)]
    return LongRings(numbered, buffers, around)


def representatives(fabric: Fabric, rings: Sequence[Ring]) -> int:
    """The number of members of each of these rings that can stand for all of them.

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
        for position, rank in enumerate(ring):
            if stand_in.setdefault(rank, ring[position % period]) != ring[position % period]:
                return False
        of_period = around([ring[place % period] for place in range(len(ring))], number)
        images |= zip(around(ring, number), of_period, strict=True)
    return isomorphic(fabric, images)
