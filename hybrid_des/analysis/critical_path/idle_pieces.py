"""Additive idle time: every gap of a rank in pieces, each named by what happened meanwhile.

The pieces of a gap are the chain of binding causes back from its end, clipped to the gap: an op of another rank, a
transfer, a latency, a queue. They sum to the gap, and gaps to the idle time of the summary, cause by cause:

    asked ── dependency ── last producer ends ── pipeline_message ── start  op  …  sent ── gradient_reduction ──
reduced
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.messages import PROGRAM
from hybrid_des.analysis.critical_path.paths import Piece, chains_of
from hybrid_des.analysis.idle import CAUSES, LATENCY, OTHERS, QUEUEING, REASONS, TRANSFER
from hybrid_des.analysis.idle import idle_pieces as waits_of
from hybrid_des.simulation.run import reduced_gc
from hybrid_des.simulation.timeline import NONE, Column, Columns

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


@reduced_gc()
def idle_pieces(graph: Graph) -> list[Idle]:
    """All idle time of a run: the pieces that its rows tell, each in the parts of its chain of causes."""
    waits, chains, queue_last = waits_of(graph.timeline), chains_of(graph), not graph.messages.fair
    points = _points(graph, waits)
    order = np.lexsort((waits["row"], waits["start"], points))  # those that end at one point share its chain
    columns = (points, *(waits[name] for name in ("rank", "step", "start", "end", "cause", "reason")))
    pieces: list[Idle] = []
    known, since, chain = NONE, 0, list[Piece]()
    for point, rank, step, start, end, cause, reason in zip(*(one[order].tolist() for one in columns), strict=True):
        if point != known or start < since:
            known, since, chain = point, start, chains.chain(point, start)
        for named, begin, until, activity in _clipped(chain, start, end, REASONS[reason], queue_last):
            pieces.append(Idle(rank, step, begin, until, CAUSES[cause], named, activity))
    return pieces


def by_reason(idle: Iterable[Idle]) -> dict[str, int]:
    """Idle picoseconds of all ranks by reason."""
    sums = Counter[str]()
    for piece in idle:
        sums[piece.reason] += piece.end - piece.start
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
