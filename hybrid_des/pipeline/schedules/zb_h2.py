"""ZB-H2 (Qi et al., arXiv 2401.10241): twice the warm-up of ZB-H1, so that no rank idles within its span.

    rank 0   F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 ··        warm-up 3 = 2p−1 forwards
    rank 1   ·· F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3        warm-up 1, 2 deferred W's (F = I = W = 1)

Rank r has a warm-up of 2(p−r)−1 forwards; from its (2r+1)-th I on, each I is followed by the oldest W, then the next F;
the remaining W's run at the end. Span of the longest rank mT + (p−1)(F+I−2W) for m ≥ 2p and W ≤ F, I;
memory 2p−1 micro-batches. Ranks start and end staggered, so with a barrier at the end of the step the time of
the whole pipeline counts: at F = I = W that of ZB-H1.
"""

from fractions import Fraction

from hybrid_des.pipeline.plan import Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule
from hybrid_des.pipeline.schedules.zb_h1 import handcrafted


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT + (p−1)(F+I−2W) for m ≥ 2p and W ≤ F, I: the longest span of a rank."""
    if sizes.m < 2 * sizes.p or sizes.weight > min(sizes.forward, sizes.input):
        return None
    return sizes.m * sizes.total + (sizes.p - 1) * (sizes.forward + sizes.input - 2 * sizes.weight)


@schedule(
    "zb-h2",
    title="ZB-H2",
    summary="ZB-H1 with twice the warm-up: no bubble within a rank's span",
    time="span mT + (p−1)(F+I−2W), m ≥ 2p, W ≤ F and I",
    memory="2p−1",
    source="arXiv 2401.10241",
    chunks=1,
    peak=lambda request, rank: min(request.microbatches, 2 * request.pipeline - 1),
    formula=_formula,
    span=True,
)
def zero_bubble_h2(request: PlanRequest) -> Plan:
    """Warm-up of 2(p−r)−1 forwards and 2r deferred W's on rank r."""
    p, m = request.pipeline, request.microbatches
    return Plan.of(handcrafted(p, m, 2), [loop(p, 1)], [0] * m)
