"""V-Min (Qi et al., arXiv 2405.15362): a V of two chunks with split backwards, a third of the memory of 1F1B.

    rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 0I0 0W0 3I1 3W1 0F3 0I1 0W1 3F2 …
    rank 1   ··  1F0 2F0 1F1 2F1 2I0 1I0 2W0 1W0 1F2 2I1 1I1 2F2 2W1 1W1 …        (p = 2, m = 8, F = I = W)

Rank r holds stages r and 2p−1−r. A micro-batch has its F of chunk 0 and 1 and its I of chunk 1 and 0 at the slots
r, 2p−r−1, 2p+δ+r, 4p+δ−r−1, with δ = 2 if p is a multiple of 3, else 0; the next follows six slots later, and W's fill
the gaps. The remaining gaps are filled within the same memory (`fill_gaps`): the authors' code reorders warm-up and
cool-down only, and is not faster for any of p = 2 … 8, m = p, 2p, 4p and three sets of costs. Real times then follow
from the order. At F = I = W, p ≥ 3 and m > p the time is mT + (2p−5/2)T/3, or (2p−7/2)T/3 if 3 divides p (measured in
the simulation); with unequal times or message delays, ranks wait in every round. Memory ⌊(p+1)/3⌋+1 micro-batches.
"""

from fractions import Fraction

from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.pipeline.schedules.building_blocks import fill_gaps, repeat
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule


def _limit(pipeline: int) -> int:
    return (pipeline + 1) // 3 + 1


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT + (2p−5/2)T/3 at F = I = W and 3 ≤ p < m; (2p−7/2)T/3 if 3 divides p."""
    p, m = sizes.p, sizes.m
    if not sizes.equal or not 3 <= p < m:
        return None
    return (m + (2 * p - Fraction(5 if p % 3 else 7, 2)) / 3) * sizes.total


@schedule(
    "v-min",
    title="V-Min",
    summary="two chunks as a V, split backwards: a third of the memory of 1F1B",
    time="mT + (2p−5/2)T/3 at F = I = W",
    memory="⌊(p+1)/3⌋ + 1",
    source="arXiv 2405.15362",
    chunks=2,
    peak=lambda request, rank: min(request.microbatches, _limit(request.pipeline)),
    formula=_formula,
)
def v_min(request: PlanRequest) -> Plan:
    """Repeat the building block of minimal memory, and fill the gaps."""
    p = request.pipeline
    shift = 2 if p % 3 == 0 else 0
    whole = repeat(p, request.microbatches, lambda r: (r, 2 * p - r - 1, 2 * p + shift + r, 4 * p + shift - r - 1))
    return fill_gaps(whole, limit=2 * _limit(p))
