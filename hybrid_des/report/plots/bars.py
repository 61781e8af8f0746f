"""What a Gantt chart shows, as arrays, from a run or from a timeline that somebody filtered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybrid_des.analysis.metrics import arrange, places
from hybrid_des.analysis.timeline import COMPUTE, NONE, OP_KINDS, op_rows
from hybrid_des.network.purpose import ACTIVATION, GRADIENT, REDUCTION
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from hybrid_des.simulation.run import Run

    Numbers = NDArray[np.int64]
    Seconds = NDArray[np.float64]


SENT = ("asked_s", "end_s")  # what a sender sees of its message
FINEST = 1000  # reductions less than a thousandth of the run apart are drawn as one


@dataclass(frozen=True)
class Bars:
    """Bars of a chart, times in seconds; a line is a rank, counted from the top.

    Attributes:
        line, kind, microbatch, chunk, start, end: one entry an op; `kind` counts `OP_KINDS`.
        waits: line, begin and end of each time in which gradients are reduced, one row each.
        ranks, replicas: the rank on each line, and its replica.
    """

    line: Numbers
    kind: Numbers
    microbatch: Numbers
    chunk: Numbers
    start: Seconds
    end: Seconds
    waits: Seconds
    ranks: tuple[int, ...]
    replicas: tuple[int, ...]

    @property
    def last(self) -> float:
        """When everything is over."""
        return max(float(self.end.max(initial=0.0)), float(self.waits[:, 2].max(initial=0.0)))


def bars_of_run(run: Run) -> Bars:
    """Ops, and when a rank sends gradients of a collective, or waits for the last of them."""
    rows = op_rows(run)
    replica, place = places(run)
    line, ranks = _lines(np.unique(rows.rank), replica, place)
    rank, start, end = _merge(*_reducing(run, replica, place), gap=run.duration // FINEST)
    waits = np.column_stack([line[rank], start / PICOSECONDS_PER_SECOND, end / PICOSECONDS_PER_SECOND])
    return Bars(
        line[rows.rank],
        rows.kind,
        rows.microbatch,
        rows.chunk,
        rows.start / PICOSECONDS_PER_SECOND,
        rows.end / PICOSECONDS_PER_SECOND,
        waits,
        ranks,
        tuple(replica[list(ranks)].tolist()),
    )


def bars_of_table(table: pd.DataFrame) -> Bars:
    """Ops, and when a rank sends gradients of a collective."""
    table = table[table["replica"].notna()]  # those who only serve have no line
    replica = np.zeros(int(table["rank"].max()) + 1 if len(table) else 0, dtype=np.int64)
    place = replica.copy()
    replica[table["rank"]] = table["replica"]
    place[table["rank"]] = table["pipeline_rank"]
    line, ranks = _lines(np.unique(table["rank"]), replica, place)
    ops = table[table["lane"] == COMPUTE]
    sent = table[
        (table["lane"] != COMPUTE) & ~table["kind"].isin([ACTIVATION.name, GRADIENT.name]) & (table["hop"] == 0)
    ]
    asked, done = (np.rint(sent[name].to_numpy() * PICOSECONDS_PER_SECOND).astype(np.int64) for name in SENT)
    whole = int(PICOSECONDS_PER_SECOND * table["end_s"].max()) if len(table) else 0
    rank, start, end = _merge(sent["rank"].to_numpy(), asked, done, gap=whole // FINEST)
    number = {kind: i for i, kind in enumerate(OP_KINDS)}
    return Bars(
        line[ops["rank"]],
        np.array([number[kind] for kind in ops["kind"]], dtype=np.int64),
        ops["microbatch"].fillna(NONE).to_numpy(dtype=np.int64),
        ops["chunk"].fillna(NONE).to_numpy(dtype=np.int64),
        ops["start_s"].to_numpy(),
        ops["end_s"].to_numpy(),
        np.column_stack([line[rank], start / PICOSECONDS_PER_SECOND, end / PICOSECONDS_PER_SECOND]),
        ranks,
        tuple(replica[list(ranks)].tolist()),
    )


def _reducing(run: Run, replica: Numbers, place: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Rank, begin and end of every collective's message on its first link, and of what a rank waits for at the end."""
    times, steps = arrange(run), run.trace.steps.table()
    last = times.begin.copy()
    last[..., times.rank_of_op[times.first]] = times.end[..., times.last]
    rank = steps["rank"][np.lexsort((place[steps["rank"]], steps["step"], replica[steps["rank"]]))]
    start, end = last.ravel(), times.reduced.ravel()
    if run.trace.messages is not None and run.trace.channels:
        table, channels = run.trace.messages.table(), run.trace.channels
        first = np.array([c.hop == 0 and c.purpose is REDUCTION for c in channels])
        mine = first[table["channel"]]
        mine &= np.array([c.sender < run.scenario.parallel.ranks for c in channels])[
            table["channel"]
        ]  # servers have no line
        sender = np.array([c.sender for c in channels])[table["channel"][mine]]
        rank = np.concatenate([rank, sender])
        start, end = (np.concatenate([a, table[name][mine]]) for a, name in ((start, "asked"), (end, "end")))
    real = end > start
    return rank[real], start[real], end[real]


def _merge(rank: Numbers, start: Numbers, end: Numbers, gap: int) -> tuple[Numbers, Numbers, Numbers]:
    """Join the times of a rank that overlap, or are less than `gap` apart."""
    order = np.lexsort((start, rank))
    pieces = np.split(order, np.flatnonzero(np.diff(rank[order])) + 1) if len(order) else []
    merged: list[tuple[Numbers, Numbers, Numbers]] = []
    for piece in pieces:
        until = np.maximum.accumulate(end[piece])
        first = np.append(True, start[piece][1:] > until[:-1] + gap)
        final = np.append(first[1:], True)
        merged.append((rank[piece][first], start[piece][first], until[final]))
    if not merged:
        return rank, start, end
    one, two, three = (np.concatenate(column) for column in zip(*merged, strict=True))
    return one, two, three


def _lines(ranks: Numbers, replica: Numbers, place: Numbers) -> tuple[Numbers, tuple[int, ...]]:
    """The line of each rank, and the ranks from the top: replica by replica, down the pipeline."""
    ordered = ranks[np.lexsort((place[ranks], replica[ranks]))]
    line = np.zeros(len(replica), dtype=np.int64)
    line[ordered] = np.arange(len(ordered))
    return line, tuple(ordered.tolist())
