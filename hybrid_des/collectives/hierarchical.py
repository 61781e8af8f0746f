"""Hierarchical all-reduce: within nodes, between nodes, within nodes (Goyal et al., arXiv 1706.02677; NCCL, Horovod).

    node 0: 0 1 2 3   reduce-scatter in every node: GPU i owns the node's sum of shard i+1
    node 1: 4 5 6 7   ring all-reduce of each shard between GPUs of equal index: 0–4, 1–5, 2–6, 3–7
                      all-gather in every node; segments of the buffer pipeline through the three phases

For k nodes of g GPUs, with a1, B1 within and a2, B2 between nodes, one segment takes 2(g−1)(a1 + S/(g·B1)) +
2(k−1)(a2 + S/(g·k·B2)); several segments take between the longest phase and that. Every rank sends 2(g−1)/g · S within
its node and 2(k−1)/(g·k) · S to other nodes. Shards are finished between nodes and forwarded unchanged within them.
The first half of this, up to the sums of shards between nodes, and the second are collectives of their own.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from hybrid_des.cluster.fabric import by_node
from hybrid_des.cluster.gpus import NODE
from hybrid_des.cluster.mailbox import Handoff, Message
from hybrid_des.collectives.buffer import Buffer, Pieces, Pipelining
from hybrid_des.collectives.group import Group, Routine, seats
from hybrid_des.collectives.permutation import Permutation, differing, rotation
from hybrid_des.collectives.registration import CallSize, collective
from hybrid_des.collectives.ring import gather, scatter
from hybrid_des.errors import Refusal
from hybrid_des.units import split_evenly

MOST_SEGMENTS = 16


def between_nodes(permutation: Permutation, options: Pipelining, *, halved: bool = False) -> str:
    """Images rotate nodes around their ring, and members around that of their node."""
    (here, _), (_, seat) = seats(permutation.nodes), seats(permutation.image_nodes)
    moved = [[seat[int(permutation.places[place])] for place in places] for places in here]
    across = rotation(np.array([members[0][0] for members in moved]))
    inside = {rotation(np.array([index for _, index in members])) for members in moved}
    if any(len({node for node, _ in members}) > 1 for members in moved) or across is None or len(inside) > 1:
        return "nodes, or the members on them, are not rotated by the same number of places"
    turn = inside.pop()
    if turn is None:
        return "the members on a node are not rotated by the same number of places"
    width, nodes = len(here[0]), len(here)
    for buffer in permutation.buffers:
        for segment in set(split_evenly(buffer.elements, segments_of(buffer, width, options, halved))):
            shards = {differing(shard, nodes, across) for shard in set(split_evenly(segment, width))}
            if reason := differing(segment, width, turn) or max(shards):
                return reason
    return ""


def _of_member(call: CallSize, options: Pipelining) -> int:
    return (call.ranks // NODE + NODE) * options.most_segments(MOST_SEGMENTS)


@collective(
    "hierarchical", summary="within nodes, between nodes, within nodes", options=Pipelining, images=between_nodes,
    messages=_of_member, halves=("hierarchical-reduce-scatter", "hierarchical-all-gather"),
)  # fmt: skip
def hierarchical(group: Group, buffer: Buffer, options: Pipelining) -> Routine:
    """All-reduce `buffer` over the group, in `options.pieces` segments.

    Raises:
        Refusal: the group has different numbers of members on its nodes.
    """
    (up, across, down), segments = _phases(group, buffer, options, halved=False)
    to_across, to_down = group.handoff(), group.handoff()
    yield group.together(
        _scatter(up, segments, to_across),
        _reduce(across, len(segments), to_across, to_down),
        _gather(down, segments, across.size, to_down),
    )


@collective(
    "hierarchical-reduce-scatter", summary="every rank ends with the sum of one shard, within nodes, then between them",
    does="reduce-scatter", options=Pipelining, images=partial(between_nodes, halved=True), messages=_of_member,
)  # fmt: skip
def hierarchical_reduce_scatter(group: Group, buffer: Buffer, options: Pipelining) -> Routine:
    """Leave every rank with the sum of one shard of each segment of `buffer`; others are undefined."""
    (up, across, _), segments = _phases(group, buffer, options)
    to_across = group.handoff()
    yield group.together(_scatter(up, segments, to_across), _reduce(across, len(segments), to_across, None))


@collective(
    "hierarchical-all-gather", summary="every rank's shard ends on all ranks, between nodes, then within them",
    does="all-gather", options=Pipelining, images=partial(between_nodes, halved=True), messages=_of_member,
)  # fmt: skip
def hierarchical_all_gather(group: Group, buffer: Buffer, options: Pipelining) -> Routine:
    """Distribute every rank's shards, as `hierarchical_reduce_scatter` leaves them, to all ranks."""
    (_, across, down), segments = _phases(group, buffer, options)
    to_down = group.handoff()
    mine = [segment.parts(down.size)[(down.me + 1) % down.size].split(across.size) for segment in segments]
    yield group.together(_distribute(across, mine, to_down), _gather(down, segments, across.size, to_down))


def _phases(
    group: Group, buffer: Buffer, options: Pipelining, halved: bool = True
) -> tuple[tuple[Group, Group, Group], list[Buffer]]:
    """The members on this node, those of equal index on every node, and again those on this node; and the segments."""
    node, peers = _neighbours(group)
    groups = group.among(node, lane=0), group.among(peers, lane=1), group.among(node, lane=2)
    return groups, buffer.parts(segments_of(buffer, len(node), options, halved))


def _scatter(up: Group, segments: list[Buffer], to_across: Handoff) -> Routine:
    """Reduce-scatter within the node, and hand over this GPU's shard of each segment."""
    for segment in segments:
        yield from scatter(up, segment.split(up.size))
        to_across.hand(segment.parts(up.size)[(up.me + 1) % up.size])


def _reduce(across: Group, segments: int, to_across: Handoff, to_down: Handoff | None) -> Routine:
    """Reduce-scatter each shard over the nodes, and gather it and hand it over finished if it is to go down."""
    for _ in range(segments):
        shard: Buffer = yield to_across.receive()
        pieces = shard.split(across.size)
        yield from scatter(across, pieces)
        if to_down:
            yield from _distribute(across, [pieces], to_down)


def _distribute(across: Group, shards: Sequence[Pieces], to_down: Handoff) -> Routine:
    """All-gather shards over the nodes, and hand them over finished."""
    for pieces in shards:
        yield from gather(across, pieces.finish((across.me + 1) % across.size), pieces.landing)
        to_down.hand(pieces.pack(0, across.size))


def _gather(down: Group, segments: list[Buffer], nodes: int, to_down: Handoff) -> Routine:
    """All-gather the shards of each segment within the node."""
    for segment in segments:
        shards = segment.parts(down.size)

        def put(shard: int, message: Message, shards: list[Buffer] = shards) -> None:
            shards[shard].split(nodes).unpack(0, nodes, message)

        yield from gather(down, (yield to_down.receive()), put)


def _neighbours(group: Group) -> tuple[list[int], list[int]]:
    """The members on this member's node, and those of equal index on every node."""
    on = by_node(group.nodes)
    if len({len(places) for places in on.values()}) > 1:
        counts = ", ".join(f"{len(places)} on node {node}" for node, places in on.items())
        raise Refusal(f"hierarchical: every node must have the same number of members of a group, not {counts}")
    mine = on[group.nodes[group.me]]
    return mine, [places[mine.index(group.me)] for places in on.values()]


def segments_of(buffer: Buffer, width: int, options: Pipelining, halved: bool) -> int:
    """The number of segments with `width` members on a node; both halves have the same, whatever their encodings."""
    size = 2 * buffer.elements if halved else buffer.bytes
    return options.segments(size // width, most=MOST_SEGMENTS)
