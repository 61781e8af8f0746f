"""ZB-H2 (Qi et al., arXiv 2401.10241): twice the forwards ahead of ZB-H1, so that no rank waits once it has begun.

    rank 0   F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 ··        3 = 2p−1 forwards ahead
    rank 1   ·· F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3        1 ahead, a debt of 2 W's (F = I = W = 1)

Rank r runs 2(p−r)−1 forwards ahead; from its (2r+1)-th I on, each I is followed by the oldest W, then the next F; the
rest of the W's come at the end.
Span of the longest rank mT + (p−1)(F+B−2W) for m ≥ 2p and W ≤ F, B (B: the input part); memory 2p−1 micro-batches.
Ranks start and end staggered: where a barrier ends the step the pipeline's time counts, at F = B = W that of ZB-H1.
"""

from __future__ import annotations

from hybrid_des.pipeline.plan import Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules import schedule
from hybrid_des.pipeline.schedules.zb_h1 import deferred_weights


@schedule(
    "zb-h2",
    summary="ZB-H1 with twice the forwards ahead: no bubble within a rank's own span",
    time="span mT + (p−1)(F+B−2W), m ≥ 2p",
    memory="2p−1",
    source="arXiv 2401.10241",
    chunks=1,
    peak=lambda request, rank: min(request.microbatches, 2 * request.pipeline - 1),
)
def zero_bubble_h2(request: PlanRequest) -> Plan:
    """2(p−r)−1 forwards ahead, a debt of 2r W's on rank r."""
    p, m = request.pipeline, request.microbatches
    programs = [deferred_weights(m, ahead=2 * (p - rank) - 1, debt=2 * rank) for rank in range(p)]
    return Plan.of(programs, [loop(p, 1)], [0] * m)
