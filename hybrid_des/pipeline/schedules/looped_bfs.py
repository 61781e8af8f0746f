"""Looped breadth-first (Lamy-Poirier, arXiv 2211.05953): all forwards chunk by chunk, then all backwards.

    rank 0   0F0 0F1 2F0 2F1 ··  ··  2B1 2B0 0B1 0B0
    rank 1   ··  1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0 ··         (p = v = m = 2; stage, F or B, micro-batch; F = B)

Chunk c of rank r is stage c·p + r, as in interleaved 1F1B. PyTorch runs the newest backward first (`lifo`, the
default); `fifo` runs the oldest first. Time mT + (p−1)T/v, memory m micro-batches. The ops of a chunk are contiguous,
which suits sharded weights and early gradient reduction.
"""

from fractions import Fraction
from typing import Annotated, Literal

from hybrid_des.options import Elsewhere, Options, choice
from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule

BackwardOrder = Annotated[Literal["fifo", "lifo"], choice("fifo", "lifo"), Elsewhere("fifo")]


class LoopedBfs(Options):
    """Order of the backwards."""

    backward_order: BackwardOrder = "lifo"
    """Order of the backwards: fifo runs the oldest micro-batch first, lifo the newest."""


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT + (p−1)T/v, if no chunk waits for the one before it (m ≥ p)."""
    if sizes.m < sizes.p:
        return None
    return (sizes.m + Fraction(sizes.p - 1, sizes.v)) * sizes.total


@schedule(
    "looped-bfs",
    title="looped BFS",
    summary="all forwards chunk by chunk, then all backwards chunk by chunk",
    time="mT + (p−1)T/v",
    memory="m",
    source="arXiv 2211.05953; PyTorch",
    many_chunks=True,
    options=LoopedBfs,
    peak=lambda request, rank, options: request.microbatches,
    formula=_formula,
)
def looped_breadth_first(request: PlanRequest, options: LoopedBfs) -> Plan:
    """All chunks in turn."""
    return breadth_first(request.pipeline, request.microbatches, request.chunks, options.backward_order)


def breadth_first(pipeline: int, microbatches: int, chunks: int, backward_order: str) -> Plan:
    """Every rank runs the same program: each chunk's forwards, then from the last chunk each one's backwards."""
    order = range(microbatches) if backward_order == "fifo" else range(microbatches - 1, -1, -1)
    forwards = [Op("F", i, chunk) for chunk in range(chunks) for i in range(microbatches)]
    backwards = [Op("B", i, chunk) for chunk in reversed(range(chunks)) for i in order]
    return Plan.of([forwards + backwards] * pipeline, [loop(pipeline, chunks)], [0] * microbatches)
