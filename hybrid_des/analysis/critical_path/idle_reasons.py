"""Idle time by reason, of many waits at once: the pieces of their chains of causes, each clipped to the waits.

What this sums, `idle_pieces` lists piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.paths import PARTS, walks_on
from hybrid_des.analysis.idle import LATENCY, OTHERS, QUEUEING, REASONS, TRANSFER
from hybrid_des.planning.program_table import Column, Columns

NAMED = dict(zip(PARTS, (TRANSFER, LATENCY, QUEUEING, OTHERS), strict=True))
FIRST_WAITS = ("queue", "others", "transfer", "latency")  # the order of parts under `fair`, where each loses time first


def idle_reasons(graph: Graph, waits: Columns, first: Column, image: int = 0) -> Column:
    """The idle time of simulated ranks, or of an image of them, by reason.

    Args:
        graph: the causes of a run.
        waits: the waits in the order of their chains; those of one chain follow each other. `point` is where the chain
            ends, `since` until when it leads back, `own` whether each image has its own.
        first: the first wait of each chain.
        image: number of the image.

    Returns:
        Picoseconds for each of `REASONS`.
    """
    order = FIRST_WAITS if graph.messages.fair else PARTS
    count, sums = np.diff(first, append=len(waits["point"])), np.zeros(len(REASONS), dtype=np.int64)
    for pieces in walks_on(graph).pieces(ends_at(waits, first, image)):
        piece, wait = _met(pieces, waits, first, count)
        computing, *of_messages = _clipped(pieces, piece, waits, wait, ("compute", *order))
        np.add.at(sums, waits["reason"][wait], computing)
        for part, took in zip(order, of_messages, strict=True):
            sums[REASONS.index(NAMED[part])] += took.sum()
    return sums


def ends_at(waits: Columns, first: Column, image: int) -> Columns:
    """The ends of the chains of waits, for an image of those that each image has of its own."""
    images = np.where(waits["own"][first], image, 0)
    return {"point": waits["point"][first], "until": waits["since"][first], "image": images}


def _met(pieces: Columns, waits: Columns, first: Column, count: Column) -> tuple[Column, Column]:
    """The pieces of chains and the waits that end with these, where they overlap."""
    chain = pieces["chain"]
    each = count[chain]
    piece = np.repeat(np.arange(len(chain)), each)
    wait = np.arange(len(piece)) + np.repeat(first[chain] - np.cumsum(each) + each, each)
    met = (pieces["end"][piece] > waits["start"][wait]) & (pieces["start"][piece] < waits["end"][wait])
    return piece[met], wait[met]


def _clipped(pieces: Columns, piece: Column, waits: Columns, wait: Column, parts: Sequence[str]) -> Iterator[Column]:
    """How long each part of pieces takes within waits."""
    begin, stop, at = waits["start"][wait], waits["end"][wait], pieces["start"][piece]
    for part in parts:
        after = at + pieces[part][piece]
        yield np.maximum(np.minimum(after, stop) - np.maximum(at, begin), 0)
        at = after
