"""ZB-H1 (Qi et al., arXiv 2401.10241): 1F1B with split backwards, whose weight part (W) is deferred into the bubble.

    rank 0   F0 F1 ·· I0 W0 F2 I1 W1 I2 W2        I: input gradient, W: weight gradient
    rank 1   ·· F0 I0 F1 I1 W0 F2 I2 W1 W2        (F = I = W = 1)

Rank r runs its first W right after its (r+1)-th I, then the oldest W after each I, so that r W's stay deferred until
the end. PyTorch and two other tools give the identical order.
Time mT + (p−1)(F+I−min(F,I,W)) for m ≥ p; memory on rank r: p−r micro-batches before their I
and r that wait for their W, at most p.
"""

from fractions import Fraction

from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT + (p−1)(F+I−min(F,I,W)) for m ≥ p."""
    times = sizes.forward, sizes.input, sizes.weight
    if sizes.m < sizes.p:
        return None
    return sizes.m * sizes.total + (sizes.p - 1) * (sizes.forward + sizes.input - min(times))


@schedule(
    "zb-h1",
    title="ZB-H1",
    summary="1F1B with weight gradients deferred into the bubble, at the memory of 1F1B",
    time="mT + (p−1)(F+I−min(F,I,W)), m ≥ p",
    memory="p",
    source="arXiv 2401.10241",
    chunks=1,
    peak=lambda request, rank: min(request.microbatches, request.pipeline),
    formula=_formula,
)
def zero_bubble_h1(request: PlanRequest) -> Plan:
    """Warm-up of p−r forwards and r deferred W's on rank r."""
    p, m = request.pipeline, request.microbatches
    return Plan.of(handcrafted(p, m, 1), [loop(p, 1)], [0] * m)


def handcrafted(pipeline: int, microbatches: int, factor: int) -> list[list[Op]]:
    """The programs of ZB-H1 (factor 1) and ZB-H2 (factor 2)."""
    warmups = [factor * (pipeline - rank - 1) + 1 for rank in range(pipeline)]
    return [_deferred_weights(microbatches, warmup, factor * rank) for rank, warmup in enumerate(warmups)]


def _deferred_weights(microbatches: int, warmup: int, deferred: int) -> list[Op]:
    """A warm-up of forwards, then I, W and F in turn; W's start once `deferred` of them are waiting, oldest first."""
    program = [Op("F", i) for i in range(min(warmup, microbatches))]
    for i in range(microbatches):
        program.append(Op("I", i))
        if i >= deferred:
            program.append(Op("W", i - deferred))
        if i + warmup < microbatches:
            program.append(Op("F", i + warmup))
    return program + [Op("W", i) for i in range(max(0, microbatches - deferred), microbatches)]
