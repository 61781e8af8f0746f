"""DualPipeV (DualPipe repository): DualPipe cut in half and folded, with one copy of the model.

    rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3+3B1 3F2+0B0 3B2 3F3+0B1 3B3 0I2 0W2 0I3 0W3
    rank 1   1F0 2F0 1F1 2F1 1F2 2B0 2F2+1B0 1F3+2B1 2F3+1B1 2B2 1B2 2I3 1I3 2W3 1W3        (p = 2, m = 4)

Rank r holds stages r and 2p−1−r, a V; the two halves of the V take the role of DualPipe's two directions, in the same
eight phases. At F = I = W the time is mT + (p−1)T/3, with no short formula for other times; memory p + 1/2
micro-batches. m must be at least 2p. Uninterruptible pairs are slower than separate ops unless overlap shortens them
(`fused_time` < 1).
"""

from fractions import Fraction

from hybrid_des.errors import Refusal
from hybrid_des.pipeline.plan import Plan, PlanRequest, wave
from hybrid_des.pipeline.schedules.dualpipe import Pairs, eight_phases
from hybrid_des.pipeline.schedules.patterns import Writer
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT + (p−1)T/3 at F = I = W."""
    return (sizes.m + Fraction(sizes.p - 1, 3)) * sizes.total if sizes.equal else None


@schedule(
    "dualpipe-v",
    title="DualPipe-V",
    summary="DualPipe folded into a V of two chunks: one copy of the weights",
    time="mT + (p−1)T/3 at F = I = W, m ≥ 2p",
    memory="p + 1/2",
    source="github.com/deepseek-ai/DualPipe",
    chunks=2,
    options=Pairs,
    peak=lambda request, rank, options: request.pipeline + Fraction(1, 2),
    formula=_formula,
)
def dualpipe_v(request: PlanRequest, options: Pairs) -> Plan:
    """Eight phases over all ranks.

    Raises:
        Refusal: m is less than 2p.
    """
    p, m = request.pipeline, request.microbatches
    if m < 2 * p:
        raise Refusal(f"dualpipe-v needs at least 2·pipeline = {2 * p} micro-batches, not {m}")
    programs = [eight_phases(Writer(fused=options.fused), p, rank, m) for rank in range(p)]
    return Plan.of(programs, [wave(p, 2)], [0] * m, options.fused_time)
