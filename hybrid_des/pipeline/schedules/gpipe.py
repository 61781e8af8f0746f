"""GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards.

    rank 0   F0 F1 F2 ·· ·· ·· B0 B1 B2
    rank 1   ·· F0 F1 F2 B0 B1 B2 ·· ··        (F = B = 1)

Time (m+p−1)(F+B), memory m micro-batches on every rank. `backward_order: lifo` takes the newest first, as GPipe's
paper does; fifo the oldest, as PyTorch does.
"""

from __future__ import annotations

from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules import schedule


@schedule(
    "gpipe",
    summary="all forwards, then all backwards",
    time="(m+p−1)T",
    memory="m",
    source="arXiv 1811.06965",
    chunks=1,
    options=("backward_order",),
    backward_order="fifo",
    peak=lambda request, rank: request.microbatches,
)
def gpipe(request: PlanRequest) -> Plan:
    """Every rank runs the same program."""
    microbatches = range(request.microbatches)
    backwards = reversed(microbatches) if request.backward_order == "lifo" else microbatches
    program = [Op("F", i) for i in microbatches] + [Op("B", i) for i in backwards]
    return Plan.of([program] * request.pipeline, [loop(request.pipeline, 1)], [0] * request.microbatches)
