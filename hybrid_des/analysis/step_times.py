"""Times of a run as arrays: of its ops and steps, of the use of its links, and of the phases of its collectives."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.planning.program_table import Column, Columns
from hybrid_des.simulation.timeline import Timeline


@dataclass(frozen=True)
class StepTimes:
    """The times of a run in picoseconds.

    Attributes:
        asked, start, end: pipeline × step × op; ops are ordered by pipeline rank, then by program order.
        row: the row of each op in `Timeline.ops`.
        begin, sent, reduced, done: pipeline × step × pipeline rank; when a rank began the step, completed its last op
            including sends, completed its gradient reductions, and finished the step.
        optimizer: total optimizer time of all ranks and steps.
        rank_of_op: the pipeline rank of each op.
        first, last: for each pipeline rank with a program, its first and last index on the op axis.
    """

    asked: Column
    start: Column
    end: Column
    row: Column
    begin: Column
    sent: Column
    reduced: Column
    done: Column
    optimizer: int
    rank_of_op: Column
    first: Column
    last: Column

    @property
    def total(self) -> int:
        """Duration of the whole run, from the first begin to the last end."""
        return int(self.done.max()) - int(self.begin.min())

    def last_compute(self) -> Column:
        """End of each rank's last op per step, pipeline × step × pipeline rank; begin of the step if it has none."""
        last = self.begin.copy()
        last[..., self.rank_of_op[self.first]] = self.end[..., self.last]
        return last


def step_times(timeline: Timeline) -> StepTimes:
    """Arrange the rows of a timeline as arrays."""
    of_rank, pipeline_rank, pipeline = timeline.pipeline, timeline.pipeline_rank, timeline.programs.pipeline
    ops, steps = timeline.ops, timeline.steps
    sizes, firsts = timeline.programs.sizes, timeline.programs.first
    lasts = firsts + sizes
    size = int(of_rank[steps["rank"]].max()) + 1, int(steps["step"].max()) + 1

    def arranged(rows: Columns, names: Sequence[str], length: int, position: Column) -> dict[str, Column]:
        """Columns as arrays pipeline × step × place, each row at its own."""
        at = (of_rank[rows["rank"]] * size[1] + rows["step"]) * length + position
        return {name: _scattered(rows[name], at, (*size, length)) for name in names}

    optimizer = ops["index"] == OPTIMIZER
    row = np.flatnonzero(~optimizer)
    computed = {"row": row, **{name: column[row] for name, column in ops.items()}}
    position = firsts[pipeline_rank[computed["rank"]]] + computed["index"]
    of_steps = arranged(steps, ("begin", "sent", "reduced", "end"), pipeline, pipeline_rank[steps["rank"]])
    return StepTimes(
        **arranged(computed, ("asked", "start", "end", "row"), int(lasts[-1]), position),
        done=of_steps.pop("end"),
        **of_steps,
        optimizer=total((ops["end"] - ops["start"])[optimizer]),
        rank_of_op=timeline.programs.ops["rank"],
        first=firsts[sizes > 0],
        last=lasts[sizes > 0] - 1,
    )


def _scattered(column: Column, at: Column, shape: tuple[int, ...]) -> Column:
    scattered = np.empty(shape, dtype=np.int64)
    assert len(at) == scattered.size  # a run that has ended has a row for every place
    scattered.reshape(-1)[at] = column
    return scattered


def total(times: Column) -> int:
    """Sum exactly: upper and lower halves are summed separately, since the total may exceed 64 bits."""
    return (int((times >> 32).sum()) << 32) + int((times & 0xFFFFFFFF).sum())
