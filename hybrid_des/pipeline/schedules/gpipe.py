"""GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards.

    rank 0   F0 F1 F2 ·· ·· ·· B0 B1 B2
    rank 1   ·· F0 F1 F2 B0 B1 B2 ·· ··        (F = B = 1)

Time (m+p−1)(F+B), memory m micro-batches on every rank. `backward_order: lifo` runs the newest backward first, as in
the GPipe paper; fifo the oldest, as in PyTorch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from hybrid_des.options import Elsewhere, Options, choice
from hybrid_des.pipeline import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules import schedule


class Gpipe(Options):
    """Order of the backwards."""

    backward_order: Annotated[Literal["fifo", "lifo"], choice("fifo", "lifo"), Elsewhere("fifo")] = "fifo"
    """Order of the backwards: fifo runs the oldest micro-batch first, lifo the newest."""


@schedule(
    "gpipe",
    summary="all forwards, then all backwards",
    time="(m+p−1)T",
    memory="m",
    source="arXiv 1811.06965",
    chunks=1,
    options=Gpipe,
    peak=lambda request, rank, options: request.microbatches,
)
def gpipe(request: PlanRequest, options: Gpipe) -> Plan:
    """Every rank runs the same program."""
    microbatches = range(request.microbatches)
    backwards = reversed(microbatches) if options.backward_order == "lifo" else microbatches
    program = [Op("F", i) for i in microbatches] + [Op("B", i) for i in backwards]
    return Plan.of([program] * request.pipeline, [loop(request.pipeline, 1)], [0] * request.microbatches)
