"""Eager 1F1B (Zhuang et al., arXiv 2211.05322): 1F1B with twice the warm-up, to hide communication.

    rank 0   F0 F1 F2 ·· ·· B0 F3 B1 ·· B2 ·· B3
    rank 1   ·· ·· F0 B0 F1 B1 F2 B2 F3 B3 ·· ··        (F = B = 1, a message takes 1)

The warm-up of rank r is 2(p−1−r) forwards instead of p−1−r, which gives a message the time of one forward and one
backward to arrive. Time (m+p−1)(F+B), even with moderate delays between ranks; memory min(m, 2(p−1−r)+1) micro-batches.
"""

from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.pipeline.schedules.one_f_one_b import alternating, fill_and_drain
from hybrid_des.pipeline.schedules.registration import schedule


@schedule(
    "eager-1f1b",
    title="eager 1F1B",
    summary="1F1B with a warm-up of 2(p−1−r) forwards, to hide communication",
    time="(m+p−1)T",
    memory="min(m, 2(p−1−r)+1)",
    source="arXiv 2211.05322",
    chunks=1,
    peak=lambda request, rank: min(request.microbatches, 2 * (request.pipeline - 1 - rank) + 1),
    formula=fill_and_drain,
)
def eager(request: PlanRequest) -> Plan:
    """Warm-up 2(p−1−r) on rank r."""
    return alternating(request, lambda rank: 2 * (request.pipeline - 1 - rank))
