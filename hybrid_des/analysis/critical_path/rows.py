"""The graph of causes as tables for readers: activities, the path, idle time, classes, collectives; in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.spans import Span
from hybrid_des.analysis.idle import group_of
from hybrid_des.cluster.purposes import ACTIVATION, GRADIENT
from hybrid_des.simulation.timeline import NONE, OP_KINDS, Column, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND as SECOND

if TYPE_CHECKING:
    import pandas as pd
from hybrid_des.analysis.critical_path.idle_pieces import Idle
from hybrid_des.analysis.critical_path.paths import Piece

PARTS = "start", "end", "compute", "transfer", "latency", "queueing", "others"  # of a piece of the path


SHORT = {ACTIVATION.name: "a", GRADIENT.name: "g"}


class Names:
    """Short names of the activities of a run: `B1@0` is the backward of micro-batch 1 on rank 0, `a1` an activation.

    Activities are numbers of op rows, then of messages; −1 is a replayed collective.
    """

    def __init__(self, timeline: Timeline, graph: Graph) -> None:
        ops, programs, channels = timeline.op_rows(), timeline.programs, timeline.channels
        rows = timeline.message_rows()
        assert rows is not None
        sent = {name: rows[name][graph.messages.rows[:, 0]] for name in ("channel", "microbatch", "step")}
        sender = timeline.of_channel["sender"][sent["channel"]]
        self._ops = len(ops["rank"])
        self._ranks: list[int] = [*ops["rank"].tolist(), *sender.tolist(), NONE]
        self._steps: list[int] = [*ops["step"].tolist(), *sent["step"].tolist(), NONE]
        self._microbatches: list[int] = sent["microbatch"].tolist()
        self._facts: list[list[int]] = [ops[name].tolist() for name in ("kind", "microbatch", "label", "chunk")]
        self._channel: list[int] = sent["channel"].tolist()
        self._programs, self._channels = programs, channels
        self._many = int(timeline.steps["step"].max(initial=0)) > 0

    def __call__(self, activity: int) -> str:
        """The name of an activity."""
        if activity == NONE:
            return "collective"
        step = f"step {self._steps[activity]}: " if self._many else ""
        if self.is_op(activity):
            *what, chunk = (fact[activity] for fact in self._facts)
            return f"{step}{self._programs.name(*what)}{f'.{chunk}' if chunk > 0 else ''}@{self.rank(activity)}"
        channel = self._channels[self._channel[activity - self._ops]]
        if channel.purpose.name in SHORT:
            return f"{step}{SHORT[channel.purpose.name]}{self._microbatches[activity - self._ops]}"
        return f"{step}{channel.kind} {channel.sender}>{channel.receiver}"

    def kind(self, activity: int) -> str:
        """The kind of an activity: the kind of an op, or the content of a message."""
        if activity == NONE:
            return "collective"
        if self.is_op(activity):
            return OP_KINDS[self._facts[0][activity]]
        return self._channels[self._channel[activity - self._ops]].kind

    def rank(self, activity: int) -> int:
        """The rank that computes an op or sends a message."""
        return self._ranks[activity]

    def facts(self, activity: int) -> dict[str, Any]:
        """Name, kind and rank of an activity, as columns."""
        return {"activity": self(activity), "kind": self.kind(activity), "rank": self.rank(activity)}

    def is_op(self, activity: int) -> bool:
        """Whether an activity is an op."""
        return 0 <= activity < self._ops


def path_rows(path: Sequence[Piece], slack: Slack, names: Names) -> list[dict[str, Any]]:
    """The pieces of the critical path, with the drag of ops."""
    drag = slack.drag_of_ops
    return [
        {
            **names.facts(activity),
            **{f"{part}_s": took / SECOND for part, took in zip(PARTS, times, strict=True)},
            "drag_s": int(drag[activity]) / SECOND if names.is_op(activity) else None,
        }
        for activity, *times in path
    ]


def near_rows(slack: Slack, names: Names, top: int) -> list[dict[str, Any]]:
    """The activities off the critical paths that are nearest to them, with their floats."""
    ops = slack.graph.timeline.ops
    total = np.concatenate([slack.of_ops, slack.of_messages])
    free = np.concatenate([slack.free_of_ops, slack.free_of_messages])
    took = np.concatenate([ops["end"] - ops["start"], slack.graph.messages.took])
    off = np.flatnonzero((total > 0) & (took > 0))
    nearest = off[np.lexsort((off, total[off]))][:top].tolist()
    floats = {"total_float_s": total, "free_float_s": free}
    return [{**names.facts(one), **{key: int(of[one]) / SECOND for key, of in floats.items()}} for one in nearest]


def activities(slack: Slack) -> pd.DataFrame:
    """One row per op and message: its times, float, drag, and the activity that released it.

    `activity` counts op rows, then messages in the order in which they were sent; `released_by` is another of them, −1
    for the first. Times are whole picoseconds.
    """
    import pandas as pd

    graph, messages = slack.graph, slack.graph.messages
    ops = graph.timeline.op_rows()
    count = len(messages.flow)
    nothing = np.full(count, NONE)
    lane = np.array(["compute", "message"], dtype=object)[np.repeat([0, 1], [len(ops["rank"]), count])]
    return pd.DataFrame(
        {
            "activity": np.arange(len(ops["rank"]) + count),
            "lane": lane,
            "rank": np.concatenate([ops["rank"], messages.sender]),
            "peer": np.concatenate([np.full(len(ops["rank"]), NONE), messages.receiver]),
            "kind": np.concatenate([ops["kind"], nothing]),
            "microbatch": np.concatenate([ops["microbatch"], nothing]),
            "start_ps": np.concatenate([ops["start"], graph.time[graph.head]]),
            "end_ps": np.concatenate([ops["end"], graph.time[graph.delivered]]),
            "total_float_ps": np.concatenate([slack.of_ops, slack.of_messages]),
            "free_float_ps": np.concatenate([slack.free_of_ops, slack.free_of_messages]),
            "drag_ps": np.concatenate([slack.drag_of_ops, nothing]),
            "released_by": released_by(graph),
        }
    )


def released_by(graph: Graph) -> Column:
    """The activity whose end released the start of each op row, then of each message; −1 for the first.

    For a message, it is what released its send; if it then queued, see `graph.released` at its service points.
    """
    chosen = graph.released
    cause = np.where(chosen >= 0, graph.cause[chosen], NONE)
    activity = np.where((chosen >= 0) & (graph.lag[chosen] > 0), graph.activity[chosen], NONE)
    before: list[int] = []
    for at, own in zip(cause.tolist(), activity.tolist(), strict=True):
        before.append(own if own != NONE else before[at] if at != NONE else NONE)
    starts: Column = np.concatenate([graph.at_op[0], graph.head])
    return np.array(before, dtype=np.int64)[starts]


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


def collective_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Each reduction of a bucket: the last rank to begin it, the mean wait for that rank, and the transfer time."""
    rows, listed = timeline.reductions, []
    keys = np.stack([rows["step"], rows["stage"], rows["bucket"], group_of(timeline, rows)])
    order = np.lexsort(keys[::-1])
    for mine in np.split(order, np.flatnonzero(np.diff(keys[:, order]).any(axis=0)) + 1) if len(order) else ():
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
