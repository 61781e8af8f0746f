"""NCCL's trees: on a node, a chain that begins at the member with the adapter; between nodes, two binary trees.

With Simple every hop waits for a whole chunk: an eighth of a channel's buffer of 4 MiB, whatever the size of the
all-reduce (NVIDIA/nccl, src/enqueue.cc, calcCollChunking; src/init.cc, DEFAULT_BUFFSIZE). Releases whose
computeCollDevWork chose it halved it, down to 32 KiB, for buffers of few chunks per hop; those are not simulated. A
channel of NCCL serves one of the two trees (src/graph/connect.cc, connectTrees), so that one that is simulated, with
both, stands for two; where adapters give each twice as many, chunks of two channels pass together. LL and LL128 pass
on lines one by one. Sixteen parts per hop stand for all of these, so that the way of the first to the last member adds
at most a sixteenth to the time of a buffer (a tenth beyond sixteen hops, as parts cost events).
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.double_binary_tree import Family, family, from_root, to_root
from hybrid_des.collectives.group import Group, Routine, seats
from hybrid_des.collectives.nccl_lanes import LINES, Lanes, paced
from hybrid_des.collectives.tuning import Choice, Protocol, Wiring

CHUNK = 2**19  # bytes
PER_HOP, MOST_LINES = 16, 256  # parts of a tree's half with LL and LL128
MOST_CHUNKS = 1024  # the same of Simple: over 16 hops, those of two nodes of eight, more would change 2 % at most


class TreePosition(NamedTuple):
    """Where a member is: among all nodes of the group, and on its own.

    Attributes:
        on: per node, the places in the group of its members.
        node: the number of this member's node.
        place: this member's place on it.
    """

    on: Sequence[Sequence[int]]
    node: int
    place: int

    @property
    def hops(self) -> int:
        """The hops of a tree from the last member up to the root and down again."""
        return 2 * (max(map(len, self.on)) - 1 + (len(self.on) - 1).bit_length())

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


def position_of(group: Group) -> TreePosition:
    """This rank's node and place on it."""
    on, seat = seats(group.nodes)
    return TreePosition(on, *seat[group.me])


def parts_of(size: int, protocol: Protocol, wiring: Wiring, hops: int) -> int:
    """The parts in which one tree of a channel that is simulated passes on its half of `size` bytes up and down."""
    if protocol != "Simple":
        return max(1, min(MOST_LINES, PER_HOP * hops, size // LINES[protocol]))
    return max(1, min(MOST_CHUNKS, -(-size * wiring.channels // (CHUNK * wiring.counted))))


def most_parts(size: int | None, channels: int) -> int:
    """The most parts of a tree of a buffer of `size` bytes, of any size if it is None."""
    if size is None:
        return MOST_CHUNKS
    half = -(-size // (2 * channels))
    return max(min(MOST_LINES, half // LINES["LL128"] + 1), min(MOST_CHUNKS, -(-half // CHUNK)))


def along_tree(lane: Lanes, buffer: Buffer, choice: Choice) -> Routine:
    """All-reduce along both trees, each with half of the buffer."""
    position, routines = position_of(lane(0)), []
    for tree, half in enumerate(buffer.parts(2)):
        count = parts_of(half.bytes, choice.protocol, lane(0).tuned, position.hops)
        up, down, relatives = lane(2 * tree), lane(2 * tree + 1), position.chained(tree)
        pieces = half.split(count)
        routines.append(to_root(up, down, pieces, relatives, partial(paced, up, relatives)))
        if relatives.parent is not None:
            routines.append(from_root(down, pieces, relatives))
    yield lane(0).together(*routines)
