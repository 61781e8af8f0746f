"""Which part of a collective each of its messages carries: bucket, phase and place in it.

A rank reduces the buckets of a stage one after another, so a message belongs to the one that its sender was reducing
when it sent it. The messages of one flow in one bucket are in order, and a collective that registers `phases` sends
the same number of them in each.
"""

from collections.abc import Iterator

import numpy as np

from hybrid_des import collectives
from hybrid_des.engine.recorder import STEP_SHIFT
from hybrid_des.planning.program_table import NONE, Column, Columns
from hybrid_des.simulation.timeline import Timeline


def phases_of(timeline: Timeline) -> Columns:
    """Describe the message rows: `bucket`, and `part` of `parts` messages of the flow in the bucket, from 0.

    All are `NONE` for pipeline messages, for those of servers, which have no buckets of their own, and for gathers.
    """
    rows = timeline.messages
    assert rows is not None
    count = len(rows["start"])
    bucket, part, parts = (np.full(count, NONE, dtype=np.int64) for _ in range(3))
    columns = {"bucket": bucket, "part": part, "parts": parts}
    hop, flow, stage = (timeline.of_channel[name][rows["channel"]] for name in ("hop", "flow", "stage"))
    mine = np.flatnonzero(stage != NONE)
    if not len(mine) or not len(timeline.reductions["rank"]):
        return columns
    order = mine[np.lexsort((rows["start"][mine], rows["asked"][mine], hop[mine], flow[mine]))]
    first = order[hop[order] == 0]
    bucket[first] = _buckets(timeline, rows["asked"][first], rows["channel"][first], rows["tag"][first])
    _number(flow[first], bucket[first], first, part, parts)
    hops = int(hop.max()) + 1
    for other, later in groups(order[hop[order] > 0], flow * hops + hop):
        on_first = first[np.searchsorted(flow[first], other // hops) :][: len(later)]
        for column in columns.values():
            column[later] = column[on_first]
    return columns


def phase_name(kind: str, part: int, parts: int) -> str:
    """The phase of a collective that a message belongs to, "" if it has none or none is known."""
    phases = collectives.find(kind).facts["phases"] if kind in collectives.names() else ()
    if part == NONE or not phases or parts % len(phases):
        return ""
    return str(phases[part * len(phases) // parts])


def _buckets(timeline: Timeline, asked: Column, channel: Column, tag: Column) -> Column:
    """The bucket that each message's sender was reducing when it sent it."""
    rows = timeline.reductions
    sender, stage = (timeline.of_channel[name][channel] for name in ("sender", "stage"))
    step = tag >> STEP_SHIFT
    steps = max(int(rows["step"].max()), int(step.max(initial=0))) + 1
    stages = max(int(rows["stage"].max()), int(stage.max(initial=0))) + 1
    keys = (rows["rank"] * steps + rows["step"]) * stages + rows["stage"]
    wanted = (sender * steps + step) * stages + stage
    buckets = np.full(len(asked), NONE, dtype=np.int64)
    messages = dict(groups(np.argsort(wanted, kind="stable"), wanted))
    for key, mine in groups(np.lexsort((rows["bucket"], rows["start"], keys)), keys):
        here = messages.get(key, mine[:0])
        at = np.searchsorted(rows["start"][mine], asked[here], side="right") - 1
        inside = (at >= 0) & (asked[here] <= rows["end"][mine][at])
        buckets[here[inside]] = rows["bucket"][mine][at[inside]]
    return buckets


def _number(flow: Column, bucket: Column, rows: Column, part: Column, parts: Column) -> None:
    """Number the messages of each flow in each bucket, which are consecutive."""
    change = np.flatnonzero((np.diff(flow) != 0) | (np.diff(bucket) != 0)) + 1
    for mine in np.split(np.arange(len(rows)), change):
        if len(mine) and bucket[mine[0]] != NONE:
            part[rows[mine]] = np.arange(len(mine))
            parts[rows[mine]] = len(mine)


def groups(order: Column, key: Column) -> Iterator[tuple[int, Column]]:
    """Split an order sorted by a key into one group per value of the key."""
    if len(order):
        values = key[order]
        for piece in np.split(order, np.flatnonzero(np.diff(values)) + 1):
            yield int(key[piece[0]]), piece
