"""How far the clocks of a pipeline's ranks differ: no op begins before one that it needs has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hybrid_des.interchange.profiles.durations import MISSING, Times, durations_of
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

    from hybrid_des.studies.replay.measured import MeasuredRun


def spread_of(trace: MeasuredRun, table: pd.DataFrame) -> float:
    """The most seconds by which an op begins before one on another rank that it needs has ended; at least 0.

    Args:
        trace: the measured run.
        table: the ops that it was read from, with their starts.
    """
    zero = table.groupby("step").start_s.transform("min")
    starts = durations_of(table.assign(seconds=table.start_s - zero), trace.sizes, "").complete
    return max(0, _earliest(trace, starts, trace.durations.complete)) / PICOSECONDS_PER_SECOND


def _earliest(trace: MeasuredRun, starts: Mapping[str, Times], lasts: Mapping[str, Times]) -> int:
    """The most picoseconds by which an op begins before one on another rank that it needs has ended."""
    plan, edges, worst = trace.plan, trace.plan.edges, 0
    actions = [(rank, action) for rank, program in enumerate(plan.programs) for action in program]
    for consumer, producer in zip(edges.consumer.tolist(), edges.producer.tolist(), strict=True):
        (to, needing), (of, needed) = actions[consumer], actions[producer]
        if to == of:
            continue
        begins, first = (
            (starts[one.kind][:, :, rank, one.chunk, one.microbatch], one)
            for rank, one in ((to, needing[0]), (of, needed[0]))
        )
        ends = first[0] + lasts[first[1].kind][:, :, of, first[1].chunk, first[1].microbatch]
        known = (begins[0] != MISSING) & (first[0] != MISSING)
        worst = max(worst, int((ends - begins[0])[known].max(initial=0)))
    return worst
