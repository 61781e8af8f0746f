"""The graph of causes as tables for readers: activities, the path, idle time, classes, collectives; in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.idle_pieces import Idle
from hybrid_des.analysis.critical_path.paths import Piece
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.spans import Span
from hybrid_des.analysis.idle import group_of
from hybrid_des.cluster.purposes import ACTIVATION, GRADIENT
from hybrid_des.planning.program_table import NONE, OP_KINDS, Column, Columns
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND as SECOND

if TYPE_CHECKING:
    import pandas as pd


PARTS = "start", "end", "compute", "transfer", "latency", "queueing", "others"  # of a piece of the path


SHORT = {ACTIVATION.name: "a", GRADIENT.name: "g"}


class Names:
    """Short names of the activities of a run: `B1@0` is the backward of micro-batch 1 on rank 0, `a1` an activation.

    Activities are numbers of op rows, then of messages, then of their images; −1 is a replayed collective.
    """

    def __init__(self, timeline: Timeline, graph: Graph) -> None:
        ops, programs, channels = timeline.op_rows(), timeline.programs, timeline.channels
        rows, messages = timeline.messages, graph.messages
        assert rows is not None
        sent = timeline.described({name: rows[name][messages.rows[:, 0]] for name in ("channel", "tag")})
        self._ops, self._count, self._images = len(ops["rank"]), graph.activities, graph.images
        self._ranks = np.concatenate([ops["rank"], messages.sender, [NONE]]).astype("int32")
        self._steps = np.concatenate([ops["step"], sent["step"]]).astype("int32")
        self._microbatches, self._channel = (sent[name].astype("int32") for name in ("microbatch", "channel"))
        self._facts: list[list[int]] = [ops[name].tolist() for name in ("kind", "microbatch", "label", "chunk")]
        self._programs, self._channels = programs, channels
        self._many = int(timeline.steps["step"].max(initial=0)) > 0

    def __call__(self, activity: int) -> str:
        """The name of an activity."""
        if activity == NONE:
            return "collective"
        rank, image = self.rank(activity), activity // self._count
        activity %= self._count
        step = f"step {self._steps[activity]}: " if self._many else ""
        if self.is_op(activity):
            *what, chunk = (fact[activity] for fact in self._facts)
            return f"{step}{self._programs.name(*what)}{f'.{chunk}' if chunk > 0 else ''}@{rank}"
        channel = self._channels[self._channel[activity - self._ops]]
        if channel.purpose.name in SHORT:
            return f"{step}{SHORT[channel.purpose.name]}{self._microbatches[activity - self._ops]}"
        return f"{step}{channel.kind} {rank}>{self._images.rank(channel.receiver, image)}"

    def kind(self, activity: int) -> str:
        """The kind of an activity: the kind of an op, or the content of a message."""
        if activity == NONE:
            return "collective"
        activity %= self._count
        if self.is_op(activity):
            return OP_KINDS[self._facts[0][activity]]
        return str(self._channels[self._channel[activity - self._ops]].kind)

    def rank(self, activity: int) -> int:
        """The rank that computes an op or sends a message."""
        if activity < self._count:
            return int(self._ranks[activity])
        image, simulated = divmod(activity, self._count)
        return self._images.rank(int(self._ranks[simulated]), image)

    def facts(self, activity: int) -> dict[str, Any]:
        """Name, kind and rank of an activity, as columns."""
        return {"activity": self(activity), "kind": self.kind(activity), "rank": self.rank(activity)}

    def is_op(self, activity: int) -> bool:
        """Whether an activity is an op."""
        return activity >= 0 and activity % self._count < self._ops


def path_rows(path: Sequence[Piece], slack: Slack, names: Names) -> list[dict[str, Any]]:
    """The pieces of the critical path, with the drag of ops."""
    drag = slack.drag_of_ops
    return [
        {
            **names.facts(activity),
            **{f"{part}_s": took / SECOND for part, took in zip(PARTS, times, strict=True)},
            "drag_s": int(drag[activity % slack.graph.activities]) / SECOND if names.is_op(activity) else None,
        }
        for activity, *times in path
    ]


def near_rows(slack: Slack, names: Names, top: int) -> list[dict[str, Any]]:
    """The activities off the critical paths that are nearest to them, with their floats.

    Of equally near ones, ops are first, in the order of their ends, then messages, in that of their starts; of several
    at once, the lowest rank is first and, of its messages, the one to the lowest rank.
    """
    graph, images = slack.graph, slack.graph.images
    ops = graph.timeline.ops
    total = np.concatenate([slack.of_ops, slack.of_messages])
    took = np.concatenate([ops["end"] - ops["start"], graph.messages.took])
    time = np.concatenate([ops["end"], graph.time[graph.head]])
    rank = np.concatenate([ops["rank"], graph.messages.sender])
    to = np.concatenate([ops["rank"], graph.messages.receiver])
    off = np.flatnonzero((total > 0) & (took > 0))
    off = off[np.lexsort((time[off], off >= len(ops["rank"]), total[off]))]
    if not len(off):
        return []
    last = off[min(top, len(off)) - 1]
    near = off[: np.flatnonzero((total[off] == total[last]) & (time[off] == time[last])).max() + 1]  # and equal ones
    every, each = np.tile(near, images.order), np.repeat(np.arange(images.order), len(near))
    ends = (images.moved(column[every], each) for column in (to, rank))
    order = np.lexsort((every, *ends, time[every], every >= len(ops["rank"]), total[every]))
    nearest = (every + each * graph.activities)[order][:top]
    free = np.concatenate([slack.free_of_ops, slack.free_of_messages])
    floats = (column[nearest % graph.activities] for column in (total, free))
    return [
        {**names.facts(activity), "total_float_s": late / SECOND, "free_float_s": free / SECOND}
        for activity, late, free in zip(nearest.tolist(), *(column.tolist() for column in floats), strict=True)
    ]


def activities(slack: Slack) -> pd.DataFrame:
    """One row per op and message: its times, float, drag, and the activity that released it.

    `activity` counts op rows, then messages in the order in which they were sent; `released_by` is another of them, −1
    for the first. Times are whole picoseconds.
    """
    import pandas as pd

    graph, messages, images = slack.graph, slack.graph.messages, slack.graph.images
    ops, every = graph.timeline.op_rows(), np.arange(slack.graph.images.order)
    sizes = len(ops["rank"]), len(messages.flow)
    nothing = np.full(sizes[1], NONE)

    def of_all(of_ops: Column, of_messages: Column) -> Column:
        return np.concatenate([np.tile(of_ops, images.order), np.tile(of_messages, images.order)])

    def moved(of_ops: Column, of_messages: Column) -> Column:
        return np.concatenate([images.moved(rank, every[:, None]).reshape(-1) for rank in (of_ops, of_messages)])

    lane = np.array(["compute", "message"], dtype=object)[np.repeat([0, 1], np.array(sizes) * images.order)]
    return pd.DataFrame(
        {
            "activity": np.arange(sum(sizes) * images.order),
            "lane": lane,
            "rank": moved(ops["rank"], messages.sender),
            "peer": moved(np.full(sizes[0], NONE), messages.receiver),
            "kind": of_all(ops["kind"], nothing),
            "microbatch": of_all(ops["microbatch"], nothing),
            "start_ps": of_all(ops["start"], graph.time[graph.head]),
            "end_ps": of_all(ops["end"], graph.time[graph.places.delivered]),
            "total_float_ps": of_all(slack.of_ops, slack.of_messages),
            "free_float_ps": of_all(slack.free_of_ops, slack.free_of_messages),
            "drag_ps": of_all(slack.drag_of_ops, nothing),
            "released_by": _released_by_rows(graph, sizes),
        }
    )


def _released_by_rows(graph: Graph, sizes: tuple[int, int]) -> Column:
    """`released_by` of all images of ops, then of messages, as their numbers in that order."""
    ops, messages = sizes
    each = [released_by(graph, image) for image in range(graph.images.order)]
    by = np.concatenate([*(one[:ops] for one in each), *(one[ops:] for one in each)])
    image, simulated = by // max(graph.activities, 1), by % max(graph.activities, 1)
    of_message = graph.images.order * ops + image * messages + simulated - ops
    return np.where(by == NONE, NONE, np.where(simulated < ops, image * ops + simulated, of_message))


def released_by(graph: Graph, image: int = 0) -> Column:
    """The activity whose end released the start of each op row, then of each message; −1 for the first.

    For a message, it is what released its send; if it then queued, see `graph.released` at its service points.

    Args:
        graph: the causes of a run.
        image: of the ops and messages.
    """
    point: Column = np.concatenate([graph.at_op[0], graph.head])
    images, by = np.full(len(point), image), np.full(len(point), NONE)
    left = np.arange(len(point))
    while len(left):  # a step back for all that nothing has released yet
        edge, there = graph.released_at(point[left], images[left])
        known = edge != NONE
        left, edge, there = left[known], edge[known], there[known]
        activity = graph.edges.activity(edge)
        own = (graph.edges.lag(edge) > 0) & (activity != NONE)
        by[left[own]] = activity[own] + there[own] * graph.activities
        left, edge, there = left[~own], edge[~own], there[~own]
        point[left], images[left] = graph.edges.cause[edge], there
    return by


def idle_table(idle: Sequence[Idle], names: Names) -> pd.DataFrame:
    """One row per piece of idle time: rank, step, times, cause of the summary, reason, and activity meanwhile."""
    import pandas as pd

    rows = [
        (*one[:2], one.start / SECOND, one.end / SECOND, one.cause, one.reason, names(one[-1]), names.rank(one[-1]))
        for one in idle
    ]
    columns = ["rank", "step", "start_s", "end_s", "cause", "reason", "during", "of_rank"]
    return pd.DataFrame(rows, columns=columns)


def class_rows(spans: Mapping[Any, Span]) -> list[dict[str, Any]]:
    """The classes with their least and most time over all critical paths."""
    return [
        {"class": sort, "name": name, "least_s": span.least / SECOND, "most_s": span.most / SECOND}
        for (sort, name), span in spans.items()
    ]


def collective_rows(graph: Graph, most: int | None = None) -> list[dict[str, Any]]:
    """Each reduction of a bucket: the last rank to begin it, the mean wait for that rank, and the transfer time.

    Of several ranks that begin it last, the lowest is named.

    Args:
        graph: the causes of a run.
        most: the number of reductions to list; default: all.
    """
    rows, listed = _reductions(graph, most), []
    keys = np.stack([rows["step"], rows["stage"], rows["bucket"], group_of(graph.timeline, rows)])
    order = np.lexsort((rows["rank"], *keys[::-1]))
    groups = np.split(order, np.flatnonzero(np.diff(keys[:, order]).any(axis=0)) + 1) if len(order) else []
    for mine in groups[:most]:
        start, end = rows["start"][mine], rows["end"][mine]
        last = int(start.argmax())
        listed.append(
            {
                **{name: int(rows[name][mine[0]]) for name in ("step", "stage", "bucket")},
                "ranks": len(mine),
                "last_starter": int(rows["rank"][mine[last]]),
                "waiting_s": float((start[last] - start).mean()) / SECOND,
                "transfer_s": int(end.max() - start[last]) / SECOND,
            }
        )
    return listed


def _reductions(graph: Graph, most: int | None) -> Columns:
    """The rows of reductions of all ranks; of the first buckets only if no more are asked for."""
    rows, images = graph.timeline.reductions, graph.images
    if most is not None and len(rows["rank"]):
        buckets = np.stack([rows["step"], rows["stage"], rows["bucket"]])
        kept = np.unique(buckets, axis=1, return_inverse=True)[1].reshape(-1) < most
        rows = {name: column[kept] for name, column in rows.items()}
    every = {name: np.repeat(column, images.order) for name, column in rows.items()}
    return {**every, "rank": images.moved(rows["rank"][:, None], np.arange(images.order)).reshape(-1)}
