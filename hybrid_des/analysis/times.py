"""Times of a run as arrays: of its ops and steps, of the use of its links, and of the phases of its collectives."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid_des import collectives
from hybrid_des.engine.recorder import OPTIMIZER, STEP_SHIFT
from hybrid_des.network.mailbox import PURPOSES, Purpose
from hybrid_des.timeline import NONE, Column, Columns, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND

# Times of ops and steps as arrays: pipeline × step × op or rank; each tensor rank has a pipeline of its own.


@dataclass(frozen=True)
class StepTimes:
    """The times of a run in picoseconds.

    Attributes:
        asked, start, end: pipeline × step × op; ops are ordered by pipeline rank, then by program order.
        row: the row of each op in `Timeline.ops`.
        begin, sent, reduced, done: pipeline × step × pipeline rank; when a rank began the step, completed its last op
            including sends, completed its gradient reductions, and finished the step.
        optimizer: total optimizer time of all ranks and steps.
        rank_of_op: the pipeline rank of each op.
        first, last: for each pipeline rank with a program, its first and last index on the op axis.
    """

    asked: Column
    start: Column
    end: Column
    row: Column
    begin: Column
    sent: Column
    reduced: Column
    done: Column
    optimizer: int
    rank_of_op: Column
    first: Column
    last: Column

    @property
    def total(self) -> int:
        """Duration of the whole run, from the first begin to the last end."""
        return int(self.done.max()) - int(self.begin.min())

    def last_compute(self) -> Column:
        """End of each rank's last op per step, pipeline × step × pipeline rank; begin of the step if it has none."""
        last = self.begin.copy()
        last[..., self.rank_of_op[self.first]] = self.end[..., self.last]
        return last


def step_times(timeline: Timeline) -> StepTimes:
    """Arrange the rows of a timeline as arrays."""
    of_rank, pipeline_rank, pipeline = timeline.pipeline, timeline.pipeline_rank, timeline.programs.pipeline
    ops, steps = timeline.ops, timeline.steps
    sizes, firsts = timeline.programs.sizes, timeline.programs.first
    lasts = firsts + sizes
    size = int(of_rank[steps["rank"]].max()) + 1, int(steps["step"].max()) + 1

    def arranged(rows: Columns, names: Sequence[str], length: int, place: Column) -> dict[str, Column]:
        """Columns as arrays pipeline × step × place, each row at its own."""
        at = (of_rank[rows["rank"]] * size[1] + rows["step"]) * length + place
        return {name: _scattered(rows[name], at, (*size, length)) for name in names}

    optimizer = ops["index"] == OPTIMIZER
    row = np.flatnonzero(~optimizer)
    computed = {"row": row, **{name: column[row] for name, column in ops.items()}}
    place = firsts[pipeline_rank[computed["rank"]]] + computed["index"]
    of_steps = arranged(steps, ("begin", "sent", "reduced", "end"), pipeline, pipeline_rank[steps["rank"]])
    return StepTimes(
        **arranged(computed, ("asked", "start", "end", "row"), int(lasts[-1]), place),
        done=of_steps.pop("end"),
        **of_steps,
        optimizer=total((ops["end"] - ops["start"])[optimizer]),
        rank_of_op=timeline.programs.ops["rank"],
        first=firsts[sizes > 0],
        last=lasts[sizes > 0] - 1,
    )


def _scattered(column: Column, at: Column, shape: tuple[int, ...]) -> Column:
    found = np.empty(shape, dtype=np.int64)
    assert len(at) == found.size  # a run that has ended has a row for every place
    found.reshape(-1)[at] = column
    return found


def total(times: Column) -> int:
    """Sum exactly: upper and lower halves are summed separately, since the total may exceed 64 bits."""
    return (int((times >> 32).sum()) << 32) + int((times & 0xFFFFFFFF).sum())


# Link use over time, averaged over windows, for pictures and the counters of the trace.


Rates = NDArray[np.float64]


@dataclass(frozen=True)
class LinkUse:
    """The use of the links of a run.

    Attributes:
        links: names, sorted.
        edges: boundaries of the windows in picoseconds, one more than there are windows.
        rate: link × window, bytes per second averaged over the window.
    """

    links: tuple[str, ...]
    edges: Column
    rate: Rates


def link_rates(timeline: Timeline, windows: int = 200, purposes: Collection[Purpose] = PURPOSES) -> LinkUse | None:
    """Average the bytes on every link over equal windows; None for a run without messages or duration.

    The bytes of a message are spread evenly over the time that it occupies the link.

    Args:
        timeline: a timeline with messages.
        windows: number of windows.
        purposes: purposes of the messages to count.
    """
    duration = timeline.duration
    if (timeline.messages is None and timeline.stream is None) or duration <= 0:
        return None
    links = timeline.links
    edges = np.array([duration * i // windows for i in range(windows + 1)], dtype=np.int64)  # products exceed 64 bits
    rows = timeline.messages_of(lambda channel: channel.purpose in purposes)
    link = timeline.of_channel["link"][rows["channel"]]
    size, start, end = rows["bytes"].astype(float), rows["start"], rows["end"]
    carried = np.zeros((len(links), windows))
    sudden = start == end
    at = np.minimum(np.searchsorted(edges, start[sudden], side="right") - 1, windows - 1)
    np.add.at(carried, (link[sudden], at), size[sudden])
    moving = ~sudden & (size > 0)
    link, start, end = link[moving], start[moving], end[moving]
    speed = size[moving] / (end - start)
    _spread(carried, edges, link, start, speed)
    _spread(carried, edges, link, end, -speed)
    return LinkUse(links, edges, np.maximum(carried, 0.0) / np.diff(edges).astype(float) * PICOSECONDS_PER_SECOND)


def _spread(carried: Rates, edges: Column, link: Column, since: Column, speed: Rates) -> None:
    """Add flows of rate `speed` from `since` on: to part of the window they start in, and to all later ones."""
    windows = carried.shape[1]
    at = np.minimum(np.searchsorted(edges, since, side="right") - 1, windows - 1)
    place = link * windows + at
    carried += np.bincount(place, speed * (edges[at + 1] - since), minlength=carried.size).reshape(carried.shape)
    begun = np.bincount(place, speed, minlength=carried.size).reshape(carried.shape)
    carried[:, 1:] += np.cumsum(begun, axis=1)[:, :-1] * np.diff(edges).astype(float)[1:]


# Which part of a collective each of its messages carries: bucket, phase and place in it.
#
# A rank reduces the buckets of a stage one after another, so a message belongs to the one that its sender was reducing
# when it sent it. The messages of one flow in one bucket are in order, and a collective that registers `phases` sends
# the same number of them in each.


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
    hops = int(hop.max()) + 1
    for other, later in groups(order[hop[order] > 0], flow * hops + hop):
        on_first = first[np.searchsorted(flow[first], other // hops) :][: len(later)]
        for column in found.values():
            column[later] = column[on_first]
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
    found = np.full(len(asked), NONE, dtype=np.int64)
    messages = dict(groups(np.argsort(wanted, kind="stable"), wanted))
    for key, mine in groups(np.lexsort((rows["bucket"], rows["start"], keys)), keys):
        here = messages.get(key, mine[:0])
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


def groups(order: Column, key: Column) -> Iterator[tuple[int, Column]]:
    """Split an order sorted by a key into one group per value of the key."""
    if len(order):
        values = key[order]
        for piece in np.split(order, np.flatnonzero(np.diff(values)) + 1):
            yield int(key[piece[0]]), piece
