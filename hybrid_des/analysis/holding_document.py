"""The document that held a run: the longest of the micro-batch that takes the most of the critical path.

All other replicas wait for the slowest, whose micro-batches the path runs through; in a pipeline, a micro-batch holds
one stage after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.paths import Piece
from hybrid_des.analysis.critical_path.rows import Names
from hybrid_des.cost_model.documents import PackedSteps
from hybrid_des.layout import Layout
from hybrid_des.planning.program_table import NONE, Columns


class HoldingDocument(NamedTuple):
    """A document and its micro-batch.

    Attributes:
        tokens: its length.
        step, replica, microbatch: where it is computed.
        context: the context rank that has it alone; None if all share it.
        documents: number of documents in its micro-batch.
        time: picoseconds of that micro-batch on all pipeline ranks.
        over_mean: this over the mean of all micro-batches that have documents.
    """

    tokens: int
    step: int
    replica: int
    microbatch: int
    context: int | None
    documents: int
    time: int
    over_mean: float


def holding_document(
    packed: PackedSteps | None, graph: Graph, names: Names, path: Sequence[Piece]
) -> HoldingDocument | None:
    """The document that held a run with this critical path; None if all micro-batches hold the same.

    Args:
        packed: the documents of the run.
        graph: its graph of causes.
        names: of its activities.
        path: its critical path.
    """
    if packed is None or not packed.varies:
        return None
    ops, layout = graph.timeline.op_rows(), graph.timeline.layout
    on_path: Counter[tuple[int, int, int]] = Counter()
    for piece in path:
        row = piece.activity % graph.activities
        if names.is_op(piece.activity) and ops["microbatch"][row] != NONE:
            lane = layout.lane(names.rank(piece.activity))
            on_path[int(ops["step"][row]), lane, int(ops["microbatch"][row])] += piece.compute
    if not any(on_path.values()):
        return None
    step, lane, microbatch = max(on_path, key=lambda where: (on_path[where], [-number for number in where]))
    lengths, contexts = packed.documents(step, microbatch, lane), layout.sizes.get("context", 1)
    time, over_mean = _times(ops, layout, (step, lane, microbatch))
    replica, context = divmod(lane, contexts)
    alone = context if packed.context < contexts else None
    return HoldingDocument(max(lengths), step, replica, microbatch, alone, len(lengths), time, over_mean)


def _times(ops: Columns, layout: Layout, where: tuple[int, int, int]) -> tuple[int, float]:
    """Picoseconds of a micro-batch of a lane on all pipeline ranks, and that over the mean of all that take time."""
    held = ops["microbatch"] != NONE
    rank, lane = ops["rank"][held], np.array([layout.lane(rank) for rank in range(layout.ranks)])[ops["rank"][held]]
    keys = np.stack([ops["step"][held], lane, ops["microbatch"][held]])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    sums = np.bincount(which.reshape(-1), weights=(ops["end"] - ops["start"])[held].astype(float))
    mine = sums[(np.array(where)[:, None] == distinct).all(axis=0)].sum()
    alike = max(1, len(np.unique(rank[lane == where[1]])) // layout.sizes["pipeline"])  # tensor ranks do the same
    return round(mine / alike), float(mine / sums[sums > 0].mean())
