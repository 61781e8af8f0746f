"""NCCL's NVLS: the buffer passes switches in segments, of which each member of a node sums one part over nodes.

Over several nodes, all channels together pass a chunk of 128 KiB per member, of 64 KiB from four nodes on
(NVIDIA/nccl, src/enqueue.cc, calcCollChunking: nvlsChunkSize, NVLSTREE_MAX_CHUNKSIZE). Their channels need not be in
step, as those of a segment are here; so small buffers have up to 64 segments, which is assumed. Large ones have as many
as NCCL passes chunks, but 128 at most, since each costs events on all members: over 12 hops, those of 32 nodes, that
leaves an all-reduce up to a tenth too slow.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.double_binary_tree import Family
from hybrid_des.collectives.group import Group, Routine, seats
from hybrid_des.collectives.nccl_lanes import Lanes, lanes_of
from hybrid_des.collectives.nccl_trees import position_of
from hybrid_des.collectives.tuning import LARGEST_CHUNK, MOST_HEADS, Choice, Wiring

Members = Sequence[tuple[int, int]]  # of a node, those that are simulated: place in the group, part of each segment
SEGMENT, USUAL_SEGMENTS = 2**19, 64  # bytes that pass the switches of several nodes together, and how many of them
MOST_SEGMENTS = 128
MANY_NODES = 4  # on which chunks are half as large


class Segments(NamedTuple):
    """The parts of a buffer that passes switches, `width` per segment."""

    pieces: Pieces
    width: int

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first piece of each segment, and the end."""
        return [(i, i + self.width) for i in range(0, len(self.pieces.elements), self.width)]


def through_switches(group: Group, buffer: Buffer, choice: Choice) -> Routine:
    """All-reduce through the switch of every node."""
    wiring, lane = group.tuned, lanes_of(group, group.tuned, choice)
    width, several = wiring.ranks // wiring.nodes, wiring.nodes > 1
    count, late = _segments(wiring, buffer)
    segments = Segments(buffer.split(count * width), width)
    if group.me >= group.size:
        on_node = seats(group.nodes)[0][group.me - group.size]
        members = [(place, on_node.index(place)) for place in group.simulated(on_node)]
        yield group.together(
            _reduced_by_switch(lane, segments, members, partial=several), _written_by_switch(lane, segments, members)
        )
        return
    yield group.pause(wiring.start(choice) + late)
    position = position_of(group)
    switch = group.size + position.node
    routines = [_read_by_switch(lane(0), segments, switch), _stored(lane(0), segments, switch)]
    for tree in (0, 1):
        mine = range(tree * width + position.place, count * width, 2 * width)
        relatives = position.across(tree) if several else Family(None, [])
        routines.append(_own_up(lane(1 + tree), lane(3 + tree), segments.pieces, mine, (switch, relatives)))
        if relatives.parent is not None:
            routines.append(_own_down(lane(1 + tree), lane(3 + tree), len(mine), (switch, relatives)))
    yield group.together(*routines)


def pieces_at_switches(wiring: Wiring, buffer: Buffer) -> int:
    """The number of pieces of a buffer: one per segment and member of a node."""
    return _segments(wiring, buffer)[0] * (wiring.ranks // wiring.nodes)


def _segments(wiring: Wiring, buffer: Buffer) -> tuple[int, int]:
    """The number of segments of a buffer, and the picoseconds by which they are late in all."""
    if wiring.nodes == 1:
        loops, late = wiring.loops(buffer.bytes)
        return max(1, min(USUAL_SEGMENTS, loops)), late
    chunk = LARGEST_CHUNK // 2 if wiring.nodes >= MANY_NODES else LARGEST_CHUNK
    loop = wiring.generation.switch_channels * min(wiring.ranks // wiring.nodes, MOST_HEADS) * chunk
    return max(1, min(USUAL_SEGMENTS, buffer.bytes // SEGMENT), min(MOST_SEGMENTS, -(-buffer.bytes // loop))), 0


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


def _reduced_by_switch(lane: Lanes, segments: Segments, members: Members, *, partial: bool) -> Routine:
    """Sum each segment, and hand every member its part."""
    pieces = segments.pieces
    for number, (first, end) in enumerate(segments.spans):
        for member, _ in members:
            pieces.add_span(first, end, (yield lane(0).from_(member).receive()))
        for member, part in members:
            lane(1 + number % 2).to(member).send(pieces.encode(first + part))


def _written_by_switch(lane: Lanes, segments: Segments, members: Members) -> Routine:
    """Write finished parts to all members, segment by segment."""
    pieces = segments.pieces
    for number, (first, end) in enumerate(segments.spans):
        for member, part in members:
            pieces.put(first + part, (yield lane(1 + number % 2).from_(member).receive()))
        message = pieces.pack(first, end)
        for member, _ in members:
            lane(0).to(member).send(message)
