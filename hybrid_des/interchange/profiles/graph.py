"""What ranks do, as nodes that depend on each other: the common form of execution traces.

A node is computation, a message sent or received, or a collective. It starts when the nodes that it needs have ended,
and, within a stream, after those before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid_des.errors import UsageError

COMPUTATION, SEND, RECEIVE, COLLECTIVE = "computation", "send", "receive", "collective"
EXCHANGE = "send-receive"  # what a kernel of sends and receives does
COMPUTE = "compute"  # the stream whose ops are shown
EVERYBODY = ""  # the group of all ranks
MOST_NAMED = 5  # ids in a message


@dataclass(slots=True)
class Node:
    """A node of one rank.

    Attributes:
        id: unique on the rank.
        kind: computation, send, receive or collective.
        duration: picoseconds; of communication as recorded, 0 if that is not known.
        needs: ids of nodes of the same rank that end before it starts.
        stream: work that is done in order; empty for communication that no stream orders.
        size: bytes sent; of a collective those of a member's input, so that an all-gather's is its own part; 0 if not
            known.
        peer: the other rank of a message.
        tag: tells apart messages between two ranks; equal ones are matched in order.
        does: what a collective does, such as all-reduce.
        group: the name of its process group.
        start: recorded start in picoseconds; −1 if it is not known.
        place: further facts: `op`, `op_kind`, `microbatch`, `chunk`, `stage`, `purpose`, `elements`.
    """

    id: int
    name: str
    kind: str
    duration: int = 0
    needs: Sequence[int] = ()
    stream: str = ""
    size: int = 0
    peer: int = -1
    tag: int = 0
    does: str = ""
    group: str = EVERYBODY
    start: int = -1
    place: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RankTrace:
    """The nodes of a rank.

    Attributes:
        source: where they come from, for messages.
        groups: the ranks of each process group that has a name.
        dropped: how many references to nodes of other files were dropped.
    """

    source: str
    nodes: Sequence[Node]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dropped: int = 0


def repeated(ranks: Sequence[int], count: int) -> list[Sequence[int]]:
    """A group of evenly spaced ranks and its likes, of which each of `count` ranks is in one.

    Raises:
        UsageError: some ranks would be left over.
    """
    size, step = len(ranks), max(1, ranks[1] - ranks[0]) if len(ranks) > 1 else 1
    if count > step * size and count % (step * size):
        raise UsageError(f"parallel.data: {count} ranks; expected a multiple of {step * size} for groups of {size}")
    firsts = (rank for rank in range(count) if rank // step % size == 0)
    return [range(first, min(first + step * size, count), step) for first in firsts]


def in_order(nodes: Sequence[Node], source: str) -> list[Node]:
    """The nodes in an order in which each comes after those that it needs, else as given.

    Raises:
        UsageError: ids are missing or repeated, or nodes need each other in a cycle; the message names them.
    """
    place = {node.id: number for number, node in enumerate(nodes)}
    if len(place) < len(nodes):
        seen: set[int] = set()
        twice = next(node.id for node in nodes if node.id in seen or seen.add(node.id))  # type: ignore[func-returns-value]
        raise UsageError(f"{source}: two nodes have the id {twice}")
    missing = [(node.id, need) for node in nodes for need in node.needs if need not in place]
    if missing:
        named = _listed(sorted({need for _, need in missing}))
        raise UsageError(f"{source}: node {missing[0][0]} needs {named}, which the trace does not have")
    waits = [len(set(node.needs)) for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for need in set(node.needs):
            users[place[need]].append(number)
    ready = [number for number, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        number = heapq.heappop(ready)
        found.append(nodes[number])
        for user in users[number]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, user)
    if len(found) < len(nodes):
        raise UsageError(f"{source}: nodes need each other in a cycle: {_cycle(nodes, waits, place)}")
    return found


def _cycle(nodes: Sequence[Node], waits: Sequence[int], place: Mapping[int, int]) -> str:
    """One cycle among the nodes that still wait."""
    number = next(number for number, count in enumerate(waits) if count)
    path: list[int] = []
    while number not in path:
        path.append(number)
        number = next(place[need] for need in nodes[number].needs if waits[place[need]])
    around = [nodes[one].id for one in path[path.index(number) :]]
    shown = [*around, around[0]] if len(around) <= MOST_NAMED else [*around[:MOST_NAMED]]
    return " → ".join(map(str, shown)) + ("" if len(around) <= MOST_NAMED else f" → … ({len(around)} nodes)")


def _listed(ids: Iterable[int]) -> str:
    ids = list(ids)
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return f"node {', '.join(map(str, ids[:MOST_NAMED]))}{more}"
