"""1F1B (PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2007.01045): alternating forwards and backwards.

    rank 0   F0 F1 ·· B0 F2 B1 ·· B2
    rank 1   ·· F0 B0 F1 B1 F2 B2 ··        (F = B = 1)

Rank r has a warm-up of p−1−r forwards, a steady state that alternates forwards and backwards, and a cool-down with the
remaining backwards.
Time (m+p−1)(F+B) as in GPipe, memory min(m, p−r) micro-batches.
"""

from collections.abc import Callable, Sequence
from itertools import chain

from hybrid_des.pipeline import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules import schedule


@schedule(
    "1f1b",
    summary="alternating forwards and backwards after a warm-up of p−1−r forwards",
    time="(m+p−1)T",
    memory="min(m, p−r)",
    source="arXiv 2006.09503, 2007.01045",
    chunks=1,
    peak=lambda request, rank: min(request.microbatches, request.pipeline - rank),
)
def one_forward_one_backward(request: PlanRequest) -> Plan:
    """Warm-up p−1−r on rank r."""
    return alternating(request, lambda rank: request.pipeline - 1 - rank)


def alternating(request: PlanRequest, warmup: Callable[[int], int]) -> Plan:
    """Forwards and backwards of one chunk in turn, after a warm-up that depends on the rank."""
    p, m = request.pipeline, request.microbatches
    forwards, backwards = [Op("F", i) for i in range(m)], [Op("B", i) for i in range(m)]
    return Plan.of([in_turn(forwards, backwards, warmup(rank)) for rank in range(p)], [loop(p, 1)], [0] * m)


def in_turn(forwards: Sequence[Op], backwards: Sequence[Op], warmup: int) -> list[Op]:
    """A warm-up of forwards, then pairs of a forward and a backward, then the remaining backwards."""
    warmup = min(warmup, len(forwards))
    pairs = zip(forwards[warmup:], backwards, strict=False)
    return [*forwards[:warmup], *chain.from_iterable(pairs), *backwards[len(forwards) - warmup :]]
