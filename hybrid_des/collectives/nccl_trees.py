"""NCCL's trees: on a node, a chain that begins at the member with the adapter; between nodes, two binary trees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.double_binary_tree import Family, family, from_root, to_root
from hybrid_des.collectives.group import Group, Routine, seats
from hybrid_des.collectives.nccl_lanes import CHUNKS, Lanes, paced
from hybrid_des.collectives.tuning import Choice

# Of a tree: chunks of Simple are waited for on every hop, of which two nodes of eight have 16, so that 32 took half as
# long again; lines of LL and LL128 pass one by one, and more parts cost only simulated events.
MOST_CHUNKS = {"LL": 32, "LL128": 32, "Simple": 256}


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


def seat_of(group: Group) -> Seat:
    """This rank's node and seat on it."""
    on, seat = seats(group.nodes)
    return Seat(on, *seat[group.me])


def along_tree(lane: Lanes, buffer: Buffer, choice: Choice) -> Routine:
    """All-reduce along both trees, each with half of the buffer."""
    seat, routines = seat_of(lane(0)), []
    for tree, half in enumerate(buffer.parts(2)):
        count = max(1, min(MOST_CHUNKS[choice.protocol], half.bytes // CHUNKS[choice.protocol]))
        up, down, relatives = lane(2 * tree), lane(2 * tree + 1), seat.chained(tree)
        pieces = half.split(count)
        routines.append(to_root(up, down, pieces, relatives, partial(paced, up, relatives)))
        if relatives.parent is not None:
            routines.append(from_root(down, pieces, relatives))
    yield lane(0).together(*routines)
