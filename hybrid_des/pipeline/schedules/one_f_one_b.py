"""1F1B (PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2007.01045): alternating forwards and backwards.

    rank 0   F0 F1 ·· B0 F2 B1 ·· B2
    rank 1   ·· F0 B0 F1 B1 F2 B2 ··        (F = B = 1)

Rank r has a warm-up of p−1−r forwards, a steady state that alternates forwards and backwards, and a cool-down with the
remaining backwards.
Time (m+p−1)(F+B) as in GPipe, memory min(m, p−r) micro-batches. With `pairs`, a pair of the steady state is one op:
neither of its halves waits for the other, so that rank r needs a warm-up of 2(p−1−r) + 1.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain
from typing import Annotated

from hybrid_des.options import Elsewhere, Flag, Options
from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule


class InPairs(Options):
    """Pairs of the steady state."""

    pairs: Annotated[Flag, Elsewhere(False)] = False
    """Whether a forward and a backward of the steady state run as one op, after a longer warm-up (Megatron-LM's
    combined 1F1B), so that exchanges of the one run beside computation of the other (`experts.streams`)."""


IN_TURN = InPairs()


def fill_and_drain(sizes: UniformSizes) -> Fraction | None:
    """(m+p−1)T."""
    return (sizes.m + sizes.p - 1) * sizes.total


@schedule(
    "1f1b",
    title="1F1B",
    summary="alternating forwards and backwards after a warm-up of p−1−r forwards",
    time="(m+p−1)T",
    memory="min(m, p−r)",
    source="arXiv 2006.09503, 2007.01045",
    chunks=1,
    options=InPairs,
    peak=lambda request, rank, options: min(
        request.microbatches, request.pipeline - rank + (request.pipeline - rank) * options.pairs
    ),
    formula=fill_and_drain,
)
def one_forward_one_backward(request: PlanRequest, options: InPairs = IN_TURN) -> Plan:
    """Warm-up p−1−r on rank r; 2(p−1−r) + 1 where pairs are one op."""
    if options.pairs:
        return alternating(request, lambda rank: 2 * (request.pipeline - 1 - rank) + 1, pairs=True)
    return alternating(request, lambda rank: request.pipeline - 1 - rank)


def alternating(request: PlanRequest, warmup: Callable[[int], int], *, pairs: bool = False) -> Plan:
    """Forwards and backwards of one chunk in turn, after a warm-up that depends on the rank."""
    p, m = request.pipeline, request.microbatches
    forwards, backwards = [Op("F", i) for i in range(m)], [Op("B", i) for i in range(m)]
    programs = [in_turn(forwards, backwards, warmup(rank), pairs=pairs) for rank in range(p)]
    return Plan.of(programs, [loop(p, 1)], [0] * m)


def in_turn(
    forwards: Sequence[Op], backwards: Sequence[Op], warmup: int, *, pairs: bool = False
) -> list[Op | tuple[Op, Op]]:
    """A warm-up of forwards, then a forward and a backward in turn, or as one op, then the remaining backwards."""
    warmup = min(warmup, len(forwards))
    steady = list(zip(forwards[warmup:], backwards, strict=False))
    return [*forwards[:warmup], *(steady if pairs else chain.from_iterable(steady)), *backwards[len(steady) :]]
