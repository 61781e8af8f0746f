"""Additive idle time: every gap of a rank in pieces, each named by what happened meanwhile.

The pieces of a gap are the chain of binding causes back from its end, clipped to the gap: an op of another rank, a
transfer, a latency, a queue. They sum to the gap, and gaps to the idle time of the summary, cause by cause:

    asked ── dependency ── last producer ends ── pipeline_message ── start  op  …  sent ── gradient_reduction ── reduced
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.graph import PROGRAM, Graph
from hybrid_des.analysis.critical_path.paths import Piece, lists_of
from hybrid_des.analysis.idle import waits_at_end
from hybrid_des.analysis.step_times import StepTimes, step_times
from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.network.purpose import ACTIVATION, PARAMETERS, PURPOSES, REDUCTION
from hybrid_des.pipeline.plan import Plan
from hybrid_des.timeline import NONE, OP_KINDS, Column

END_OF_STEP = "end_of_step"
DEPENDENCY = "dependency"
CAUSES = (DEPENDENCY, *dict.fromkeys(purpose.cause for purpose in PURPOSES), END_OF_STEP)
# what a rank waits for, as reported
WARM_UP, STEADY, DRAIN, REPLICA, BARRIER = (
    "warm-up", "pipeline dependency", "drain", "waiting for a slower replica", "step barrier",
)  # fmt: skip
TRANSFER, LATENCY, QUEUEING = "transfer", "latency", "queueing"
REASONS = (WARM_UP, STEADY, DRAIN, REPLICA, BARRIER, TRANSFER, LATENCY, QUEUEING)
FORWARD, BACKWARDS = OP_KINDS.index("F"), (OP_KINDS.index("B"), OP_KINDS.index("FB"))


class Gap(NamedTuple):
    """A period in which a rank computes nothing, for one cause of the summary.

    Attributes:
        point: a point whose chain of causes covers the period.
        reason: the reason given for waiting for another rank's compute.
    """

    rank: int
    step: int
    start: int
    end: int
    cause: str
    point: int
    reason: str


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


def idle_pieces(graph: Graph) -> list[Idle]:
    """All idle time of a run, in pieces, rank by rank within each cause."""
    lists = lists_of(graph)
    chains: dict[int, tuple[int, list[Piece]]] = {}
    found: list[Idle] = []
    for gap in sorted(_gaps(graph), key=attrgetter("point", "start")):
        # gaps that end at one point share its chain; the longest is first
        until, chain = chains.get(gap.point, (gap.end, []))
        if gap.point not in chains:
            chains.clear()
        if gap.point not in chains or until > gap.start:
            chain = lists.chain(gap.point, gap.start)
            chains[gap.point] = (gap.start, chain)
        found += _clipped(gap, chain, queue_last=not graph.messages.fair)
    return found


def _clipped(gap: Gap, chain: list[Piece], queue_last: bool) -> Iterator[Idle]:
    """The parts of a chain within a gap."""
    begin, stop = gap.start, gap.end
    for activity, at, until, compute, transfer, latency, queue in chain:
        if until <= begin:
            continue
        if at >= stop:
            break
        if compute:
            parts: tuple[tuple[str, int], ...] = ((gap.reason, compute),)
        elif queue_last:
            parts = ((TRANSFER, transfer), (LATENCY, latency), (QUEUEING, queue))
        else:
            parts = ((QUEUEING, queue), (TRANSFER, transfer), (LATENCY, latency))
        for reason, took in parts:
            start, end = max(at, begin), min(at + took, stop)
            at += took
            if end > start:
                yield Idle(gap.rank, gap.step, start, end, gap.cause, reason, activity)


def _gaps(graph: Graph) -> Iterator[Gap]:
    """All gaps of all ranks."""
    times = step_times(graph.timeline)
    before = _Before(graph)
    yield from _before_ops(graph, times, before)
    yield from _collectives(graph)
    yield from _after_ops(graph, times, before)


class _Before:
    """The predecessors of points within their processes."""

    def __init__(self, graph: Graph) -> None:
        program = np.flatnonzero(graph.kind == PROGRAM)
        before = np.full(len(graph.time), NONE)
        before[graph.point[program]] = graph.cause[program]
        self._before, self._time = before.tolist(), graph.time.tolist()

    def at(self, point: int, time: int) -> int:
        """The last point of a process at or before a time, searched backwards from `point`."""
        while self._time[point] > time and self._before[point] != NONE:
            point = self._before[point]
        return point


def _before_ops(graph: Graph, times: StepTimes, before: _Before) -> Iterator[Gap]:
    """What ranks wait for before ops: producers, their messages, and whether their own sends have arrived."""
    timeline = graph.timeline
    ops = timeline.op_rows()
    computes = ops["index"] != OPTIMIZER
    place = timeline.pipeline[ops["rank"]], ops["step"]
    first = np.concatenate([[0], np.cumsum([len(program) for program in timeline.plan.programs])])
    number = np.where(computes, first[ops["pipeline_rank"]] + ops["index"], 0)
    done, previous, warm, drain = (table[(*place, number)] for table in phases_of_ops(timeline.plan, times))
    until = ops["start"] - _waited_before(graph, ops["start"])
    asked, start = ops["asked"], ops["start"]
    waits = computes & ((start > asked) | (asked > previous))
    columns = (graph.at_op[0], ops["rank"], ops["step"], previous, asked, np.clip(done, asked, until), until, start,
               warm, drain)  # fmt: skip
    for point, rank, step, left, ask, ready, there, begin, first, last in zip(
        *(column[waits].tolist() for column in columns), strict=True
    ):
        reason = WARM_UP if begin <= first else DRAIN if ask >= last else STEADY
        if ready > ask:
            yield Gap(rank, step, ask, ready, DEPENDENCY, point, reason)
        if there > ready:
            yield Gap(rank, step, ready, there, ACTIVATION.cause, point, reason)
        if ask > left:
            yield Gap(rank, step, left, ask, ACTIVATION.cause, before.at(point, ask), reason)


def phases_of_ops(plan: Plan, times: StepTimes) -> tuple[Column, Column, Column, Column]:
    """When the last remote producer and the op before finished, and when warm-up ends and drain begins.

    Each is pipeline × step × op. A rank's warm-up ends when its first backward starts, its drain begins when its last
    forward has ended.
    """
    consumer, producer = plan.edges.remote
    done = np.full_like(times.end, np.iinfo(np.int64).min)
    needing, firsts = np.unique(consumer, return_index=True)
    if len(needing):
        done[..., needing] = np.maximum.reduceat(times.end[..., producer], firsts, axis=-1)
    previous = np.empty_like(times.end)
    previous[..., 1:] = times.end[..., :-1]
    previous[..., times.first] = times.begin[..., times.rank_of_op[times.first]]
    forward = np.array([any(op.kind == "F" for op in action) for program in plan.programs for action in program])
    backward = np.array([any(op.kind in "BI" for op in action) for program in plan.programs for action in program])
    warm, drain = np.full_like(times.end, np.iinfo(np.int64).max), np.full_like(times.end, np.iinfo(np.int64).min)
    for rank in range(plan.pipeline):
        mine = times.rank_of_op == rank
        if (mine & backward).any():
            warm[..., mine] = times.start[..., mine & backward].min(axis=-1)[..., None]
        if (mine & forward).any():
            drain[..., mine] = times.end[..., mine & forward].max(axis=-1)[..., None]
    return done, previous, warm, drain


def _waited_before(graph: Graph, start: Column) -> Column:
    """How long each op waits for collectives just before it starts."""
    waited = np.zeros(len(start), dtype=np.int64)
    waits = graph.timeline.waits
    took = np.flatnonzero(waits["place"] == 0)
    if len(took):
        ops = graph.timeline.ops
        order = np.lexsort((ops["start"], ops["rank"]))
        key = ops["rank"][order] * (graph.duration + 2) + ops["start"][order]
        at = np.searchsorted(key, waits["rank"][took] * (graph.duration + 2) + waits["end"][took])
        np.add.at(waited, order[at], (waits["end"] - waits["start"])[took])
    return waited


def _collectives(graph: Graph) -> Iterator[Gap]:
    """The recorded waits for collectives: before ops, inside them, and after the optimizer."""
    waits = graph.timeline.waits
    columns = (waits["rank"], waits["step"], waits["start"], waits["end"], waits["purpose"], graph.at_mark[4])
    for rank, step, start, end, purpose, point in zip(*(column.tolist() for column in columns), strict=True):
        yield Gap(rank, step, start, end, PURPOSES[purpose].cause, point, REPLICA)


def _after_ops(graph: Graph, times: StepTimes, before: _Before) -> Iterator[Gap]:
    """What ranks wait for after their last op: sends, reductions, and the end of the step."""
    timeline, steps = graph.timeline, graph.timeline.steps
    place = timeline.pipeline[steps["rank"]], steps["step"], timeline.pipeline_rank[steps["rank"]]
    last = times.last_compute()[place]
    ends = _ends_of_steps(graph)
    columns = (steps["rank"], steps["step"], last, steps["sent"], steps["reduced"], steps["end"],
               *waits_at_end(timeline), graph.at_step)  # fmt: skip
    for rank, step, done, sent, reduced, end, *waits, point in zip(*(one.tolist() for one in columns), strict=True):
        if sent > done:
            yield Gap(rank, step, done, sent, ACTIVATION.cause, before.at(point, sent), DRAIN)
        if reduced > sent:
            yield Gap(rank, step, sent, reduced, REDUCTION.cause, before.at(point, reduced), REPLICA)
        for until, cause in zip(waits, (REDUCTION.cause, PARAMETERS.cause, END_OF_STEP), strict=True):
            if until > end:
                yield Gap(rank, step, end, until, cause, ends[step], BARRIER)
            end = until


def _ends_of_steps(graph: Graph) -> dict[int, int]:
    """The point at which each step ends for all ranks: that of the rank that ends it."""
    steps = graph.timeline.steps
    order = np.lexsort((-steps["rank"], steps["end"], steps["step"]))
    found = dict(zip(steps["step"][order].tolist(), graph.at_step[order].tolist(), strict=True))
    return {**found, max(found): graph.end}
