"""Chimera (Li and Hoefler, SC'21, arXiv 2107.06925): two copies of the model, half the micro-batches run each way.

    rank 0   0F0 0F1 ··  3F2 3B2 3F3 3B3 0B0 ··  0B1
    rank 1   ··  1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1 ··
    rank 2   ··  1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3 ··
    rank 3   0F2 0F3 ··  3F0 3B0 3F1 3B1 0B2 ··  0B3        (p = m = 4; stage, F or B, micro-batch; F = B)

Rank r holds stage r of the down copy and stage p−1−r of the up copy; the copies' gradients are summed at the end. The
order is fixed on a grid of slots with F = B = 1. In a unit of p micro-batches, half run down, micro-batch i of them
with its F on stage s at slot s+2i and its B at 2p−1−s+2i; the other half mirror them. Units are 2p slots apart, and the
last may be smaller. Times then follow from the order and the real costs.
With m = p and I+W = 2F the efficiency is 1 − (p−2)/(1.5m+p−2). Memory p/2+1 … p micro-batches, two copies of the
weights.
"""

from fractions import Fraction

from hybrid_des.errors import Refusal
from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, two_way
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule
from hybrid_des.pipeline.schedules.time_slots import Slots


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT divided by the efficiency 1 − (p−2)/(1.5m+p−2), at m = p and I+W = 2F."""
    p, m = sizes.p, sizes.m
    if m != p or sizes.input + sizes.weight != 2 * sizes.forward:
        return None
    return m * sizes.total / (1 - (p - 2) / (Fraction(3, 2) * m + p - 2))


@schedule(
    "chimera",
    title="Chimera",
    summary="two copies of the model, half the micro-batches run from each end",
    time="efficiency 1 − (p−2)/(1.5m+p−2) at m = p, I+W = 2F",
    memory="p/2+1 … p, two copies of the weights",
    source="arXiv 2107.06925",
    chunks=1,
    peak=lambda request, rank: min(request.microbatches, request.pipeline),
    formula=_formula,
)
def chimera(request: PlanRequest) -> Plan:
    """Units of p micro-batches on the grid.

    Raises:
        Refusal: p is odd.
    """
    p, m = request.pipeline, request.microbatches
    if p % 2:
        raise Refusal(f"chimera pairs rank r with rank p−1−r: pipeline must be even, not {p}")
    path_of: list[int] = []
    grid = [Slots() for _ in range(p)]
    for unit, first in enumerate(range(0, m, p)):
        size = min(p, m - first)
        down = (size + 1) // 2
        for slot in range(size):
            way, turn = divmod(slot, down)
            start = 2 * (p * unit + turn)
            for stage in range(p):
                row = grid[stage if way == 0 else p - 1 - stage]
                row.put(start + stage, Op("F", first + slot, way))
                row.put(start + 2 * p - 1 - stage, Op("B", first + slot, way))
            path_of.append(way)
    return Plan.of([row.program for row in grid], two_way(p), path_of)
