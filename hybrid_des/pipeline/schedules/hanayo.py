"""Hanayo (Liu et al., SC'23, arXiv 2308.15762): micro-batches run down the ranks and back in w waves, v = 2w chunks.

    rank 0   0F0 0F1 ··  3F0 3B0 3B0 3F1 3B1 3B1 ··  0B0 0B0 ··  ··  0B1 0B1
    rank 1   ··  1F0 2F0 1F1 2F1 ··  2B0 2B0 1B0 1B0 2B1 2B1 1B1 1B1 ··  ··

    (p = m = 2, one wave; stage, F or B, micro-batch; B = 2F)

Even chunks run from rank 0 to p−1, odd ones back; where a wave turns, two consecutive stages are on the same rank and
nothing is sent. Peak memory p micro-batches. With F = 1, I+W = 2 and m = kp the time is
3m + [2(p−1) + (k−1)(p−1.5)]/w: each group of p micro-batches adds a bubble, which shrinks with more waves.

The order is fixed on a grid of slots, one per forward and two per backward, for groups of p micro-batches:

    1  The first micro-batch of a group takes its whole path, all forwards and then all backwards, each op in the first
       free slots after the previous one.
    2  Slots are closed so that later micro-batches do not get ahead: on rank r the p−1−r before the first micro-batch's
       forward of chunk 1, and the r before its backward of the last chunk, as far as they are free.
    3  The other micro-batches are placed in the same way, one after the other.
    4  The next group starts when the first micro-batch's last backward on rank 0 ends.
"""

from fractions import Fraction

from hybrid_des.errors import Refusal
from hybrid_des.pipeline.plan import Op, Path, Plan, PlanRequest, wave
from hybrid_des.pipeline.schedules.registration import UniformSizes, schedule
from hybrid_des.pipeline.schedules.time_slots import Slots

LENGTH = {"F": 1, "B": 2}


def _formula(sizes: UniformSizes) -> Fraction | None:
    """3m + [2(p−1) + (k−1)(p−1.5)]/w in units of F, at I+W = 2F and m = kp."""
    p, m, waves = sizes.p, sizes.m, Fraction(sizes.v, 2)
    if m % p or sizes.input + sizes.weight != 2 * sizes.forward:
        return None
    return sizes.forward * (3 * m + (2 * (p - 1) + (m // p - 1) * (p - Fraction(3, 2))) / waves)


@schedule(
    "hanayo",
    title="Hanayo",
    summary="micro-batches run down the ranks and back in w waves, 2w chunks per rank",
    time="3m + [2(p−1) + (k−1)(p−1.5)]/w at F = 1, I+W = 2, m = kp",
    memory="p",
    source="SC'23, arXiv 2308.15762",
    many_chunks=True,
    peak=lambda request, rank: min(request.microbatches, request.pipeline),
    formula=_formula,
)
def hanayo(request: PlanRequest) -> Plan:
    """Place the groups on the grid and read off the programs.

    Raises:
        Refusal: the number of chunks is odd, or 0.
    """
    p, m, v = request.pipeline, request.microbatches, request.chunks
    if v % 2:
        raise Refusal(f"hanayo runs in waves of two chunks: chunks must be 2, 4, 6, … (twice the waves), not {v}")
    path = wave(p, v)
    grid = [Slots() for _ in range(p)]
    start = 0
    for first in range(0, m, p):
        walk = _place(first, start, path, grid)
        for rank in range(p):
            grid[rank].close_before(walk["F", rank, 1], p - 1 - rank)
            grid[rank].close_before(walk["B", rank, v - 1], rank)
        for microbatch in range(first + 1, min(first + p, m)):
            _place(microbatch, start, path, grid)
        start = walk["B", 0, 0] + LENGTH["B"]
    return Plan.of([row.program for row in grid], [path], [0] * m)


def _place(microbatch: int, start: int, path: Path, grid: list[Slots]) -> dict[tuple[str, int, int], int]:
    """Place one micro-batch along its path and back; returns the slot of each (kind, rank, chunk)."""
    at: dict[tuple[str, int, int], int] = {}
    ops = [(rank, Op("F", microbatch, chunk)) for rank, chunk in path]
    ops += [(rank, Op("B", microbatch, chunk)) for rank, chunk in reversed(path)]
    for rank, op in ops:
        slot = grid[rank].free(start, LENGTH[op.kind])
        grid[rank].put(slot, op, LENGTH[op.kind])
        at[op.kind, rank, op.chunk] = slot
        start = slot + LENGTH[op.kind]
    return at
