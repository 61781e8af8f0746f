"""Automatic zero-bubble scheduling, ZB-1p and ZB-2p (Qi et al., arXiv 2401.10241): a search within a memory limit.

    limit p    rank 0   F0 F1 ·· I0 W0 F2 I1 W1 F3 I2 W2 I3 W3         as good as ZB-H1 in time
               rank 1   ·· F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
    limit 2p   rank 0   F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 ··         no bubble within a rank's span
               rank 1   ·· F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3         (p = 2, m = 4, F = I = W)

Candidates are ZB-H1 and ZB-H2, if within the limit, and greedy orders built with the request's own times; the best is
taken. With a limit of at least 2p−1 micro-batches, for which a rank need not idle within its span, the best is the one
with the shortest span, otherwise the one with the shortest time.

Greedily, a free rank runs an input gradient if one is ready, else a forward if one is ready and memory allows, else its
oldest weight gradient, unless the next op is ready soon. The number of forwards before the first input gradient and the
meaning of `soon` are varied. For the limit, as for the reported peaks, a micro-batch counts 1 until its I is done, then
the request's weight share until its W is done. The paper's tables give (cost − mT)/cost, where cost is the longest
span; on its Table 5 this search is within 0.002 of the published ZB-2p and equals ZB-1p. Work is bounded: up to 48
orders, fewer for large plans, each linear in the ops.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Annotated

from hybrid_des.errors import Refusal
from hybrid_des.options import Elsewhere, Limit, OfRanks, Options
from hybrid_des.pipeline import Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules import schedule
from hybrid_des.pipeline.schedules.greedy import ActivationLimit, OpTimes, Programs, Walk, evaluate
from hybrid_des.pipeline.schedules.zb_h1 import handcrafted

WARMUP = (16, 8, 12, 14, 15, None)  # forwards on rank r, in eighths of p−r; None: no limit
SOON = (2, 0, 4, 1, 3, 5, 6, 8)  # gaps shorter than this many eighths of W are left idle
FEWEST_WALKS, STEPS = 6, 400_000  # the search stops after this many orders or ops, whichever is more


class ZbAuto(Options):
    """Memory limit of the search."""

    max_activations: Annotated[Limit, OfRanks("2p"), Elsewhere("2p")] = None
    """Most micro-batches in flight; a number, or a multiple of the pipeline size such as 2p (the default)."""


def _limit(request: PlanRequest, options: ZbAuto) -> Fraction:
    return 2 * Fraction(request.pipeline) if options.max_activations is None else options.max_activations


def _peak(request: PlanRequest, rank: int, options: ZbAuto) -> Fraction | int:
    return min(Fraction(request.microbatches), _limit(request, options))


@schedule(
    "zb-auto",
    summary="search for the best order with split backwards within an activation limit",
    time="limit p: as zb-h1 or less; limit 2p: span close to mT",
    memory="max_activations",
    source="arXiv 2401.10241, ZB-1p and ZB-2p",
    chunks=1,
    options=ZbAuto,
    peak=_peak,
)
def zero_bubble_automatic(request: PlanRequest, options: ZbAuto) -> Plan:
    """The best order found; without times in the request, F = I = W and free sends.

    Raises:
        Refusal: not even one micro-batch fits.
    """
    p, m, limit = request.pipeline, request.microbatches, _limit(request, options)
    if limit < 1:
        raise Refusal(f"zb-auto needs memory for one micro-batch: max_activations must be at least 1, not {limit}")
    costs = OpTimes.of(request)
    by_span = limit >= 2 * p - 1
    best: Programs = []
    shortest: tuple[int, int] | None = None
    for programs in _candidates(costs, m, ActivationLimit.of(request, limit)):
        span, time = evaluate(costs, programs)
        score = (span, time) if by_span else (time, span)
        if shortest is None or score < shortest:
            best, shortest = programs, score
    return Plan.of(best, [loop(p, 1)], [0] * m)


def _candidates(costs: OpTimes, microbatches: int, limit: ActivationLimit) -> Iterator[Programs]:
    """Orders within the limit: the handcrafted ones, then greedy ones."""
    p = len(costs.length["F"])
    for factor in (1, 2):  # ZB-H1, ZB-H2
        programs = handcrafted(p, microbatches, factor)
        if limit.allows(programs):
            yield programs
    choices = ((warmup, soon) for soon in SOON for warmup in WARMUP)
    for warmup, soon in islice(choices, max(FEWEST_WALKS, STEPS // (3 * p * microbatches))):
        warmups = [microbatches if warmup is None else -(-warmup * (p - rank) // 8) for rank in range(p)]
        yield Walk(costs, microbatches, limit, warmups, soon).programs
