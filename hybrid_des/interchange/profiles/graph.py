"""Execution traces in their common form: what ranks do, as nodes that depend on each other.

A node is computation, a message sent or received, or a collective. It starts when the nodes that it needs have ended,
and, within a stream, after those before it. `rank_trace` makes nodes of what ran when on a rank: they take the recorded
time, with its order, edges, and the gaps between. `Tags` are those of messages, made unique.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid_des.cluster.purposes import ACTIVATION, EXPERT, PARAMETERS, REDUCTION, Purpose
from hybrid_des.engine.recorder import FIELD, STAGE_SHIFT
from hybrid_des.errors import UsageError

COMPUTATION, SEND, RECEIVE, COLLECTIVE = "computation", "send", "receive", "collective"
EXCHANGE = "send-receive"  # what a kernel of sends and receives does
COMPUTE = "compute"  # the stream whose ops are shown
EVERYBODY = ""  # the group of all ranks
MOST_NAMED = 5  # ids, groups or ranks in a message
_PURPOSES = {
    "all-gather": PARAMETERS, "broadcast": PARAMETERS, "gather": PARAMETERS, "all-to-all": EXPERT,
    EXCHANGE: ACTIVATION,
}  # fmt: skip


def purpose_of(does: str) -> Purpose:
    """What a collective of a trace counts as."""
    return _PURPOSES.get(does, REDUCTION)


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
        place: further facts: `op`, `op_kind`, `microbatch`, `chunk`, `stage`, `purpose`, `elements`. A computation with
            a purpose is communication whose other ranks are not known: it takes its recorded time.
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
        unlisted: names of process groups whose ranks nothing says.
        absent: names of those of which some ranks have no trace.
        untimed: how many computations have no duration.
    """

    source: str
    nodes: Sequence[Node]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unlisted: Sequence[str] = ()
    absent: Sequence[str] = ()
    untimed: int = 0


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
    index_of = {node.id: number for number, node in enumerate(nodes)}
    if len(index_of) < len(nodes):
        seen: set[int] = set()
        twice = next(node.id for node in nodes if node.id in seen or seen.add(node.id))  # type: ignore[func-returns-value]
        raise UsageError(f"{source}: two nodes have the id {twice}")
    missing = [(node.id, need) for node in nodes for need in node.needs if need not in index_of]
    if missing:
        named = _listed(sorted({need for _, need in missing}))
        raise UsageError(f"{source}: node {missing[0][0]} needs {named}, which the trace does not have")
    waits = [len(set(node.needs)) for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for need in set(node.needs):
            users[index_of[need]].append(number)
    ready = [number for number, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        number = heapq.heappop(ready)
        ordered.append(nodes[number])
        for user in users[number]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, user)
    if len(ordered) < len(nodes):
        raise UsageError(f"{source}: nodes need each other in a cycle: {_cycle(nodes, waits, index_of)}")
    return ordered


def _cycle(nodes: Sequence[Node], waits: Sequence[int], index_of: Mapping[int, int]) -> str:
    """One cycle among the nodes that still wait."""
    number = next(number for number, count in enumerate(waits) if count)
    path: list[int] = []
    while number not in path:
        path.append(number)
        number = next(index_of[need] for need in nodes[number].needs if waits[index_of[need]])
    around = [nodes[one].id for one in path[path.index(number) :]]
    shown = [*around, around[0]] if len(around) <= MOST_NAMED else [*around[:MOST_NAMED]]
    return " → ".join(map(str, shown)) + ("" if len(around) <= MOST_NAMED else f" → … ({len(around)} nodes)")


def _listed(ids: Iterable[int]) -> str:
    ids = list(ids)
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return f"node {', '.join(map(str, ids[:MOST_NAMED]))}{more}"


GAP = "gap"


@dataclass(slots=True)
class Span:
    """Something that ran on a rank; times are picoseconds.

    Attributes:
        stream: what orders it.
        after: places, among all spans of the rank, of those on other streams that it waits for.
        kind, does, group, size, transfer: of a node; `transfer` is the time of a collective without waiting.
        met: when the last member of a collective has ended, if others have a trace.
        place: further facts of the node.
    """

    name: str
    stream: str
    start: int
    end: int
    after: Sequence[int] = ()
    kind: str = COMPUTATION
    does: str = ""
    group: str = EVERYBODY
    size: int = 0
    transfer: int | None = None
    met: int | None = None
    place: Mapping[str, Any] = field(default_factory=dict)


def rank_trace(
    source: str, spans: Sequence[Span], zero: int, end: int, groups: Mapping[str, tuple[int, ...]] | None = None
) -> RankTrace:
    """The trace of spans in the order of their starts; it begins at `zero` and lasts until `end`.

    Of work that began before `zero`, beside the end of the step before, it has what was left then.
    Work of a stream keeps its order; where kernels of a stream overlap, the later one takes what is left of it. Where
    something starts later than what it follows ends in the simulation, a gap keeps the time: the host launched it late,
    or it waited for something that the profile does not show.
    """
    nodes: list[Node] = []
    ids: list[int] = []
    done: list[int] = []  # when each span ends in a simulation of these nodes
    ends: dict[str, int] = {}
    busy: dict[str, int] = {}  # the same of streams, as recorded
    for span in spans:
        ready = max([ends.get(span.stream, zero), *(done[place] for place in span.after)])
        needs = tuple(ids[place] for place in span.after)
        if span.start > ready:
            nodes.append(_gap(len(nodes), span.stream, span.start - ready, needs))
            ready, needs = span.start, ()
        begin = max(span.start, busy.get(span.stream, zero), zero)  # kernels of a stream may overlap
        duration = max(0, span.end - begin) if span.transfer is None else span.transfer
        node = Node(
            len(nodes), span.name, span.kind, duration, needs, span.stream, span.size, does=span.does, group=span.group,
            start=begin - zero, place=span.place,
        )  # fmt: skip
        ids.append(node.id)
        nodes.append(node)
        done.append(ready + duration if span.met is None else max(ready + duration, span.met))
        ends[span.stream], busy[span.stream] = done[-1], max(span.end, begin)
    last = max(ends.items(), key=lambda entry: entry[1], default=None)
    if COMPUTE in ends and end > ends[COMPUTE] and (last is None or end > last[1] or last[0] == COMPUTE):
        nodes.append(_gap(len(nodes), COMPUTE, end - ends[COMPUTE], ()))
    return RankTrace(source, nodes, groups or {})


def _gap(number: int, stream: str, duration: int, needs: tuple[int, ...]) -> Node:
    return Node(number, GAP, COMPUTATION, duration, needs, stream, place={GAP: True})


class Tags:
    """The tags of messages: each is unique at its receiver, since mailboxes are read by tag.

    Tags of traces are kept if they are, and are numbers of a stage and a micro-batch; else messages are numbered by
    receiver, the n-th between two ranks of a tag being the n-th that is received.
    """

    def __init__(self, traces: Sequence[RankTrace]) -> None:
        received = [(node.peer, rank, node.tag) for rank, node in nodes_of(traces, RECEIVE)]
        sent = [(rank, node.peer, node.tag) for rank, node in nodes_of(traces, SEND)]
        self._check(sent, received, traces)
        at = [(receiver, tag) for _, receiver, tag in received]
        self._kept = len(set(at)) == len(at) and all(0 <= tag < 1 << 2 * STAGE_SHIFT for _, tag in at)
        numbers: dict[int, int] = {}
        self._number: dict[tuple[int, int, int, int], int] = {}
        seen: dict[tuple[int, int, int], int] = {}
        for key in received:
            turn = seen[key] = seen.get(key, -1) + 1
            receiver = key[1]
            number = numbers[receiver] = numbers.get(receiver, -1) + 1
            self._number[(*key, turn)] = number // FIELD << STAGE_SHIFT | number % FIELD

    def __call__(self, sender: int, receiver: int, tag: int, turn: int) -> int:
        """The tag of the n-th message between two ranks with a tag of the trace."""
        return tag if self._kept else self._number[sender, receiver, tag, turn]

    @staticmethod
    def _check(
        sent: Sequence[tuple[int, int, int]], received: Sequence[tuple[int, int, int]], traces: Sequence[RankTrace]
    ) -> None:
        """Refuse messages that are only sent, or only received."""
        counts = Counter(sent)
        counts.subtract(received)
        for (sender, receiver, tag), more in counts.items():
            if more:
                side, other = ("sent", "received") if more > 0 else ("received", "sent")
                source = traces[min(sender if more > 0 else receiver, len(traces) - 1)].source
                raise UsageError(
                    f"{source}: a message from rank {sender} to rank {receiver} with tag {tag} is {side}, "
                    f"but not {other}"
                )


def nodes_of(traces: Sequence[RankTrace], kind: str) -> Iterable[tuple[int, Node]]:
    """The nodes of a kind, each with its rank."""
    return ((rank, node) for rank, trace in enumerate(traces) for node in trace.nodes if node.kind == kind)
