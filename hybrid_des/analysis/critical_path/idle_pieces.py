"""Additive idle time: every gap of a rank in pieces, each named by what happened meanwhile.

The pieces of a gap are the chain of binding causes back from its end, clipped to the gap: an op of another rank, a
transfer, a latency, a queue. They sum to the gap, and gaps to the idle time of the summary, cause by cause:

    asked ── dependency ── last producer ends ── pipeline_message ── start  op  …  sent ── gradient_reduction ──
reduced
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph, Mask
from hybrid_des.analysis.critical_path.messages import PROGRAM
from hybrid_des.analysis.critical_path.paths import Piece, walks_on
from hybrid_des.analysis.idle import CAUSES, LATENCY, OTHERS, QUEUEING, REASONS, TRANSFER, idle_pieces
from hybrid_des.analysis.step_times import total
from hybrid_des.engine.causes import TABLES
from hybrid_des.planning.program_table import NONE, Column, Columns

STEPS, WAITS = map(TABLES.index, ("steps", "waits"))
WAIT = ("rank", "step", "start", "end", "cause", "reason")  # columns


class Idle(NamedTuple):
    """A part of a gap.

    Attributes:
        cause: a key of the summary's `idle_s`.
        reason: one of `REASONS`.
        activity: an op row or, numbered after these, a message, or an image of one (`Graph.activities`); −1 for a
            replayed collective.
    """

    rank: int
    step: int
    start: int
    end: int
    cause: str
    reason: str
    activity: int


class IdleTime:
    """All idle time of a run: the pieces that its rows tell, each in the parts of its chain of causes.

    Ranks that were not simulated idle as long as those that were, in the same pieces of the same reasons; unless ties
    between causes are decided differently, since the ranks are in another order there.

    Args:
        graph: the causes of the run.

    Attributes:
        of_ranks: idle picoseconds of each rank.
        causes: idle picoseconds of all ranks by the summary's cause.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self._images = graph, graph.images
        waits = idle_pieces(graph.timeline)
        points, own = _points(graph, waits)
        order = np.lexsort((waits["row"], waits["start"], points))  # those that end at one point share its chain
        ends: dict[str, Any] = {"point": points[order], "own": own[order]}
        self._firsts = np.flatnonzero(_others(ends))
        _, first, groups = np.unique(ends["point"], return_index=True, return_inverse=True)
        ends["since"] = waits["start"][order][first][groups]
        self._waits: dict[str, Any] = {**ends, **{name: waits[name][order] for name in WAIT}}
        took = waits["end"] - waits["start"]
        self.of_ranks = np.zeros(graph.timeline.layout.ranks, dtype=np.int64)
        summed = np.zeros_like(self.of_ranks)
        np.add.at(summed, waits["rank"], took)
        simulated = np.unique(graph.timeline.steps["rank"])
        for image in range(self._images.order):
            self.of_ranks[self._images.moved(simulated, image)] = summed[simulated]
        self.causes = {
            cause: total(took[waits["cause"] == number]) * self._images.order
            for number, cause in enumerate(CAUSES)
            if (waits["cause"] == number).any()
        }

    @cached_property
    def reasons(self) -> dict[str, int]:
        """Idle picoseconds of all ranks by reason."""
        alike, order = not len(self._graph.told_apart), self._images.order
        reasons = dict.fromkeys(REASONS, 0)
        for image in range(1 if alike else order):
            for piece in self._pieces(image):
                reasons[piece.reason] += piece.end - piece.start
        return {reason: time * (order if alike else 1) for reason, time in reasons.items()}

    def of(self, rank: int) -> list[Idle]:
        """The pieces of one rank."""
        home, element = self._images.fold.representative(rank)
        return list(self._pieces(int(self._images.numbered([element])[0]), home))

    def simulated(self) -> Iterator[Idle]:
        """The pieces of the simulated ranks."""
        return self._pieces(0)

    def pieces(self) -> Iterator[Idle]:
        """The pieces of all ranks."""
        for image in range(self._images.order):
            yield from self._pieces(image)

    def _pieces(self, image: int, home: int | None = None) -> Iterator[Idle]:
        """The pieces of an image of the simulated ranks, or of one of these."""
        waits, queue_last = self._waits, not self._graph.messages.fair
        chosen = slice(None) if home is None else np.flatnonzero(waits["rank"] == home)
        columns: dict[str, Any] = {name: column[chosen] for name, column in waits.items()}
        columns["rank"] = self._images.moved(columns["rank"], image)
        other = _others(columns)
        first = np.flatnonzero(other)
        chains, chain = walks_on(self._graph).chains(ends_at(columns, first, image)), list[Piece]()
        rows = zip(other.tolist(), *(columns[name].tolist() for name in WAIT), strict=True)
        for fresh, rank, step, start, end, cause, reason in rows:
            chain = next(chains) if fresh else chain
            for named, begin, until, activity in _clipped(chain, start, end, REASONS[reason], queue_last):
                yield Idle(rank, step, begin, until, CAUSES[cause], named, activity)


def _clipped(
    chain: list[Piece], begin: int, stop: int, waiting: str, queue_last: bool
) -> Iterator[tuple[str, int, int, int]]:
    """The parts of a chain within a period: reason, start, end and activity."""
    for activity, at, until, compute, transfer, latency, queue, others in chain:
        if until <= begin:
            continue
        if at >= stop:
            break
        on_links = (TRANSFER, transfer), (LATENCY, latency)
        queued = (QUEUEING, queue), (OTHERS, others)
        for reason, took in ((waiting, compute), *(on_links + queued if queue_last else queued + on_links)):
            start, end = max(at, begin), min(at + took, stop)
            at += took
            if end > start:
                yield reason, start, end, activity


def ends_at(waits: Columns, first: Column, image: int) -> Columns:
    """The ends of the chains of waits, for an image of those that each image has of its own.

    Args:
        waits: the waits in the order of their chains; those of one chain follow each other. `point` is where the chain
            ends, `since` until when it leads back, `own` whether each image has its own.
        first: the first wait of each chain.
        image: number of the image.
    """
    images = np.where(waits["own"][first], image, 0)
    return {"point": waits["point"][first], "until": waits["since"][first], "image": images}


def _others(waits: Columns) -> Mask:
    """Which waits end with another chain than the one before."""
    point, own = waits["point"], waits["own"]
    other: Mask = np.append([True] * bool(len(point)), (point[1:] != point[:-1]) | (own[1:] != own[:-1]))
    return other


def _points(graph: Graph, waits: Columns) -> tuple[Column, Mask]:
    """The point whose chain of causes covers each wait, and whether each image of the rank waits for its own.

    It is that of its row, the one before the row's, or that of what ends the step, for which all ranks wait.
    """
    rows = (graph.at_op[0], graph.at_mark[STEPS], graph.at_mark[WAITS])
    first = np.cumsum([0, *map(len, rows[:-1])])
    points: Column = np.concatenate(rows)[first[waits["table"]] + waits["row"]]
    own = graph.time[points] >= waits["released"]
    barrier = np.flatnonzero(~own)
    points[barrier] = _ends_of_steps(graph)[waits["step"][barrier]]
    program = np.flatnonzero(graph.edges.sort == PROGRAM)
    before = np.full(len(graph.time), NONE, dtype=np.int32)
    before[graph.edges.point[program]] = graph.edges.cause[program]
    while len(early := np.flatnonzero((graph.time[points] > waits["released"]) & (before[points] != NONE))):
        points[early] = before[points[early]]
    return points, own


def _ends_of_steps(graph: Graph) -> Column:
    """The point at which each step ends for all ranks: that of the rank that ends it."""
    steps = graph.timeline.steps
    order = np.lexsort((-steps["rank"], steps["end"], steps["step"]))
    last = np.flatnonzero(np.diff(steps["step"][order], append=NONE))
    points: Column = graph.at_mark[STEPS][order[last]]
    points[-1] = graph.end
    return points
