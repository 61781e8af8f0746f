"""What a Gantt chart shows, as arrays, from a run or from a timeline that somebody filtered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybrid_des.metrics import arrange, places
from hybrid_des.timeline import COMPUTE, NONE, OP_KINDS, op_rows
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from hybrid_des.simulate import Run

    Numbers = NDArray[np.int64]
    Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Bars:
    """Bars of a chart, times in seconds; a line is a rank, counted from the top.

    Attributes:
        line, kind, microbatch, chunk, start, end: one entry an op; `kind` counts `OP_KINDS`.
        waits: line, begin and end of each gradient reduction, one row each.
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
    """Ops, and from each rank's last compute to the end of its last reduction."""
    rows, times = op_rows(run), arrange(run)
    replica, place = places(run)
    steps = run.trace.steps.table()
    line, ranks = _lines(np.unique(rows.rank), replica, place)
    last = times.begin.copy()
    last[..., times.rank_of_op[times.first]] = times.end[..., times.last]
    owner = steps["rank"][np.lexsort((place[steps["rank"]], steps["step"], replica[steps["rank"]]))]
    waits = np.stack([last.ravel(), times.reduced.ravel()], axis=1) / PICOSECONDS_PER_SECOND
    waits = np.column_stack([line[owner], waits])
    return Bars(
        line[rows.rank],
        rows.kind,
        rows.microbatch,
        rows.chunk,
        rows.start / PICOSECONDS_PER_SECOND,
        rows.end / PICOSECONDS_PER_SECOND,
        waits[waits[:, 2] > waits[:, 1]],
        ranks,
        tuple(replica[list(ranks)].tolist()),
    )


def bars_of_table(table: pd.DataFrame) -> Bars:
    """Ops, and from the first to the last message of a collective that each rank sends in a step."""
    replica = np.zeros(int(table["rank"].max()) + 1 if len(table) else 0, dtype=np.int64)
    place = replica.copy()
    replica[table["rank"]] = table["replica"]
    place[table["rank"]] = table["pipeline_rank"]
    line, ranks = _lines(np.unique(table["rank"]), replica, place)
    ops = table[table["lane"] == COMPUTE]
    sent = table[(table["lane"] != COMPUTE) & ~table["kind"].isin(["activation", "gradient"])]
    waits = sent.groupby(["rank", "step"], as_index=False).agg(start=("start_s", "min"), end=("end_s", "max"))
    number = {kind: i for i, kind in enumerate(OP_KINDS)}
    return Bars(
        line[ops["rank"]],
        np.array([number[kind] for kind in ops["kind"]], dtype=np.int64),
        ops["microbatch"].fillna(NONE).to_numpy(dtype=np.int64),
        ops["chunk"].fillna(NONE).to_numpy(dtype=np.int64),
        ops["start_s"].to_numpy(),
        ops["end_s"].to_numpy(),
        np.column_stack([line[waits["rank"]], waits["start"], waits["end"]]).astype(float),
        ranks,
        tuple(replica[list(ranks)].tolist()),
    )


def _lines(ranks: Numbers, replica: Numbers, place: Numbers) -> tuple[Numbers, tuple[int, ...]]:
    """The line of each rank, and the ranks from the top: replica by replica, down the pipeline."""
    ordered = ranks[np.lexsort((place[ranks], replica[ranks]))]
    line = np.zeros(len(replica), dtype=np.int64)
    line[ordered] = np.arange(len(ordered))
    return line, tuple(ordered.tolist())
