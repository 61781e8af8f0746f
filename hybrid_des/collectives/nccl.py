"""What NCCL runs: the algorithm and protocol that its tuner takes (`collectives.tuning`), on its channels.

    ring        per adapter of a node a ring with its share of the buffer: reduce-scatter, then all-gather
    tree        per adapter two trees over nodes, each with half of its share, and a chain on each node:
                    node 0   3 ─► 2 ─► 1 ─► 0 ─┐        partial sums go along chains and up the tree in chunks,
                    node 1   7 ─► 6 ─► 5 ─► 4 ◄┘        and sums back the same way
    nvls        the switch reads the part of each member from all, and hands it their sum, which it writes to all
    nvls-tree   the same, but each member adds the sums of its like on other nodes, along two trees over nodes

Every hop takes the latency of the protocol, and no message is faster than its channel; the first one waits for a kernel
to launch (NVIDIA/nccl, src/graph/tuning.cc, src/device/all_reduce.h). On one node all channels take the same way, so
that one ring (or tree) of their joint bandwidth stands for them. The halves for sharded optimizers are rings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from hybrid_des.collectives import Collective, Site, collective
from hybrid_des.collectives.buffer import Buffer, Channels, Pieces, shares_of
from hybrid_des.collectives.double_binary_tree import Family, family, from_root, to_root
from hybrid_des.collectives.group import Group, Routine, seats
from hybrid_des.collectives.permutation import Permutation, around, in_place
from hybrid_des.collectives.ring import ring, ring_all_gather, ring_reduce_scatter
from hybrid_des.collectives.tuning import PROTOCOLS, Choice, Wiring, wiring_of
from hybrid_des.network.fabric import by_node
from hybrid_des.network.mailbox import Message
from hybrid_des.network.symmetry import orders

CHUNKS = {"LL": 2**11, "LL128": 2**12, "Simple": 2**17}  # bytes: LL and LL128 pass on single lines, Simple steps
MOST_CHUNKS = 32  # of a tree; more cost only simulated events
SEGMENT, MOST_SEGMENTS = 2**19, 64  # bytes that pass the switches of several nodes together, and how many of them
OF_CHOICE = 8  # lanes
VARIANTS = [
    *(Choice(algorithm, protocol) for algorithm in ("ring", "tree") for protocol in PROTOCOLS),
    Choice("nvls", "Simple"), Choice("nvls-tree", "Simple"),
]  # fmt: skip

Lanes = Callable[[int], Group]  # number → the group, with flows of its own at the pace of a choice
Part = Callable[[Lanes, Buffer, Choice], Routine]


def tuned(site: Site, options: Channels) -> Wiring:
    """What the tuner knows about a group."""
    return wiring_of(site.fabric, site.members, len(orders(site.fabric, site.members, options.channels, tuned=True)))


def switches(site: Site, options: Channels) -> Sequence[int]:
    """The switches with in-network reduction, if the group may use them."""
    if tuned(site, options).in_switch is None:
        return ()
    return [site.fabric.reducers[node] for node in by_node(site.fabric.node_of[member] for member in site.members)]


def images(permutation: Permutation, options: Channels) -> str:
    """Members of rings do the same; those of trees, and at switches, only in their own places."""
    wiring: Wiring = permutation.tuned
    taken = {wiring.choice("all-reduce", buffer.bytes).algorithm for buffer in permutation.buffers}
    if taken == {"ring"}:
        return around(permutation)
    if in_place(permutation) and not any(algorithm.startswith("nvls") for algorithm in taken):
        return ""
    return f"the members of NCCL's {' and '.join(sorted(taken))} do not all do the same"


@collective(
    "nccl", summary="what NCCL's tuner takes: rings, trees or switches, and a protocol", options=Channels,
    images=images, servers=switches, tuned=tuned, halves=("nccl-reduce-scatter", "nccl-all-gather"),
)  # fmt: skip
def nccl(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """All-reduce `buffer` over the group."""
    choice = group.tuned.choice("all-reduce", buffer.bytes)
    if choice.algorithm.startswith("nvls"):
        yield from _through_switches(group, buffer, choice)
    elif group.me < group.size:
        part = _tree if choice.algorithm == "tree" else _around(ring, options)
        yield from _on_channels(group, buffer, "all-reduce", part)


@collective(
    "nccl-reduce-scatter", summary="as NCCL: every rank ends with the sum of one shard", does="reduce-scatter",
    options=Channels, images=around, tuned=tuned,
)  # fmt: skip
def nccl_reduce_scatter(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Leave rank i with the sum of shard i+1 of each channel's part of `buffer`; other shards are undefined."""
    return _on_channels(group, buffer, "reduce-scatter", _around(ring_reduce_scatter, options))


@collective(
    "nccl-all-gather", summary="as NCCL: every rank's shard ends on all ranks", does="all-gather", options=Channels,
    images=around, tuned=tuned,
)  # fmt: skip
def nccl_all_gather(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Distribute shard i+1 of rank i to all ranks, on each channel."""
    return _on_channels(group, buffer, "all-gather", _around(ring_all_gather, options))


def _on_channels(group: Group, buffer: Buffer, does: str, part: Part) -> Routine:
    """Launch the kernel; run a routine per channel, each with its part of the buffer; copy what came last."""
    choice = group.tuned.choice(does, buffer.bytes)
    late, copied = group.tuned.waits(does, choice, buffer.bytes)
    yield group.pause(group.tuned.start(choice) + late)
    rings = group.rings
    parts = buffer.sections(shares_of(buffer.elements, group.size, len(rings)))
    lanes = [_lanes(ring, group.tuned, choice) for ring in rings]
    yield group.together(*(part(*one, choice) for one in zip(lanes, parts, strict=True)))
    if copied:
        yield group.pause(copied)


def _lanes(group: Group, wiring: Wiring, choice: Choice) -> Lanes:
    paces, first = wiring.paces(choice), OF_CHOICE * VARIANTS.index(choice)
    return lambda number: group.paced(*paces, first + number)


def _around(algorithm: Collective, options: Channels) -> Part:
    """A collective around the ring of each channel."""
    return lambda lane, buffer, choice: algorithm(lane(0), buffer, options)


# Trees: on a node, a chain that begins at the member with the adapter; between nodes, two binary trees.


class Seat(NamedTuple):
    """Where a member is: among all nodes of the group, and on its own.

    Attributes:
        on: per node, the places in the group of its members.
        node: the number of this member's node.
        place: this member's place on it.
    """

    on: Sequence[Sequence[int]]
    node: int
    place: int

    def across(self, tree: int) -> Family:
        """Parent and children on other nodes, each with this member's index."""
        parent, children = family(self.node, len(self.on), tree)
        places = [members[self.place] for members in self.on]
        return Family(None if parent is None else places[parent], [places[child] for child in children])

    def chained(self, tree: int) -> Family:
        """Parent and children in a tree over the first members of all nodes, which the others follow in a chain."""
        here = self.on[self.node]
        behind = list(here[self.place + 1 : self.place + 2])
        if self.place:
            return Family(here[self.place - 1], behind)
        parent, children = self.across(tree)
        return Family(parent, behind + children)


def _seat(group: Group) -> Seat:
    on, seat = seats(group.nodes)
    return Seat(on, *seat[group.me])


def _tree(lane: Lanes, buffer: Buffer, choice: Choice) -> Routine:
    """All-reduce along both trees, each with half of the buffer."""
    seat, routines = _seat(lane(0)), []
    for tree, half in enumerate(buffer.parts(2)):
        count = max(1, min(MOST_CHUNKS, half.bytes // CHUNKS[choice.protocol]))
        up, down, relatives = lane(2 * tree), lane(2 * tree + 1), seat.chained(tree)
        pieces = half.split(count)
        routines.append(to_root(up, down, pieces, relatives, partial(_paced, up, relatives)))
        if relatives.parent is not None:
            routines.append(from_root(down, pieces, relatives))
    yield lane(0).together(*routines)


def _paced(up: Group, relatives: Family, number: int, before: Message | None) -> Any:
    """Leaves send as fast as their channel carries; others are as slow as what they receive."""
    if before is None or relatives.children or relatives.parent is None:
        return None
    return up.pause(up.pacing(relatives.parent, before.size))


# Switches: the buffer passes in segments, of which each member of a node sums one part (piece) over nodes.
#
#     lane 0      members to the switch: whole segments; and back, finished ones
#     lane 1, 2   of odd and even segments: the switch to members: sums of their parts; members to members: up the tree;
#                 members to the switch: finished parts
#     lane 3, 4   members to members: down the tree


class Segments(NamedTuple):
    """The parts of a buffer that passes switches, `width` per segment."""

    pieces: Pieces
    width: int

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first piece of each segment, and the end."""
        return [(i, i + self.width) for i in range(0, len(self.pieces.elements), self.width)]


def _through_switches(group: Group, buffer: Buffer, choice: Choice) -> Routine:
    """All-reduce through the switch of every node."""
    wiring, lane = group.tuned, _lanes(group, group.tuned, choice)
    width, several = wiring.ranks // wiring.nodes, wiring.nodes > 1
    loops, late = (buffer.bytes // SEGMENT, 0) if several else wiring.loops(buffer.bytes)
    count = max(1, min(MOST_SEGMENTS, loops))
    segments = Segments(buffer.split(count * width), width)
    if group.me >= group.size:
        members = seats(group.nodes)[0][group.me - group.size]
        yield group.together(
            _reduced_by_switch(lane, segments, members, partial=several), _written_by_switch(lane, segments, members)
        )
        return
    yield group.pause(wiring.start(choice) + late)
    seat = _seat(group)
    switch = group.size + seat.node
    routines = [_read_by_switch(lane(0), segments, switch), _stored(lane(0), segments, switch)]
    for tree in (0, 1):
        mine = range(tree * width + seat.place, count * width, 2 * width)
        relatives = seat.across(tree) if several else Family(None, [])
        routines.append(_own_up(lane(1 + tree), lane(3 + tree), segments.pieces, mine, (switch, relatives)))
        if relatives.parent is not None:
            routines.append(_own_down(lane(1 + tree), lane(3 + tree), len(mine), (switch, relatives)))
    yield group.together(*routines)


def _read_by_switch(lane: Group, segments: Segments, switch: int) -> Routine:
    """Offer all segments; the port also carries this member's finished parts."""
    for first, end in segments.spans:
        message = segments.pieces.encode_span(first, end)
        lane.to(switch).send(message)
        yield lane.pause(lane.pacing(switch, message.size + message.size // segments.width))


def _stored(lane: Group, segments: Segments, switch: int) -> Routine:
    """Store finished segments."""
    for first, end in segments.spans:
        segments.pieces.unpack(first, end, (yield lane.from_(switch).receive()))


def _own_up(up: Group, down: Group, pieces: Pieces, mine: Sequence[int], relations: tuple[int, Family]) -> Routine:
    """Add the sums of other nodes to those of this member's parts, and send them up or, at the root, back."""
    switch, (parent, children) = relations
    for i in mine:
        pieces.put(i, (yield up.from_(switch).receive()))
        for child in children:
            pieces.add(i, (yield up.from_(child).receive()))
        if parent is not None:
            up.to(parent).send(pieces.encode(i))
            continue
        message = pieces.finish(i)
        for child in children:
            down.to(child).send(message)
        up.to(switch).send(message)


def _own_down(up: Group, down: Group, count: int, relations: tuple[int, Family]) -> Routine:
    """Pass finished parts on, and have the switch write them to all members of the node."""
    switch, (parent, children) = relations
    assert parent is not None
    for _ in range(count):
        message = yield down.from_(parent).receive()
        for child in children:
            down.to(child).send(message)
        up.to(switch).send(message)


def _reduced_by_switch(lane: Lanes, segments: Segments, members: Sequence[int], *, partial: bool) -> Routine:
    """Sum each segment, and hand every member its part."""
    pieces = segments.pieces
    for number, (first, end) in enumerate(segments.spans):
        for member in members:
            pieces.add_span(first, end, (yield lane(0).from_(member).receive()))
        for member, i in zip(members, range(first, end), strict=True):
            lane(1 + number % 2).to(member).send(pieces.encode(i))


def _written_by_switch(lane: Lanes, segments: Segments, members: Sequence[int]) -> Routine:
    """Write finished parts to all members, segment by segment."""
    pieces = segments.pieces
    for number, (first, end) in enumerate(segments.spans):
        for member, i in zip(members, range(first, end), strict=True):
            pieces.put(i, (yield lane(1 + number % 2).from_(member).receive()))
        message = pieces.pack(first, end)
        for member in members:
            lane(0).to(member).send(message)
