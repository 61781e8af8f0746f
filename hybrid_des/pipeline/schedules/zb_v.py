"""ZB-V (Qi et al., arXiv 2405.15362; PyTorch's ScheduleZBVZeroBubble): a V of two chunks, split backwards, no bubble.

    rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 …
    rank 1   ··  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 …        (p = 2, m = 4, F = I = W)

Rank r holds stages r and 2p−1−r, so the first and last stage are both on rank 0. The order is PyTorch's, in five parts:

    1  2(p−r)−1 forwards of chunk 0
    2  r times a forward of chunk 1, a forward of chunk 0
    3  p−r times F I W of chunk 1
    4  until all forwards are done: F of chunk 0 (if any is left), I W of chunk 0, F I W of chunk 1
    5  r times I of chunk 0, I of chunk 1; p−r times I W of chunk 0; the remaining W's, chunk 1 first

Span of the longest rank mT at F = I = W and m ≥ 2p; memory p micro-batches. For fewer than 2p−1 micro-batches, as in
PyTorch, the order for 2p−1 is used without the ops of the missing ones, which wastes time. The authors' own scheduler
is a search with the real times; in the reference table (`zb_v_sail`) this order takes up to 12.4 % more time than the
search if m < 2p−1, and at most 1.2 % more if m ≥ 2p. It is kept because it is the order that PyTorch runs.
"""

from fractions import Fraction

from hybrid_des.pipeline.plan import Action, Plan, PlanRequest, wave
from hybrid_des.pipeline.schedules.patterns import Writer
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT at F = I = W and m ≥ 2p: the longest span of a rank."""
    return sizes.m * sizes.total if sizes.equal and sizes.m >= 2 * sizes.p else None


@schedule(
    "zb-v",
    title="ZB-V",
    summary="two chunks as a V, split backwards: no bubble within a rank's span at the memory of 1F1B",
    time="span mT at F = I = W, m ≥ 2p",
    memory="p",
    source="arXiv 2405.15362; PyTorch",
    chunks=2,
    peak=lambda request, rank: min(request.microbatches, request.pipeline),
    formula=_formula,
    span=True,
)
def zero_bubble_v(request: PlanRequest) -> Plan:
    """Five parts on every rank."""
    p, m = request.pipeline, request.microbatches
    whole = [_program(p, max(m, 2 * p - 1), rank) for rank in range(p)]
    programs = [[action for action in program if action[0].microbatch < m] for program in whole]
    return Plan.of(programs, [wave(p, 2)], [0] * m)


def _program(pipeline: int, microbatches: int, rank: int) -> list[Action]:
    writer = Writer()
    later = pipeline - rank
    writer.write("F0", 2 * later - 1)
    writer.write("F1 F0", rank)
    writer.write("F1 I1 W1", later)
    while writer.forwards(1) < microbatches:
        if writer.forwards(0) < microbatches:
            writer.write("F0")
        writer.write("I0 W0 F1 I1 W1")
    writer.write("I0 I1", rank)
    writer.write("I0 W0", later)
    writer.write("W1", writer.deferred(1))
    writer.write("W0", writer.deferred(0))
    return writer.program
