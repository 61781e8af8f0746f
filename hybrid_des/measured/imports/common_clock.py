"""How far the clocks of a pipeline's ranks differ: no op begins before one that it needs has ended.

What the ops of a fused pair give is sent after both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hybrid_des.interchange.profiles.durations import MISSING, Durations, Sizes, Times, durations_of
from hybrid_des.pipeline.plan import Plan
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 0.5  # of the median forward: what takes as long is no pause, and no difference between clocks


def spread_of(plan: Plan, sizes: Sizes, durations: Durations, table: pd.DataFrame) -> float:
    """The most seconds by which an op begins before one on another rank that it needs has ended; at least 0.

    Args:
        plan: the order of the measured run.
        sizes: its replicas, pipeline ranks, chunks and micro-batches.
        durations: those of its ops.
        table: the ops that it was read from, with their starts.
    """
    zero = table.groupby("step").start_s.transform("min")
    starts = durations_of(table.assign(seconds=table.start_s - zero), sizes, "").complete
    return max(0, _earliest(plan, starts, durations.complete)) / PICOSECONDS_PER_SECOND


def _earliest(plan: Plan, starts: Mapping[str, Times], lasts: Mapping[str, Times]) -> int:
    """The most picoseconds by which an op begins before one on another rank that it needs has ended."""
    worst = 0
    actions = [(rank, action) for rank, program in enumerate(plan.programs) for action in program]
    sent_after = {(rank, op): action[-1] for rank, action in actions for op in action}
    for rank, op in plan.ops():
        for of, needed in plan.needs(rank, op):
            if of == rank:
                continue
            last = sent_after[of, needed]
            begins, first = (
                starts[one.kind][:, :, at, one.chunk, one.microbatch] for at, one in ((rank, op), (of, last))
            )
            ends = first + lasts[last.kind][:, :, of, last.chunk, last.microbatch]
            known = (begins != MISSING) & (first != MISSING)
            worst = max(worst, int((ends - begins)[known].max(initial=0)))
    return worst
