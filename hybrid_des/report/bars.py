"""The bars of a Gantt chart as arrays, from a whole run or a filtered timeline table, and as characters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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


FINEST = 1000  # reductions less than a thousandth of the run apart are merged


@dataclass(frozen=True)
class Bars:
    """Bars of a chart, with times in seconds; a line is a rank, counted from the top.

    Attributes:
        line, kind, step, microbatch, chunk, start, end: one entry per op; `kind` is an index into `OP_KINDS`.
        second: the micro-batch of a fused pair's backward; −1 for others, and if only a table is known.
        inside: how long each op waits for collectives inside it, drawn at its end; 0 if only a table is known.
        waits: line, begin and end of each period of gradient reduction, one row each.
        ranks, replicas, places: the rank on each line, its replica, and its place in its pipeline.
        times: how many identical ranks each line stands for.
        chunks: number of chunks of the run, whichever are drawn.
    """

    line: Column
    kind: Column
    step: Column
    microbatch: Column
    chunk: Column
    start: Seconds
    end: Seconds
    second: Column
    inside: Seconds
    waits: Seconds
    ranks: tuple[int, ...]
    replicas: tuple[int, ...]
    places: tuple[int, ...]
    times: tuple[int, ...]
    chunks: int

    @property
    def first(self) -> float:
        """The begin of the first bar."""
        return min(float(self.start.min(initial=np.inf)), float(self.waits[:, 1].min(initial=np.inf)), self.last)

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
        columns = ("line", "kind", "step", "microbatch", "chunk", "start", "end", "second", "inside")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})

    def of_ranks(self, ranks: Collection[int]) -> Bars:
        """The lines of some ranks alone, in their order."""
        return self._of_lines([line for line, rank in enumerate(self.ranks) if rank in ranks])

    def _of_lines(self, lines: Sequence[int]) -> Bars:
        position = np.full(len(self.ranks), NONE)
        position[lines] = np.arange(len(lines))
        ops, waits = (
            self.kept(position[self.line] != NONE),
            self.waits[position[self.waits[:, 0].astype(np.int64)] != NONE],
        )
        waits = np.column_stack([position[waits[:, 0].astype(np.int64)], waits[:, 1:]])
        ranks, replicas, places, times = (
            tuple(column[line] for line in lines) for column in (self.ranks, self.replicas, self.places, self.times)
        )
        whole = replace(ops, line=position[ops.line], waits=waits)
        return replace(whole, ranks=ranks, replicas=replicas, places=places, times=times)

    def merged(self) -> Bars:
        """Pipelines with the same bars once: the first of them, whose lines count the ranks that they stand for."""
        pipelines = list(self._pipelines().values())
        shown = self._shown()
        same = grouped_by(pipelines, lambda lines: tuple((self.places[line], shown[line]) for line in lines))
        times = list(self.times)
        for first, *others in same.values():
            for at, line in enumerate(first):
                times[line] += sum(self.times[lines[at]] for lines in others)
        kept = sorted(line for lines, *_ in same.values() for line in lines)
        return replace(self, times=tuple(times))._of_lines(kept)

    def _pipelines(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The lines of each pipeline, by replica and by its number among those of the replica."""
        lines_of: dict[tuple[int, int], tuple[int, ...]] = {}
        seen: dict[tuple[int, int], int] = {}
        for line, at in enumerate(zip(self.replicas, self.places, strict=True)):
            number = seen[at] = seen.get(at, -1) + 1
            lines_of[at[0], number] = (*lines_of.get((at[0], number), ()), line)
        return lines_of

    def _shown(self) -> list[bytes]:
        """All that is drawn on each line."""
        facts = (self.kind, self.step, self.microbatch, self.chunk, self.second, self.start, self.end, self.inside)
        order = np.lexsort((self.kind, self.start, self.line))
        ops = np.column_stack([np.asarray(fact, dtype=np.float64)[order] for fact in facts])
        waits = self.waits[np.lexsort((self.waits[:, 1], self.waits[:, 0]))]
        lines = np.arange(1, len(self.ranks))
        pieces = zip(
            np.split(ops, np.searchsorted(self.line[order], lines)),
            np.split(waits[:, 1:], np.searchsorted(waits[:, 0], lines)),
            strict=True,
        )
        return [b"|".join(piece.tobytes() for piece in both) for both in pieces]

    def of_steps(self, steps: Collection[int]) -> Bars:
        """The bars of some steps alone, with reductions from the begin of each until the next one begins."""
        every, at = np.unique(self.step, return_inverse=True)
        begins, ends = np.full(len(every) + 1, np.inf), np.zeros(len(every))
        np.minimum.at(begins, at, self.start)
        np.maximum.at(ends, at, self.end)
        waits = [self.waits[:0]]
        for i in np.flatnonzero(np.isin(every, list(steps))).tolist():
            until = max(float(ends[i]), float(begins[i + 1]))
            last = i + 1 == len(every) or every[i + 1] not in steps
            begin, end = begins[i] if i else 0.0, until if last else begins[i + 1]
            mine = self.waits[(self.waits[:, 1] >= begin) & (self.waits[:, 1] < end)].copy()
            mine[:, 2] = np.minimum(mine[:, 2], until)
            waits.append(mine)
        return replace(self.kept(np.isin(self.step, list(steps))), waits=np.concatenate(waits))

    def within(self, begin: float, end: float) -> Bars:
        """The bars that are seen in a window of time, whole."""
        seen = (self.waits[:, 1] < end) & (self.waits[:, 2] > begin)
        return replace(self.kept((self.start < end) & (self.end > begin)), waits=self.waits[seen])


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
    rank, replica, pipeline_rank = (
        np.concatenate([ops[name], reductions[name]]) for name in ("rank", "replica", "pipeline_rank")
    )
    ranks, row = np.unique(rank, return_index=True)
    order = np.lexsort((pipeline_rank[row], replica[row]))
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
        np.zeros(len(second)) if within is None else within / PICOSECONDS_PER_SECOND,
        np.column_stack([line[reducing], start / PICOSECONDS_PER_SECOND, end / PICOSECONDS_PER_SECOND]),
        tuple(ranks[order].tolist()),
        tuple(replica[row][order].tolist()),
        tuple(pipeline_rank[row][order].tolist()),
        (source.alike if isinstance(source, Timeline) else 1,) * len(ranks),
        int(ops["chunk"].max(initial=0)) + 1,
    )


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
