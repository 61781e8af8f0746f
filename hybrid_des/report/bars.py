"""The bars of a Gantt chart as arrays, from a whole run or a filtered timeline table, and as characters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.collective_phases import groups
from hybrid_des.analysis.step_times import step_times
from hybrid_des.analysis.table import ops_of, reductions_of
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.planning.program_table import NONE, OP_KINDS, Column, Columns
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND, grouped_by

if TYPE_CHECKING:
    import pandas as pd

Seconds = NDArray[np.float64]
Table = Any  # a `numpy.recarray`: an entry per row, columns as attributes


PLACES = ("rank", "replica", "pipeline_rank")
FINEST = 1000  # reductions less than a thousandth of the run apart are merged


@dataclass(frozen=True)
class Bars:
    """Bars of a chart, with times in seconds; a line is a rank, counted from the top.

    Attributes:
        ops: line, kind (an index into `OP_KINDS`), step, microbatch, chunk, start and end of each op; `second`, the
            micro-batch of a fused pair's backward, −1 for others, and if only a table is known; `inside`, how long it
            waits for collectives inside it, drawn at its end, 0 if only a table is known.
        waits: line, start and end of each period of gradient reduction.
        lines: rank, replica, place in its pipeline, and how many identical ranks each line stands for (`times`).
        chunks: number of chunks of the run, whichever are drawn.
    """

    ops: Table
    waits: Table
    lines: Table
    chunks: int

    @property
    def first(self) -> float:
        """The begin of the first bar."""
        return min(float(self.ops.start.min(initial=np.inf)), float(self.waits.start.min(initial=np.inf)), self.last)

    @property
    def last(self) -> float:
        """The end of the last bar."""
        return max(float(self.ops.end.max(initial=0.0)), float(self.waits.end.max(initial=0.0)))

    @property
    def typical(self) -> dict[int, float]:
        """The median length of each kind of op that takes time, optimizers excepted, by index into `OP_KINDS`."""
        kinds, length = self.ops.kind, self.ops.end - self.ops.start
        real = (length > 0) & (kinds != OP_KINDS.index("optimizer"))
        return {kind: float(np.median(length[real & (kinds == kind)])) for kind in np.unique(kinds[real])}

    def kept(self, which: NDArray[np.bool_]) -> Bars:
        """The bars of some ops alone."""
        return replace(self, ops=self.ops[which])

    def of_ranks(self, ranks: Collection[int]) -> Bars:
        """The lines of some ranks alone, in their order."""
        return self._of_lines(np.flatnonzero(np.isin(self.lines.rank, list(ranks))))

    def _of_lines(self, lines: Column) -> Bars:
        position = np.full(len(self.lines), NONE)
        position[lines] = np.arange(len(lines))
        ops, waits = (bars[position[bars.line] != NONE] for bars in (self.ops, self.waits))
        for bars in (ops, waits):
            bars.line = position[bars.line]
        return replace(self, ops=ops, waits=waits, lines=self.lines[lines])

    def merged(self) -> Bars:
        """Pipelines with the same bars once: the first of them, whose lines count the ranks that they stand for."""
        places, lines, shown = self.lines.place.tolist(), self.lines.copy(), self._shown()
        same = grouped_by(self._pipelines(), lambda pipeline: tuple((places[line], shown[line]) for line in pipeline))
        for first, *others in same.values():
            for at, line in enumerate(first):
                lines.times[line] += sum(self.lines.times[pipeline[at]] for pipeline in others)
        kept = sorted(line for pipelines in same.values() for line in pipelines[0])
        return replace(self, lines=lines)._of_lines(np.array(kept, dtype=np.int64))

    def _pipelines(self) -> list[tuple[int, ...]]:
        """The lines of each pipeline, by replica and by its number among those of the replica."""
        lines_of: dict[tuple[int, int], tuple[int, ...]] = {}
        seen: dict[tuple[int, int], int] = {}
        for line, at in enumerate(zip(self.lines.replica.tolist(), self.lines.place.tolist(), strict=True)):
            number = seen[at] = seen.get(at, -1) + 1
            lines_of[at[0], number] = (*lines_of.get((at[0], number), ()), line)
        return list(lines_of.values())

    def _shown(self) -> list[bytes]:
        """All that is drawn on each line."""
        ops = self.ops[np.lexsort((self.ops.kind, self.ops.start, self.ops.line))]
        waits = self.waits[np.lexsort((self.waits.start, self.waits.line))]
        pieces = []
        for bars in (ops, waits):
            facts = np.column_stack([bars[name] for name in bars.dtype.names if name != "line"])
            pieces.append(np.split(facts, np.searchsorted(bars.line, np.arange(1, len(self.lines)))))
        return [b"|".join(piece.tobytes() for piece in both) for both in zip(*pieces, strict=True)]

    def of_steps(self, steps: Collection[int]) -> Bars:
        """The bars of some steps alone, with reductions from the begin of each until the next one begins."""
        every, at = np.unique(self.ops.step, return_inverse=True)
        begins, ends = np.full(len(every) + 1, np.inf), np.zeros(len(every))
        np.minimum.at(begins, at, self.ops.start)
        np.maximum.at(ends, at, self.ops.end)
        waits = [self.waits[:0]]
        for i in np.flatnonzero(np.isin(every, list(steps))).tolist():
            until = max(float(ends[i]), float(begins[i + 1]))
            last = i + 1 == len(every) or every[i + 1] not in steps
            begin, end = begins[i] if i else 0.0, until if last else begins[i + 1]
            mine = self.waits[(self.waits.start >= begin) & (self.waits.start < end)]
            mine.end = np.minimum(mine.end, until)
            waits.append(mine)
        return replace(self.kept(np.isin(self.ops.step, list(steps))), waits=np.concatenate(waits).view(np.recarray))

    def within(self, begin: float, end: float) -> Bars:
        """The bars that are seen in a window of time, whole."""
        ops, waits = (bars[(bars.start < end) & (bars.end > begin)] for bars in (self.ops, self.waits))
        return replace(self, ops=ops, waits=waits)


def bars_of(source: Timeline | pd.DataFrame, every: int = 1, inside: Column | None = None) -> Bars:
    """Arrange ops and gradient reductions in lines: by replica, then by pipeline rank.

    A rank reduces gradients while it sends a message of a collective and, known only for a whole run, while it waits
    for reductions after its last op. Of a whole run, every `every`-th replica is kept. `inside` are picoseconds of
    collectives inside each of its ops.
    """
    within = None
    if isinstance(source, Timeline):
        mine = None if every == 1 else source.replica % every == 0
        kept = None if mine is None else np.flatnonzero(mine[source.ops["rank"]])
        ops = source.op_rows(kept)
        within = inside if inside is None or kept is None else inside[kept]
        reductions = _reductions(source, mine)
        second = ops["second"]
    else:
        ops, reductions = ops_of(source), reductions_of(source)
        second = np.full(len(ops["kind"]), NONE)
    rank, replica, places = (np.concatenate([ops[name], reductions[name]]) for name in PLACES)
    ranks, row = np.unique(rank, return_index=True)
    order = np.lexsort((places[row], replica[row]))
    line = np.zeros(int(ranks.max(initial=-1)) + 1, dtype=np.int64)
    line[ranks[order]] = np.arange(len(ranks))
    whole = max(int(rows["end"].max(initial=0)) for rows in (ops, reductions))
    reducing, start, end = _merge(reductions["rank"], reductions["asked"], reductions["end"], gap=whole // FINEST)
    times = np.full(len(ranks), source.alike if isinstance(source, Timeline) else 1)
    return Bars(
        _table(
            line=line[ops["rank"]],
            **{name: ops[name] for name in ("kind", "step", "microbatch", "chunk")},
            start=ops["start"] / PICOSECONDS_PER_SECOND,
            end=ops["end"] / PICOSECONDS_PER_SECOND,
            second=second,
            inside=np.zeros(len(second)) if within is None else within / PICOSECONDS_PER_SECOND,
        ),
        _table(line=line[reducing], start=start / PICOSECONDS_PER_SECOND, end=end / PICOSECONDS_PER_SECOND),
        _table(rank=ranks[order], replica=replica[row][order], place=places[row][order], times=times),
        int(ops["chunk"].max(initial=0)) + 1,
    )


def _table(**columns: NDArray[Any]) -> Table:
    return np.rec.fromarrays(list(columns.values()), [(name, column.dtype) for name, column in columns.items()])


def _reductions(timeline: Timeline, mine: NDArray[np.bool_] | None) -> Columns:
    """Every message of a collective on its first link, and each rank's wait for reductions at the end of a step.

    With `mine`, only those of the selected ranks.
    """
    ranks = timeline.layout.ranks  # parameter servers have no line
    sender = np.array([channel.sender for channel in timeline.channels], dtype=np.int64)
    times, steps = step_times(timeline), timeline.steps
    where = timeline.pipeline[steps["rank"]], steps["step"], timeline.pipeline_rank[steps["rank"]]
    some = slice(None) if mine is None else mine[steps["rank"]]
    spans = [(steps["rank"][some], times.last_compute()[where][some], steps["reduced"][some])]
    for sent in timeline.message_pieces(
        lambda c: (
            c.hop == 0 and c.purpose.cause == REDUCTION.cause and c.sender < ranks and (mine is None or mine[c.sender])
        )
    ):
        periods = sender[sent["channel"]], sent["asked"], sent["end"]
        spans.append(periods if timeline.stream is None else _merge(*periods, gap=timeline.duration // FINEST))
    rank, start, end = (np.concatenate(columns) for columns in zip(*spans, strict=True))
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
    merged: list[tuple[Column, Column, Column]] = []
    for _, piece in groups(np.lexsort((start, rank)), rank):
        until = np.maximum.accumulate(end[piece])
        first = np.append(True, start[piece][1:] > until[:-1] + gap)
        final = np.append(first[1:], True)
        merged.append((rank[piece][first], start[piece][first], until[final]))
    if not merged:
        return rank, start, end
    ranks, starts, ends = (np.concatenate(column) for column in zip(*merged, strict=True))
    return ranks, starts, ends
