"""Which part of a collective each of its messages carries: bucket, phase and place in it.

A rank reduces the buckets of a stage one after another, so a message belongs to the one that its sender was reducing
when it sent it. The messages of one flow in one bucket are in order, and a collective that registers `phases` sends
the same number of them in each.
"""

import numpy as np

from hybrid_des import collectives
from hybrid_des.engine.recorder import STEP_SHIFT
from hybrid_des.timeline import NONE, Column, Columns, Timeline


def phases_of(timeline: Timeline) -> Columns:
    """Describe the message rows: `bucket`, and `part` of `parts` messages of the flow in the bucket, from 0.

    All are `NONE` for pipeline messages, for those of servers, which have no buckets of their own, and for gathers.
    """
    rows = timeline.messages
    assert rows is not None
    count = len(rows["start"])
    bucket, part, parts = (np.full(count, NONE, dtype=np.int64) for _ in range(3))
    found = {"bucket": bucket, "part": part, "parts": parts}
    hop, flow, stage = (timeline.of_channel[name][rows["channel"]] for name in ("hop", "flow", "stage"))
    mine = np.flatnonzero(stage != NONE)
    if not len(mine) or not len(timeline.reductions["rank"]):
        return found
    order = mine[np.lexsort((rows["start"][mine], rows["asked"][mine], hop[mine], flow[mine]))]
    first = order[hop[order] == 0]
    bucket[first] = _buckets(timeline, rows["asked"][first], rows["channel"][first], rows["tag"][first])
    _number(flow[first], bucket[first], first, part, parts)
    later = order[hop[order] > 0]
    for other, begin, end in _groups(flow[later] * (int(hop.max()) + 1) + hop[later]):
        on_first = first[np.searchsorted(flow[first], other // (int(hop.max()) + 1)) :][: end - begin]
        for column in found.values():
            column[later[begin:end]] = column[on_first]
    return found


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
    order, messages = np.lexsort((rows["bucket"], rows["start"], keys)), np.argsort(wanted, kind="stable")
    found = np.full(len(asked), NONE, dtype=np.int64)
    places = {key: (begin, end) for key, begin, end in _groups(wanted[messages])}
    for key, begin, end in _groups(keys[order]):
        low, high = places.get(key, (0, 0))
        here, mine = messages[low:high], order[begin:end]
        at = np.searchsorted(rows["start"][mine], asked[here], side="right") - 1
        inside = (at >= 0) & (asked[here] <= rows["end"][mine][at])
        found[here[inside]] = rows["bucket"][mine][at[inside]]
    return found


def _number(flow: Column, bucket: Column, rows: Column, part: Column, parts: Column) -> None:
    """Number the messages of each flow in each bucket, which are consecutive."""
    change = np.flatnonzero((np.diff(flow) != 0) | (np.diff(bucket) != 0)) + 1
    for mine in np.split(np.arange(len(rows)), change):
        if len(mine) and bucket[mine[0]] != NONE:
            part[rows[mine]] = np.arange(len(mine))
            parts[rows[mine]] = len(mine)


def _groups(keys: Column) -> list[tuple[int, int, int]]:
    """The runs of equal values of a sorted column: value, begin, end."""
    if not len(keys):
        return []
    begins = np.append(0, np.flatnonzero(np.diff(keys)) + 1)
    return list(zip(keys[begins].tolist(), begins.tolist(), [*begins[1:].tolist(), len(keys)], strict=True))
