"""Looped breadth-first (Lamy-Poirier, arXiv 2211.05953): all forwards chunk by chunk, then all backwards.

    rank 0   0F0 0F1 2F0 2F1 ··  ··  2B1 2B0 0B1 0B0
    rank 1   ··  1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0 ··         (p = v = m = 2; stage, F or B, micro-batch; F = B)

Chunk c of rank r is stage c·p + r, as in interleaved 1F1B. PyTorch runs the newest backward first (`lifo`, the
default); `fifo` runs the oldest first. Time mT + (p−1)T/v, memory m micro-batches. The ops of a chunk are contiguous,
which suits sharded weights and early gradient reduction.
"""

from __future__ import annotations

from typing import Annotated, Literal

from hybrid_des.options import Elsewhere, Options, choice
from hybrid_des.pipeline import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules import schedule


class LoopedBfs(Options):
    """Order of the backwards."""

    backward_order: Annotated[Literal["fifo", "lifo"], choice("fifo", "lifo"), Elsewhere("fifo")] = "lifo"
    """Order of the backwards: fifo runs the oldest micro-batch first, lifo the newest."""


@schedule(
    "looped-bfs",
    summary="all forwards chunk by chunk, then all backwards chunk by chunk",
    time="mT + (p−1)T/v",
    memory="m",
    source="arXiv 2211.05953; PyTorch",
    many_chunks=True,
    options=LoopedBfs,
    peak=lambda request, rank, options: request.microbatches,
)
def looped_breadth_first(request: PlanRequest, options: LoopedBfs) -> Plan:
    """Every rank runs the same program."""
    p, m, chunks = request.pipeline, request.microbatches, range(request.chunks)
    order = range(m) if options.backward_order == "fifo" else range(m - 1, -1, -1)
    forwards = [Op("F", i, chunk) for chunk in chunks for i in range(m)]
    backwards = [Op("B", i, chunk) for chunk in reversed(chunks) for i in order]
    return Plan.of([forwards + backwards] * p, [loop(p, request.chunks)], [0] * m)
