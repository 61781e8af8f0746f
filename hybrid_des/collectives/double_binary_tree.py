"""Double binary tree all-reduce, pipelined (Sanders, Speck & Träff, Parallel Computing 2009; NCCL since 2.4).

    half of the buffer   0 ── 4 ─┬─ 2 ─┬─ 1     the other half, upside down   7 ── 3 ─┬─ 5 ─┬─ 6
                                 │     └─ 3                                           │     └─ 4
                                 └─ 6 ─ 5, 7    every rank is inner in one            └─ 1 ─ 2, 0

In each tree, segments are reduced on the way up and, once complete at the root, broadcast down. An inner rank sends
each segment once up and twice down, a leaf once up: at most 2S bytes. The time approaches 2S/bandwidth for large S and
2 log2(n) · latency for small S. For odd n, the second tree is the first one shifted by one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from hybrid_des.cluster.mailbox import Handoff, Message
from hybrid_des.collectives.buffer import Buffer, Pieces, Pipelining
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.registration import collective


class Family(NamedTuple):
    """A rank's neighbours in a tree; the root has no parent."""

    parent: int | None
    children: list[int]


Gate = Callable[[int, Message | None], Any]  # (number, the segment before) → what to wait for before it is sent; None


@collective(
    "double-binary-tree", summary="two pipelined trees, each for half of the buffer", options=Pipelining,
    messages=lambda call, options: 2 * options.most_segments(),
)  # fmt: skip
def double_binary_tree(group: Group, buffer: Buffer, options: Pipelining) -> Routine:
    """All-reduce `buffer` over the group, each half in `options.pieces` segments."""
    count = options.segments(buffer.bytes // 2)
    ahead = max(2 * group.size.bit_length(), count // 4)
    parts = []
    for tree, half in enumerate(buffer.parts(2)):
        up, down, back = group.lane(2 * tree), group.lane(2 * tree + 1), group.handoff()
        relatives = family(group.me, group.size, tree)
        cut = half.split(count)
        # without waiting, a leaf fills its port with segments of one tree, and the other tree waits
        parts.append(to_root(up, down, cut, relatives, partial(_returned, back, ahead)))
        if relatives.parent is not None:
            parts.append(from_root(down, cut, relatives, back))
    yield group.together(*parts)


def _returned(back: Handoff, ahead: int, number: int, before: Message | None) -> Any:
    return back.receive() if number >= ahead else None


def to_root(up: Group, down: Group, pieces: Pieces, relatives: Family, gate: Gate) -> Routine:
    """Reduce the segments of the children, and send them up or, at the root, finish and send them down."""
    parent, children = relatives
    message = None
    for i in range(len(pieces.elements)):
        for child in children:
            pieces.add(i, (yield up.from_(child).receive()))
        if parent is None:
            finished = pieces.finish(i)
            for child in children:
                down.to(child).send(finished)
            continue
        if (ready := gate(i, message)) is not None:
            yield ready
        message = pieces.encode(i)
        up.to(parent).send(message)


def from_root(down: Group, pieces: Pieces, relatives: Family, back: Handoff | None = None) -> Routine:
    """Store the segments of the parent, and forward them unchanged; `back` is told of each."""
    parent, children = relatives
    assert parent is not None  # the root has nothing to receive
    for i in range(len(pieces.elements)):
        message = yield down.from_(parent).receive()
        pieces.put(i, message)
        for child in children:
            down.to(child).send(message)
        if back is not None:
            back.hand(i)


def family(me: int, size: int, tree: int) -> Family:
    """A rank's parent and children in one of the two trees."""
    if tree == 0:
        return _in_order(me, size)
    if size % 2 == 0:
        parent, children = _in_order(size - 1 - me, size)
        return Family(None if parent is None else size - 1 - parent, [size - 1 - child for child in children])
    parent, children = _in_order((me - 1) % size, size)
    return Family(None if parent is None else (parent + 1) % size, [(child + 1) % size for child in children])


def _in_order(member: int, size: int) -> Family:
    """Parent and children in the binary tree with in-order traversal 1, 2, …; odd places are leaves, 0 the root."""
    if member == 0:
        return Family(None, [1 << (size - 1).bit_length() - 1] if size > 1 else [])
    lowest = member & -member
    parent = (member ^ lowest) | (lowest << 1)
    if parent >= size:
        parent = member ^ lowest
    half = lowest >> 1
    children = [member - half] if half else []
    while half and member + half >= size:
        half >>= 1
    return Family(parent, children + [member + half] * bool(half))
