"""DualPipe (DeepSeek-V3 report, arXiv 2412.19437; DualPipe repository): two copies, both directions, fused F and B.

    rank 0   0F0 0F1 0F2 3F4 3I4 3W4 3F5 0F3+3B5 3F6+0B0 3B6 3F7+0B1 3B7 0I2 0W2 0I3 0W3
    rank 1   1F0 2F4 1F1 2F5 1F2 2B4 2F6+1B0 1F3+2B5 2F7+1B1 2B6 1B2 2I7 1I3 2W7 1W3        (p = 4, m = 8)

Half the micro-batches enter at rank 0, half at rank p−1; rank r holds stages r and p−1−r. The second half of the ranks
mirrors the first. Each rank runs eight phases (`eight_phases`); a forward of one direction and a backward of the other
form one action. At F = I = W the time is mT + (p−2)T/3; there is no short formula for other times, where the pairs,
which take F+I+W unless `fused_time` is less than 1, meet other ops (the paper's (p/2−1)(F&B + B − 3W) counts idle time
on one rank). Memory p+1 micro-batches and two copies of the weights. m must be even and at least 2p.
"""

from fractions import Fraction
from typing import Annotated

from hybrid_des.errors import Refusal
from hybrid_des.options import Elsewhere, Flag, Number, Options
from hybrid_des.pipeline.plan import Action, Plan, PlanRequest, two_way
from hybrid_des.pipeline.schedules.patterns import Writer
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule


class Pairs(Options):
    """Fused pairs of a forward and a backward."""

    fused: Annotated[Flag, Elsewhere(True)] = True
    """Whether a forward and a backward run as one fused action."""
    fused_time: Annotated[Number, Elsewhere(1)] = Fraction(1)
    """Time of a fused pair relative to the sum of its parts."""


def _formula(sizes: UniformSizes) -> Fraction | None:
    """Time mT + (p−2)T/3 at F = I = W."""
    return (sizes.m + Fraction(sizes.p - 2, 3)) * sizes.total if sizes.equal else None


@schedule(
    "dualpipe",
    title="DualPipe",
    summary="two copies of the model, both directions at once, forward and backward fused",
    time="mT + (p−2)T/3 at F = I = W, m even ≥ 2p",
    memory="p+1, two copies of the weights",
    source="arXiv 2412.19437; github.com/deepseek-ai/DualPipe",
    chunks=1,
    options=Pairs,
    peak=lambda request, rank, options: request.pipeline + 1,
    formula=_formula,
)
def dualpipe(request: PlanRequest, options: Pairs) -> Plan:
    """Eight phases over each half of the ranks.

    Raises:
        Refusal: p or m is odd, or m is less than 2p.
    """
    p, m = request.pipeline, request.microbatches
    if p % 2:
        raise Refusal(f"dualpipe pairs rank r with rank p−1−r: pipeline must be even, not {p}")
    if m % 2 or m < 2 * p:
        raise Refusal(f"dualpipe needs an even number of micro-batches, at least 2·pipeline = {2 * p}, not {m}")
    half = m // 2
    down = [eight_phases(Writer((0, 1), (0, half), options.fused), p // 2, rank, half) for rank in range(p // 2)]
    up = [eight_phases(Writer((1, 0), (half, 0), options.fused), p // 2, rank, half) for rank in range(p // 2)]
    programs = [*down, *reversed(up)]
    return Plan.of(programs, two_way(p), [0] * half + [1] * half, options.fused_time)


def eight_phases(writer: Writer, ranks: int, rank: int, microbatches: int) -> list[Action]:
    """Write one rank's program; way 0 is the one whose first stage is nearer.

    Args:
        writer: holds the chunk and the first micro-batch of both ways.
        ranks: number of ranks from the outermost to the one at the fold.
        rank: 0 for the outermost, ranks−1 at the fold.
        microbatches: number of micro-batches per way.
    """
    inner = ranks - 1 - rank  # ranks between this one and the fold
    writer.write("F0", 2 * inner)  # 1 nF0: warm-up, the near direction
    writer.write("F0 F1", rank + 1)  # 2 nF0F1: warm-up, both directions
    writer.write("I1 W F1", inner)  # 3 nB1W1F1: split backwards fill the bubble
    # 4 nF0B1F1B0: the steady state, a forward of one direction with a backward of the other. The rank at the fold runs
    # its first pair unfused.
    writer.write("F0+B1 F1+B0" if inner else "F0 B1 F1+B0")
    writer.write("F0+B1 F1+B0", microbatches - 2 * ranks + rank)
    writer.write("B1 F1+B0", inner)  # 5 nB1F1B0: cool-down, the last forwards of the far direction
    # 6 nB1B0: cool-down, the other 2(rank+1) backwards; the first half is whole, the second split
    for turn in range(2 * (rank + 1)):
        writer.write(f"{'B' if turn <= rank else 'I'}{1 - turn % 2}")
    writer.write("W I0", inner)  # 7 nWB0: deferred weight gradients between the last input gradients
    writer.write("W", rank + 1)  # 8 nW: the remaining weight gradients
    return writer.program
