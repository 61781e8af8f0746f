"""The bars of a Gantt chart as arrays, from a whole run or a filtered timeline table, and their names.

Colours are the colour-blind-safe palette of Okabe and Ito (https://jfly.uni-koeln.de/color/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.step_times import step_times
from hybrid_des.analysis.table import ops_of, reductions_of
from hybrid_des.network.purpose import REDUCTION
from hybrid_des.timeline import NONE, OP_KINDS, Column, Columns, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

Seconds = NDArray[np.float64]

BLACK = "#000000"

FINEST = 1000  # reductions less than a thousandth of the run apart are merged


class Activity(NamedTuple):
    """One kind of activity of a GPU: label in legends, letter in text output, colour of its bars on white."""

    label: str
    letter: str
    colour: str


ACTIVITIES = {  # ops by `timeline.OP_KINDS`
    "F": Activity("forward", "F", "#0072B2"),
    "B": Activity("backward", "B", "#E69F00"),
    "W": Activity("weight gradient", "W", "#009E73"),
    "FB": Activity("forward with backward", "X", "#CC79A7"),
    "optimizer": Activity("optimizer", "o", BLACK),
    "reduction": Activity(REDUCTION.label, "~", REDUCTION.colour),
    "idle": Activity("idle", "·", "#FFFFFF"),
}


@dataclass(frozen=True)
class Bars:
    """Bars of a chart, with times in seconds; a line is a rank, counted from the top.

    Attributes:
        line, kind, step, microbatch, chunk, start, end: one entry per op; `kind` is an index into `OP_KINDS`.
        second: the micro-batch of a fused pair's backward; −1 for others, and if only a table is known.
        waits: line, begin and end of each period of gradient reduction, one row each.
        ranks, replicas: the rank on each line, and its replica.
    """

    line: Column
    kind: Column
    step: Column
    microbatch: Column
    chunk: Column
    start: Seconds
    end: Seconds
    second: Column
    waits: Seconds
    ranks: tuple[int, ...]
    replicas: tuple[int, ...]

    @property
    def last(self) -> float:
        """The end of the last bar."""
        return max(float(self.end.max(initial=0.0)), float(self.waits[:, 2].max(initial=0.0)))

    @property
    def typical(self) -> dict[int, float]:
        """The median length of each kind of op that takes time, optimizers excepted, by index into `OP_KINDS`."""
        length = self.end - self.start
        real = (length > 0) & (self.kind != OP_KINDS.index("optimizer"))
        return {kind: float(np.median(length[real & (self.kind == kind)])) for kind in np.unique(self.kind[real])}

    def kept(self, which: NDArray[np.bool_]) -> Bars:
        """The bars of some ops alone."""
        columns = ("line", "kind", "step", "microbatch", "chunk", "start", "end", "second")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})

    def first_steps(self, steps: int) -> Bars:
        """The bars of the first steps alone, and reductions until the next step."""
        kept = np.isin(self.step, np.unique(self.step)[:steps])
        until = max(float(self.end[kept].max(initial=0.0)), float(self.start[~kept].min(initial=np.inf)))
        waits = self.waits[self.waits[:, 1] < until].copy()
        waits[:, 2] = np.minimum(waits[:, 2], until)
        return replace(self.kept(kept), waits=waits)


def bars_of(source: Timeline | pd.DataFrame, every: int = 1) -> Bars:
    """Arrange ops and gradient reductions in lines: by replica, then by pipeline rank.

    A rank reduces gradients while it sends a message of a collective and, known only for a whole run, while it waits
    for reductions after its last op. Of a whole run, every `every`-th replica is kept.
    """
    if isinstance(source, Timeline):
        mine = None if every == 1 else source.replica % every == 0
        ops = source.op_rows(None if mine is None else np.flatnonzero(mine[source.ops["rank"]]))
        reductions = _reductions(source, mine)
        second = ops["second"]
    else:
        ops, reductions = ops_of(source), reductions_of(source)
        second = np.full(len(ops["kind"]), NONE)
    rank, replica, place = (
        np.concatenate([ops[name], reductions[name]]) for name in ("rank", "replica", "pipeline_rank")
    )
    ranks, row = np.unique(rank, return_index=True)
    order = np.lexsort((place[row], replica[row]))
    line = np.zeros(int(ranks.max(initial=-1)) + 1, dtype=np.int64)
    line[ranks[order]] = np.arange(len(ranks))
    whole = max(int(rows["end"].max(initial=0)) for rows in (ops, reductions))
    reducing, start, end = _merge(reductions["rank"], reductions["asked"], reductions["end"], gap=whole // FINEST)
    return Bars(
        line[ops["rank"]],
        ops["kind"],
        ops["step"],
        ops["microbatch"],
        ops["chunk"],
        ops["start"] / PICOSECONDS_PER_SECOND,
        ops["end"] / PICOSECONDS_PER_SECOND,
        second,
        np.column_stack([line[reducing], start / PICOSECONDS_PER_SECOND, end / PICOSECONDS_PER_SECOND]),
        tuple(ranks[order].tolist()),
        tuple(replica[row][order].tolist()),
    )


def _reductions(timeline: Timeline, mine: NDArray[np.bool_] | None) -> Columns:
    """Every message of a collective on its first link, and each rank's wait for reductions at the end of a step.

    With `mine`, only those of the selected ranks.
    """
    ranks = timeline.layout.ranks  # parameter servers have no line
    sender = np.array([channel.sender for channel in timeline.channels], dtype=np.int64)
    times, steps = step_times(timeline), timeline.steps
    place = timeline.pipeline[steps["rank"]], steps["step"], timeline.pipeline_rank[steps["rank"]]
    some = slice(None) if mine is None else mine[steps["rank"]]
    found = [(steps["rank"][some], times.last_compute()[place][some], steps["reduced"][some])]
    for sent in timeline.message_pieces(
        lambda c: (
            c.hop == 0 and c.purpose.cause == REDUCTION.cause and c.sender < ranks and (mine is None or mine[c.sender])
        )
    ):
        periods = sender[sent["channel"]], sent["asked"], sent["end"]
        found.append(periods if timeline.stream is None else _merge(*periods, gap=timeline.duration // FINEST))
    rank, start, end = (np.concatenate(columns) for columns in zip(*found, strict=True))
    real = end > start
    rank = rank[real]
    return {
        "rank": rank,
        "replica": timeline.replica[rank],
        "pipeline_rank": timeline.pipeline_rank[rank],
        "asked": start[real],
        "end": end[real],
    }


def _merge(rank: Column, start: Column, end: Column, gap: int) -> tuple[Column, Column, Column]:
    """Merge periods of a rank that overlap or are less than `gap` apart."""
    order = np.lexsort((start, rank))
    pieces = np.split(order, np.flatnonzero(np.diff(rank[order])) + 1) if len(order) else []
    merged: list[tuple[Column, Column, Column]] = []
    for piece in pieces:
        until = np.maximum.accumulate(end[piece])
        first = np.append(True, start[piece][1:] > until[:-1] + gap)
        final = np.append(first[1:], True)
        merged.append((rank[piece][first], start[piece][first], until[final]))
    if not merged:
        return rank, start, end
    one, two, three = (np.concatenate(column) for column in zip(*merged, strict=True))
    return one, two, three
