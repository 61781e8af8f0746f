"""Hierarchical all-reduce: in the node, between nodes, in the node (Goyal et al., arXiv 1706.02677; NCCL, Horovod).

    node 0: 0 1 2 3   reduce-scatter in every node: GPU i owns the node's sum of shard i+1
    node 1: 4 5 6 7   ring all-reduce of each shard between the GPUs of one place: 0–4, 1–5, 2–6, 3–7
                      all-gather in every node; cut in parts, so that one part's phase runs beside another's

k nodes of g GPUs, a1, B1 in the node and a2, B2 between nodes, as one part: 2(g−1)(a1 + S/(g·B1)) +
2(k−1)(a2 + S/(g·k·B2)); in more parts between the longest phase and that. Every rank sends 2(g−1)/g · S in the node and
2(k−1)/(g·k) · S out of it. Shards are finished between the nodes and from there on forwarded unchanged.
"""

from __future__ import annotations

from hybrid_des.collectives import collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.pipelining import Pipelining, pieces_of
from hybrid_des.collectives.ring import gather, scatter
from hybrid_des.errors import Refusal
from hybrid_des.network.mailbox import Handoff
from hybrid_des.network.message import Message

MOST_PARTS = 16


@collective("hierarchical", summary="in the node, between nodes, in the node", options=Pipelining)
def hierarchical(group: Group, buffer: Buffer, options: Pipelining) -> Routine:
    """All-reduce `buffer` over the group, in so many parts (default: from its size).

    Raises:
        Refusal: the group has more members on one node than on another.
    """
    node, peers = _neighbours(group)
    up, across, down = group.among(node, lane=0), group.among(peers, lane=1), group.among(node, lane=2)
    parts = buffer.parts(options.pieces or min(MOST_PARTS, pieces_of(buffer.bytes // len(node))))
    to_across, to_down = group.handoff(), group.handoff()
    yield group.together(
        _scatter(up, parts, to_across),
        _reduce(across, len(parts), to_across, to_down),
        _gather(down, parts, len(peers), to_down),
    )


def _scatter(up: Group, parts: list[Buffer], to_across: Handoff) -> Routine:
    """Add up in the node, part by part, and hand on this GPU's shard of each."""
    for part in parts:
        yield from scatter(up, part.split(up.size))
        to_across.hand(part.parts(up.size)[(up.me + 1) % up.size])


def _reduce(across: Group, parts: int, to_across: Handoff, to_down: Handoff) -> Routine:
    """Add up a shard over the nodes, and hand it on finished."""
    for _ in range(parts):
        shard: Buffer = yield to_across.receive()
        pieces = shard.split(across.size)
        yield from scatter(across, pieces)
        yield from gather(across, pieces.finish((across.me + 1) % across.size), pieces.put)
        to_down.hand(pieces.pack(0, across.size))


def _gather(down: Group, parts: list[Buffer], nodes: int, to_down: Handoff) -> Routine:
    """Give every GPU of the node all shards of each part."""
    for part in parts:
        shards = part.parts(down.size)

        def put(shard: int, message: Message, shards: list[Buffer] = shards) -> None:
            shards[shard].split(nodes).unpack(0, nodes, message)

        yield from gather(down, (yield to_down.receive()), put)


def _neighbours(group: Group) -> tuple[list[int], list[int]]:
    """The members on this one's node, and those with its place on every node."""
    on: dict[int, list[int]] = {}
    for place, node in enumerate(group.nodes):
        on.setdefault(node, []).append(place)
    if len({len(places) for places in on.values()}) > 1:
        counts = ", ".join(f"{len(places)} on node {node}" for node, places in on.items())
        raise Refusal(f"hierarchical: every node must have as many members of a group as the others, not {counts}")
    mine = on[group.nodes[group.me]]
    return mine, [places[mine.index(group.me)] for places in on.values()]
