"""Critical paths: the pieces of one, which tile the run, and the number of paths.

A path is a sequence of ops, messages and meetings. A message's points and links are several ways through one activity,
which count as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.messages import PROGRAM
from hybrid_des.analysis.critical_path.slack import Slack, Span
from hybrid_des.analysis.idle import CAUSES, LATENCY, OTHERS, QUEUEING, REASONS, TRANSFER, group_of
from hybrid_des.analysis.idle import idle_pieces as waits_of
from hybrid_des.network.mailbox import ACTIVATION, GRADIENT
from hybrid_des.simulation.run import few_collections
from hybrid_des.timeline import NONE, OP_KINDS, Column, Columns, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND as SECOND

if TYPE_CHECKING:
    import pandas as pd


State = tuple[int, tuple[int, ...]]
MOST_EDGES = 400_000
NAMED = {"compute": "compute", "transfer": "transfer", "latency": LATENCY, "queue": QUEUEING, "others": OTHERS}
ROOT = -2  # no activity, before all others


class Piece(NamedTuple):
    """A part of a path or of a chain of causes.

    Attributes:
        activity: an op row or, numbered after these, a message; −1 for a meeting.
        start, end: picoseconds.
        compute, transfer, latency, queue: parts of its time. `queue`: the path moves from a message to one queued
            behind it on a link, or a message loses time to others that share its links.
        others: the part of its time lost to messages of other jobs.
    """

    activity: int
    start: int
    end: int
    compute: int = 0
    transfer: int = 0
    latency: int = 0
    queue: int = 0
    others: int = 0


class Chains:
    """The chains of causes of a graph, whose columns are lists here: walks take one edge at a time."""

    def __init__(self, graph: Graph) -> None:
        self._time, self._released = graph.time.tolist(), graph.released.tolist()
        computes = (graph.activity >= 0) & (graph.activity < len(graph.timeline.ops["step"]))
        parts = [np.where(computes, graph.lag, 0)]
        parts += [np.where(computes, 0, part) for part in (graph.transfer, graph.latency, graph.queue, graph.others)]
        columns = graph.cause, graph.activity, graph.lag, np.stack(parts, axis=1)
        self._cause, self._activity, self._lag, self._parts = (column.tolist() for column in columns)

    def chain(self, point: int, until: int) -> list[Piece]:
        """The pieces that lead to a point, in order, back to the first that begins at or before `until`.

        Edges of one activity in a row are one piece.
        """
        cause, lag, time, released = self._cause, self._lag, self._time, self._released
        pieces: list[Piece] = []
        now = ROOT
        while (edge := released[point]) != NONE and time[point] > until:
            if lag[edge]:
                activity, here, parts = self._activity[edge], time[point], self._parts[edge]
                if activity != now:
                    now = activity
                    pieces.append(Piece(now, here - lag[edge], here, *parts))
                else:
                    _, start, end, *before = pieces[-1]
                    summed = map(add, before, parts)
                    pieces[-1] = Piece(now, min(start, here - lag[edge]), max(end, here), *summed)
            point = cause[edge]
        return pieces[::-1]


_CHAINS: WeakKeyDictionary[Graph, Chains] = WeakKeyDictionary()


def chains_of(graph: Graph) -> Chains:
    """The chains of causes of a graph, which are kept as long as the graph is."""
    if graph not in _CHAINS:
        _CHAINS[graph] = Chains(graph)
    return _CHAINS[graph]


def critical_path(graph: Graph) -> list[Piece]:
    """The pieces of the critical path that is shown, from 0 to the end of the run."""
    return chains_of(graph).chain(graph.end, -1)


def time_by_part(path: Sequence[Piece]) -> dict[str, int]:
    """The parts of a path, in picoseconds that sum to it."""
    return {name: sum(getattr(piece, part) for piece in path) for part, name in NAMED.items()}


def count_paths(slack: Slack) -> int | None:
    """Number of critical paths, as sequences of ops and messages that take time; None for very large graphs.

    A state is an activity and the set of its points at which a sequence enters it; states are taken in the order of
    their first points. So each sequence counts once, however many ways lead through an activity.
    """
    if len(slack.critical) > MOST_EDGES:
        return None
    graph = slack.graph
    ways = _Ways(slack)
    roots = np.flatnonzero((graph.released == NONE) & (slack.total == 0)).tolist()
    counts: dict[State, int] = {}
    todo: list[tuple[int, State]] = []
    total = 0

    def leave(activity: int, inside: set[int], count: int) -> int:
        ended, entered = ways.beyond(activity, inside)
        for other, entries in entered.items():
            state = other, tuple(sorted(entries))
            if state not in counts:
                heappush(todo, (state[1][0], state))
            counts[state] = counts.get(state, 0) + count
        return count if ended else 0

    total += leave(ROOT, set(roots), 1)
    while todo:
        _, state = heappop(todo)
        total += leave(state[0], ways.inside(*state), counts.pop(state))
    return total


class _Ways:
    """The critical edges of a graph, by the points where they begin."""

    def __init__(self, slack: Slack) -> None:
        graph, edges = slack.graph, slack.critical
        self._end = graph.end
        self._from: dict[int, list[tuple[int, int, int]]] = {}
        columns = (graph.activity, graph.cause, graph.point, graph.lag)
        for activity, cause, point, lag in zip(*(column[edges].tolist() for column in columns), strict=True):
            self._from.setdefault(cause, []).append((activity, point, lag))

    def inside(self, activity: int, entries: tuple[int, ...]) -> set[int]:
        """The points that an activity reaches after it has taken time, from some of its points."""
        reached: set[int] = set()
        stack = [point for at in entries for other, point, lag in self._from[at] if other == activity and lag]
        while stack:
            at = stack.pop()
            if at not in reached:
                reached.add(at)
                stack += [point for other, point, _ in self._from.get(at, ()) if other == activity]
        return reached

    def beyond(self, activity: int, inside: set[int]) -> tuple[bool, dict[int, set[int]]]:
        """Whether the end follows an activity without delay, and the points at which others begin after it."""
        entered: dict[int, set[int]] = {}
        seen, stack = set(inside), list(inside)
        while stack:
            at = stack.pop()
            for other, point, lag in self._from.get(at, ()):
                if other == activity and at in inside:
                    continue
                if lag and other != NONE:
                    entered.setdefault(other, set()).add(at)
                elif point not in seen:
                    seen.add(point)
                    stack.append(point)
        return self._end in seen, entered


# Additive idle time: every gap of a rank in pieces, each named by what happened meanwhile.
#
# The pieces of a gap are the chain of binding causes back from its end, clipped to the gap: an op of another rank, a
# transfer, a latency, a queue. They sum to the gap, and gaps to the idle time of the summary, cause by cause:
#
#     asked ── dependency ── last producer ends ── pipeline_message ── start  op  …  sent ── gradient_reduction ──
# reduced


WAITS = 4  # of `engine.causes.TABLES`


class Idle(NamedTuple):
    """A part of a gap.

    Attributes:
        cause: a key of the summary's `idle_s`.
        reason: one of `REASONS`.
        activity: an op row or, numbered after these, a message; −1 for a replayed collective.
    """

    rank: int
    step: int
    start: int
    end: int
    cause: str
    reason: str
    activity: int


@few_collections()
def idle_pieces(graph: Graph) -> list[Idle]:
    """All idle time of a run: the pieces that its rows tell, each in the parts of its chain of causes."""
    waits, chains, queue_last = waits_of(graph.timeline), chains_of(graph), not graph.messages.fair
    points = _points(graph, waits)
    order = np.lexsort((waits["row"], waits["start"], points))  # those that end at one point share its chain
    columns = (points, *(waits[name] for name in ("rank", "step", "start", "end", "cause", "reason")))
    found: list[Idle] = []
    known, since, chain = NONE, 0, list[Piece]()
    for point, rank, step, start, end, cause, reason in zip(*(one[order].tolist() for one in columns), strict=True):
        if point != known or start < since:
            known, since, chain = point, start, chains.chain(point, start)
        for named, begin, until, activity in _clipped(chain, start, end, REASONS[reason], queue_last):
            found.append(Idle(rank, step, begin, until, CAUSES[cause], named, activity))
    return found


def by_reason(idle: Iterable[Idle]) -> dict[str, int]:
    """Idle picoseconds of all ranks by reason."""
    sums = Counter[str]()
    for one in idle:
        sums[one.reason] += one.end - one.start
    return {reason: sums[reason] for reason in REASONS}


def _clipped(
    chain: list[Piece], begin: int, stop: int, waiting: str, queue_last: bool
) -> Iterator[tuple[str, int, int, int]]:
    """The parts of a chain within a period: reason, start, end and activity."""
    for activity, at, until, compute, transfer, latency, queue, others in chain:
        if until <= begin:
            continue
        if at >= stop:
            break
        if compute:
            parts: tuple[tuple[str, int], ...] = ((waiting, compute),)
        elif queue_last:
            parts = ((TRANSFER, transfer), (LATENCY, latency), (QUEUEING, queue), (OTHERS, others))
        else:
            parts = ((QUEUEING, queue), (OTHERS, others), (TRANSFER, transfer), (LATENCY, latency))
        for reason, took in parts:
            start, end = max(at, begin), min(at + took, stop)
            at += took
            if end > start:
                yield reason, start, end, activity


def _points(graph: Graph, waits: Columns) -> Column:
    """The point whose chain of causes covers each wait: of its row, of what ends the step, or before the row's."""
    rows = (graph.at_op[0], graph.at_step, graph.at_mark[WAITS])
    first = np.cumsum([0, *map(len, rows[:-1])])
    points: Column = np.concatenate(rows)[first[waits["table"]] + waits["row"]]
    barrier = np.flatnonzero(graph.time[points] < waits["released"])
    points[barrier] = _ends_of_steps(graph)[waits["step"][barrier]]
    program = np.flatnonzero(graph.kind == PROGRAM)
    before = np.full(len(graph.time), NONE)
    before[graph.point[program]] = graph.cause[program]
    while len(early := np.flatnonzero((graph.time[points] > waits["released"]) & (before[points] != NONE))):
        points[early] = before[points[early]]
    return points


def _ends_of_steps(graph: Graph) -> Column:
    """The point at which each step ends for all ranks: that of the rank that ends it."""
    steps = graph.timeline.steps
    order = np.lexsort((-steps["rank"], steps["end"], steps["step"]))
    last = np.flatnonzero(np.diff(steps["step"][order], append=NONE))
    points: Column = graph.at_step[order[last]]
    points[-1] = graph.end
    return points


# The graph of causes as tables for readers: activities, the path, idle time, classes, collectives; in seconds.


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
    for at, one in zip(cause.tolist(), activity.tolist(), strict=True):
        before.append(one if one != NONE else before[at] if at != NONE else NONE)
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


def class_rows(found: Mapping[Any, Span]) -> list[dict[str, Any]]:
    """The classes with their least and most time over all critical paths."""
    return [
        {"class": sort, "name": name, "least_s": span.least / SECOND, "most_s": span.most / SECOND}
        for (sort, name), span in found.items()
    ]


def collective_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Each reduction of a bucket: the last rank to begin it, the mean wait for that rank, and the transfer time."""
    rows, found = timeline.reductions, []
    keys = np.stack([rows["step"], rows["stage"], rows["bucket"], group_of(timeline, rows)])
    order = np.lexsort(keys[::-1])
    for mine in np.split(order, np.flatnonzero(np.diff(keys[:, order]).any(axis=0)) + 1) if len(order) else ():
        start, end = rows["start"][mine], rows["end"][mine]
        last = int(start.argmax())
        found.append(
            {
                **{name: int(rows[name][mine[0]]) for name in ("step", "stage", "bucket")},
                "ranks": len(mine),
                "last_starter": int(rows["rank"][mine[last]]),
                "waiting_s": float((start[last] - start).mean()) / SECOND,
                "transfer_s": int(end.max() - start[last]) / SECOND,
            }
        )
    return found
