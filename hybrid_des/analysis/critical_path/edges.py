"""The edges of a graph of causes as columns, ordered by the points that they lead to.

The number of edges into each point is known before they are made. So the edges of some messages at a time are written
to their places: no edge is sorted, and nothing but the columns is as long as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.messages import BARRIER, DATA, PROGRAM, UNLESS_GIVEN, Messages, edges_of
from hybrid_des.analysis.critical_path.places import Places
from hybrid_des.engine.causes import MET, STEPS
from hybrid_des.simulation.timeline import NONE, Column, Columns

LIMIT = 2**31
AT_ONCE = 2**15  # messages

Tables = dict[str, dict[str, Column]]


def edges_of_run(tables: Tables, messages: Messages, places: Places, images: Images) -> dict[str, Column]:
    """All edges, ordered by their points. Columns that are not times are narrow.

    Args:
        tables: the causes of the run.
        messages: its messages.
        places: where points are.
        images: what it was folded by.
    """
    counts = _counts(tables, messages, places)
    first = np.cumsum(counts) - counts
    columns = _empty(int(counts.sum()), tables, messages, images)
    for block in _blocks(tables, messages, places, images):
        slots = _taken(first, block.pop("point"))
        for name, column in block.items():
            columns[name][slots] = column
    return {**columns, "point": np.repeat(np.arange(len(counts), dtype="int32"), counts)}


def _blocks(tables: Tables, messages: Messages, places: Places, images: Images) -> Iterator[dict[str, Column]]:
    """Edges, some at a time. Those into one point are in their order and, of one block, follow each other."""
    ends, points = points_of_rows(tables["marks"], STEPS, places.process), tables["points"]
    sent = places.process[tables["sends"]["point"]]
    some = (slice(first, first + AT_ONCE) for first in range(0, len(sent), AT_ONCE))
    return chain(
        (_program(points, tables["pieces"], places.process),),
        (_waits(points, tables["edges"], messages, places, images),),
        chain.from_iterable(messages.edges(each, sent, places, images) for each in some),
        (edges_of(ends, np.full(len(ends), places.end), BARRIER),),
    )


def _counts(tables: Tables, messages: Messages, places: Places) -> Column:
    """The number of edges into each point."""
    before, point = tables["points"]["before"], tables["edges"]["point"]
    processes = ((before != NONE) + np.bincount(point, minlength=len(before))).astype("int32")
    ends = int((tables["marks"]["table"] == STEPS).sum())
    return places.column(processes, *messages.causes, ends)


def _empty(size: int, tables: Tables, messages: Messages, images: Images) -> dict[str, Column]:
    """The columns of edges before these are known; one that has the same value for all takes no memory."""
    times = "int32" if max(messages.longest, int(tables["edges"]["lag"].max(initial=0))) < LIMIT else "int64"
    kinds = {
        "cause": "int32", "kind": "int8", "lag": "int64", "activity": "int32",
        "latency": times, "transfer": times, "queue": times,
        "link": np.min_scalar_type(-len(messages.links) - 1).name, "turn": np.min_scalar_type(-images.order).name,
    }  # fmt: skip
    columns: dict[str, Column] = {}
    for name, kind in kinds.items():
        default = UNLESS_GIVEN.get(name, 0)
        columns[name] = np.full(size, default, dtype=kind) if default else np.zeros(size, dtype=kind)
    if images.order == 1:
        columns["turn"] = np.broadcast_to(np.int8(0), size)
    return columns


def _taken(first: Column, point: Column) -> Column:
    """The places of a block's edges: those of a point take the first that are left, in order, and follow each other."""
    begins = np.flatnonzero(np.diff(point, prepend=NONE))
    sizes = np.diff(begins, append=len(point))
    slots: Column = first[point] + np.arange(len(point)) - np.repeat(begins, sizes)
    first[point[begins]] += sizes
    return slots


def points_of_rows(marks: Columns, table: int, position: Column) -> Column:
    """The point of each row of a table; rows are marked in their order."""
    points: Column = position[marks["point"][marks["table"] == table]]
    return points


def _program(points: dict[str, Column], pieces: dict[str, Column], position: Column) -> dict[str, Column]:
    """Edges from each point of a process to the next."""
    activity = np.full(len(points["kind"]), NONE)
    activity[pieces["point"]] = pieces["row"]
    held = np.flatnonzero(points["before"] != NONE)
    return edges_of(
        position[points["before"][held]], position[held], PROGRAM, lag=points["lag"][held], activity=activity[held]
    )


def _waits(
    points: dict[str, Column], edges: dict[str, Column], messages: Messages, places: Places, images: Images
) -> dict[str, Column]:
    """Edges from what a process has waited for: a message, another process, all processes that meet."""
    cause, point = edges["cause"], edges["point"]
    message = cause < NONE
    number = -2 - cause[message]
    causes = places.process[np.where(message, 0, cause)]
    causes[message] = places.delivered[number]
    kind = np.where(points["kind"][point] == MET, BARRIER, DATA)
    more = {"lag": edges["lag"], "transfer": np.where(kind == BARRIER, edges["lag"], 0)}
    if images.order > 1:
        more["turn"] = np.zeros(len(cause), dtype=np.int64)
        more["turn"][message] = messages.arrives[number]
    return edges_of(causes, places.process[point], kind, **more)
