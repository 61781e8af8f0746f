"""GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards.

    rank 0   F0 F1 F2 ·· ·· ·· B0 B1 B2
    rank 1   ·· F0 F1 F2 B0 B1 B2 ·· ··        (F = B = 1)

Time (m+p−1)(F+B), memory m micro-batches on every rank. `backward_order: lifo` runs the newest backward first, as in
the GPipe paper; fifo the oldest, as in PyTorch.
"""

from hybrid_des.options import Options
from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.pipeline.schedules.looped_bfs import BackwardOrder, breadth_first
from hybrid_des.pipeline.schedules.one_f_one_b import fill_and_drain
from hybrid_des.pipeline.schedules.registration import schedule


class Gpipe(Options):
    """Order of the backwards."""

    backward_order: BackwardOrder = "fifo"
    """Order of the backwards: fifo runs the oldest micro-batch first, lifo the newest."""


@schedule(
    "gpipe",
    title="GPipe",
    summary="all forwards, then all backwards",
    time="(m+p−1)T",
    memory="m",
    source="arXiv 1811.06965",
    chunks=1,
    options=Gpipe,
    peak=lambda request, rank, options: request.microbatches,
    formula=fill_and_drain,
)
def gpipe(request: PlanRequest, options: Gpipe) -> Plan:
    """Looped breadth-first with one chunk."""
    return breadth_first(request.pipeline, request.microbatches, 1, options.backward_order)
