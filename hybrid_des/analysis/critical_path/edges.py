"""The edges of a graph of causes, ordered by the points that they lead to.

The number of edges into each point is known before they are made. So those of some messages at a time are written to
their places, and no edge is sorted. What follows from the message of an edge is looked up when it is asked for: most
edges are those of messages, and columns of everything would take three times the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.messages import (
    AT_ONCE,
    BARRIER,
    DATA,
    LINK,
    OF_MESSAGES,
    PROGRAM,
    TURN,
    Block,
    Messages,
    Places,
)
from hybrid_des.engine.causes import COMPUTED, MET, OPS, START, STEPS
from hybrid_des.planning.program_table import NONE, Column, Columns

BLOCK = 2**16  # edges
EVERY = slice(None)

Tables = dict[str, dict[str, Column]]
Some = Column | slice  # of the edges


class Sparse(NamedTuple):
    """What few edges have: their numbers, in order, and their values."""

    edges: Column
    value: Column

    def among(self, some: Some, count: int) -> tuple[Column, Column]:
        """Which of some of the edges have a value, and its index."""
        if isinstance(some, slice):
            start, stop, _ = some.indices(count)
            low, high = np.searchsorted(self.edges, (start, stop)).tolist()
            return self.edges[low:high] - start, np.arange(low, high)
        index = np.searchsorted(self.edges, some)
        index[index == len(self.edges)] = 0
        where = np.flatnonzero(self.edges[index] == some) if len(self.edges) else index[:0]
        return where, index[where]


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges, ordered by `point`.

    Attributes:
        cause, point: the points at both ends of each edge.
        sort: its kind (DATA, PROGRAM, BARRIER), or which part of its message's way it is (`services`).
        turn: number of the element of the fold that maps the cause to the one that releases the point (`images`).
        owner: of each point, its message; of those of processes −2 − rank, −1 for those of none.
        messages: the messages.
        lags: the picoseconds of edges of processes, where these are not 0.
        rows: the op rows that these compute; −1 for none.
        beside: the same of edges of processes that an op started, such as until a bucket is filled during the op.
        more: what is added to the times of edges.
        part: the part of a lag that `more` is.
    """

    cause: Column
    point: Column
    sort: Column
    turn: Column
    owner: Column
    messages: Messages
    lags: Sparse
    rows: Sparse
    beside: Sparse
    more: Sparse
    part: str = "transfer"

    def __len__(self) -> int:
        return len(self.cause)

    @property
    def blocks(self) -> Iterator[slice]:
        """All edges, some at a time: what is as long as all of them takes most of the memory."""
        return (slice(first, min(first + BLOCK, len(self))) for first in range(0, len(self), BLOCK))

    @property
    def ops(self) -> int:
        """Number of op rows."""
        return len(self.messages.timeline.ops["step"])

    @cached_property
    def kinds(self) -> Column:
        """The kind of each sort."""
        sort = np.arange(self.messages.services.sorts)
        of_message = np.where((sort - OF_MESSAGES) % 3 == TURN, LINK, DATA)
        return np.where(sort < OF_MESSAGES, sort, of_message).astype(np.int8)

    def kind(self, some: Some = EVERY) -> Column:
        """The kinds of edges."""
        return self.kinds[self.sort[some]]

    def message(self, some: Some = EVERY) -> Column:
        """The messages that take the lags of edges; negative for none."""
        link = self.kind(some) == LINK  # the time of the message before on it
        return self.owner[np.where(link, self.cause[some], self.point[some])]

    def activity(self, some: Some = EVERY) -> Column:
        """The activities that take the lags of edges, numbered as op rows, then messages; −1 for none."""
        message = self.message(some)
        activity = np.where(message < 0, NONE, message + self.ops)
        for rows in (self.rows, self.beside):
            where, index = rows.among(some, len(self))
            activity[where] = rows.value[index]
        return activity

    def lag(self, some: Some = EVERY) -> Column:
        """The lags of edges, in picoseconds."""
        lag = self.formula(some)
        for sparse in (self.lags, self.more):
            where, index = sparse.among(some, len(self))
            lag[where] += sparse.value[index]
        return lag

    def formula(self, some: Some = EVERY) -> Column:
        """The lags of messages' edges by the formulas of links; 0 for other edges."""
        return self._of_messages([self.messages.services.lag], some)[0]

    def parts(self, some: Some = EVERY) -> Columns:
        """Parts of the lags of edges, which sum to them: latency, transfer, queue, others, compute.

        `others` is lost to messages of other jobs. A meeting transfers until all have met. What a process takes for no
        op is a latency: launching a collective.
        """
        of_messages = self.messages.services.parts
        parts = dict(zip(of_messages, self._of_messages(of_messages.values(), some), strict=True))
        parts["compute"] = np.zeros(len(self.sort[some]), dtype=np.int64)
        where, index = self.lags.among(some, len(self))
        met, of_op = self.sort[some][where] == BARRIER, self.activity(some)[where] != NONE
        for part, mine in (("transfer", met), ("compute", of_op & ~met), ("latency", ~(of_op | met))):
            parts[part][where[mine]] += self.lags.value[index[mine]]
        where, index = self.more.among(some, len(self))
        parts[self.part][where] += self.more.value[index]
        return parts

    def link(self, some: Some = EVERY) -> Column:
        """The links of transfers and queues; −1 for edges without."""
        sort, link, messages = self.sort[some], np.full(len(self.sort[some]), NONE), self.messages
        mine = np.flatnonzero(sort >= OF_MESSAGES)
        message = self.message(some)[mine]
        link[mine] = messages.link[messages.flow[message], messages.services.hop[messages.alike[message], sort[mine]]]
        return link

    def _of_messages(self, tables: Iterable[Column], some: Some) -> list[Column]:
        """The entries of tables of `Services` for the messages of edges, 0 for those of none."""
        sort = self.sort[some]
        mine = np.flatnonzero(sort >= OF_MESSAGES)
        at = self.messages.alike[self.message(some)[mine]], sort[mine]
        entries = []
        for table in tables:
            entries.append(np.zeros(len(sort), dtype=np.int64))
            entries[-1][mine] = table[at]
        return entries


def edges_of_run(tables: Tables, messages: Messages, places: Places, images: Images, owner: Column) -> Edges:
    """All edges, ordered by their points.

    Args:
        tables: the causes of the run.
        messages: its messages.
        places: where points are.
        images: what it was folded by.
        owner: the owner of each point.
    """
    counts = _counts(tables, messages, places)
    first = np.cumsum(counts, dtype="int32")
    first -= counts
    size, points, pieces = int(counts.sum()), tables["points"], tables["pieces"]
    cause, sort = np.empty(size, dtype="int32"), np.empty(size, dtype=_narrow(messages.services.sorts))
    turn: Column = (
        np.broadcast_to(np.int8(0), size) if images.order == 1 else np.empty(size, dtype=_narrow(images.order))
    )
    held = np.flatnonzero(points["before"] != NONE)
    at = places.process[held]
    program = Block(first[at], places.process[points["before"][held]], PROGRAM)
    computed, after_ops = first[places.process[pieces["point"]]], _beside_ops(tables)
    beside = first[places.process[after_ops.edges]]
    first[at] += 1
    waits, lags = _waits(tables, messages, places, first)
    ends, sent = points_of_rows(tables["marks"], STEPS, places.process), places.process[tables["sends"]["point"]]
    some = (slice(begin, begin + AT_ONCE) for begin in range(0, len(sent), AT_ONCE))
    meeting = Block(first[places.end] + np.arange(len(ends)), ends, BARRIER)
    of_messages = chain.from_iterable(messages.edges(each, sent, places, first) for each in some)
    for block in chain((program, waits, meeting), of_messages):
        cause[block.slots], sort[block.slots] = block.cause, block.sort
        if images.order > 1:
            turn[block.slots] = block.turn
    times = np.concatenate([points["lag"][held], lags])
    lasting = np.flatnonzero(times)
    del first
    timed = np.concatenate([program.slots, waits.slots])[lasting]
    return Edges(
        cause,
        np.repeat(np.arange(len(counts), dtype="int32"), counts),
        sort,
        turn,
        owner,
        messages,
        lags=_in_order(timed, times[lasting]),
        rows=_in_order(computed, pieces["row"]),
        beside=_in_order(beside, after_ops.value),
        more=_in_order(timed[:0], times[:0]),
    )


def _narrow(values: int) -> str:
    return str(np.min_scalar_type(-values))


def _in_order(edges: Column, value: Column) -> Sparse:
    order = np.argsort(edges, kind="stable")
    return Sparse(edges[order], value[order])


def _counts(tables: Tables, messages: Messages, places: Places) -> Column:
    """The number of edges into each point."""
    before, point = tables["points"]["before"], tables["edges"]["point"]
    processes = ((before != NONE) + np.bincount(point, minlength=len(before))).astype("int32")
    ends = int((tables["marks"]["table"] == STEPS).sum())
    return places.column(processes, *messages.causes, ends)


def _taken(first: Column, point: Column) -> Column:
    """The places of edges: those of a point take the first that are left, in order."""
    order = np.argsort(point, kind="stable")
    begins = np.flatnonzero(np.diff(point[order], prepend=NONE))
    slots = np.empty_like(order)
    slots[order] = first[point[order]] + np.arange(len(point))
    slots[order] -= np.repeat(begins, np.diff(begins, append=len(point)))
    return slots


def points_of_rows(marks: Columns, table: int, position: Column) -> Column:
    """The point of each row of a table; rows are marked in their order."""
    points: Column = position[marks["point"][marks["table"] == table]]
    return points


def _beside_ops(tables: Tables) -> Sparse:
    """Points at which processes that an op started have let time pass that is the op's, and the op rows."""
    points, marks = tables["points"], tables["marks"]
    alone = points["kind"] == COMPUTED
    alone[tables["pieces"]["point"]] = False
    some = np.flatnonzero(alone)
    starts = np.flatnonzero(points["kind"] == START)
    started_by = np.full(len(starts), NONE)
    started_by[points["thread"][starts]] = points["before"][starts]
    before = started_by[points["thread"][some]]
    some, before = some[before != NONE], before[before != NONE]
    of_ops = np.flatnonzero(marks["table"] == OPS)
    at = marks["thread"][of_ops] * len(alone) + marks["point"][of_ops]
    order = np.argsort(at)
    thread = points["thread"][before]
    where = np.searchsorted(at[order], thread * len(alone) + before)  # the op that the thread ends next
    known = np.flatnonzero(where < len(order))
    mark = of_ops[order[where[known]]]
    known, mark = (column[marks["thread"][mark] == thread[known]] for column in (known, mark))
    return Sparse(some[known], marks["row"][mark])


def _waits(tables: Tables, messages: Messages, places: Places, first: Column) -> tuple[Block, Column]:
    """Edges from what a process has waited for, a message, another process, all processes that meet; and their lags."""
    points, edges = tables["points"], tables["edges"]
    cause, point = edges["cause"], edges["point"]
    message = cause < NONE
    number = -2 - cause[message]
    causes = places.process[np.where(message, 0, cause)]
    causes[message] = places.delivered[number]
    kind = np.where(points["kind"][point] == MET, BARRIER, DATA)
    turn = np.zeros(len(cause), dtype=np.int64)
    turn[message] = messages.arrives[messages.flow[number]]
    return Block(_taken(first, places.process[point]), causes, kind, turn), edges["lag"]
