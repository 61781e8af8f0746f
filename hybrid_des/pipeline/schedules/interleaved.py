"""Interleaved 1F1B (Narayanan et al., arXiv 2104.04473): v chunks per rank, assigned round-robin.

    rank 0   0F0 0F1 2F0 2F1 ··  2B0 ··  2B1 0B0 0B1
    rank 1   ··  1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 ··        (p = v = m = 2, stage F or B micro-batch, F = B)

Chunk c of rank r is stage c·p + r. Forwards run in rounds of g micro-batches: chunk 0 for all g, then chunk 1 …;
backwards likewise from the last chunk. Rank r has a warm-up of 2(p−1−r) + (v−1)g forwards, a steady state of pairs and
a cool-down. Time mT + (p−1)T/v; memory p + (p−1)/v on rank 0, at most (2(p−1−r) + (v−1)g + 1)/v on rank r; v times the
messages.

The length g of a round: the paper uses g = p and requires m to be a multiple of p. PyTorch makes max(1, m // p) rounds
of equal length. Megatron allows any g from p to m whose last round is empty or has at least p micro-batches. Together
they cover every m: fewer than p (PyTorch), multiples of p (all three), others (PyTorch, else Megatron).
"""

from fractions import Fraction

from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules.one_f_one_b import IN_TURN, InPairs, in_turn
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule


def _peak(request: PlanRequest, rank: int, options: InPairs) -> Fraction:
    p, m, v = request.pipeline, request.microbatches, request.chunks
    return Fraction(min(m * v, 2 * (p - 1 - rank) + (v - 1) * round_length(p, m) + 1 + options.pairs), v)


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT + (p−1)T/v; the paper's rounds need a multiple of p micro-batches."""
    if sizes.m % sizes.p:
        return None
    return (sizes.m + Fraction(sizes.p - 1, sizes.v)) * sizes.total


@schedule(
    "interleaved-1f1b",
    title="interleaved 1F1B",
    summary="1F1B with v chunks per rank, assigned round-robin: 1/v of the bubble, v times the messages",
    time="mT + (p−1)T/v",
    memory="p + (p−1)/v on rank 0",
    source="arXiv 2104.04473; PyTorch, Megatron-LM",
    many_chunks=True,
    options=InPairs,
    peak=_peak,
    formula=_formula,
)
def interleaved(request: PlanRequest, options: InPairs = IN_TURN) -> Plan:
    """Warm-up 2(p−1−r) + (v−1)g chunk forwards on rank r, and one more where pairs are one op."""
    p, m, v = request.pipeline, request.microbatches, request.chunks
    length = round_length(p, m)
    rounds = [range(first, min(first + length, m)) for first in range(0, m, length)]
    forwards = [Op("F", i, chunk) for turn in rounds for chunk in range(v) for i in turn]
    backwards = [Op("B", i, chunk) for turn in rounds for chunk in reversed(range(v)) for i in turn]
    warmups = [2 * (p - 1 - rank) + (v - 1) * length + options.pairs for rank in range(p)]
    programs = [in_turn(forwards, backwards, warmup, pairs=options.pairs) for warmup in warmups]
    return Plan.of(programs, [loop(p, v)], [0] * m)


def round_length(pipeline: int, microbatches: int) -> int:
    """Micro-batches per round: PyTorch's number (equal to p in the paper's case), else the smallest one in Megatron."""
    rounds = max(1, microbatches // pipeline)
    if microbatches % rounds == 0:
        return microbatches // rounds
    lengths = range(pipeline, microbatches + 1)  # one round for all is always possible
    return next(length for length in lengths if not 0 < microbatches % length < pipeline)
