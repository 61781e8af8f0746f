"""Idle time by reason, of all ranks at once: all chains of causes are walked together, one edge of each at a time.

What this sums, `idle_pieces` lists: a chain is closed piece by piece, and each piece is clipped to the waits that end
with the chain. Where ranks are thousands, walking along one chain after the other took longer than all else that is
shown of causes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.paths import PARTS, ROOT
from hybrid_des.analysis.idle import LATENCY, OTHERS, QUEUEING, REASONS, TRANSFER
from hybrid_des.simulation.timeline import NONE, Column, Columns

NAMED = dict(zip(PARTS, (TRANSFER, LATENCY, QUEUEING, OTHERS), strict=True))
FIRST_WAITS = ("queue", "others", "transfer", "latency")  # the order of parts under `fair`, where each loses time first
COMPUTES = len(PARTS)  # number of the part of a piece in which an op computes


class IdleReasons:
    """The idle time of simulated ranks by reason.

    Args:
        graph: the causes of a run whose images decide all ties alike.
        waits: the waits in the order of their chains; those of one chain follow each other. `point` is where the chain
            ends, `since` until when it leads back.
        first: the first wait of each chain.
    """

    def __init__(self, graph: Graph, waits: Columns, first: Column) -> None:
        self._graph, self._waits, self._first = graph, waits, first
        self._count = np.diff(first, append=len(waits["point"]))
        parts = FIRST_WAITS if graph.messages.fair else PARTS
        self._order = [PARTS.index(part) for part in parts]
        self._reasons = [REASONS.index(NAMED[part]) for part in parts]
        self._sums = np.zeros(len(REASONS), dtype=np.int64)
        # of each chain's open piece: its activity, when it starts and ends, and its parts
        self._activity = np.full(len(first), ROOT)
        self._from, self._until = np.zeros((2, len(first)), dtype=np.int64)
        self._parts = np.zeros((COMPUTES + 1, len(first)), dtype=np.int64)

    def sums(self) -> Column:
        """Picoseconds for each of `REASONS`."""
        graph, chain = self._graph, np.arange(len(self._first))
        since, point = self._waits["since"][self._first], self._waits["point"][self._first]
        image = np.zeros(len(chain), dtype=np.int64)
        while len(chain):
            edge, image = graph.released_at(point, image)
            here = graph.time[point]
            on = np.flatnonzero((edge != NONE) & (here > since))
            chain, since, edge, image, here = (column[on] for column in (chain, since, edge, image, here))
            point = graph.edges.cause[edge]
            lag = here - graph.time[point]
            took = np.flatnonzero(lag)
            if len(took):
                self._take(chain[took], edge[took], image[took], here[took], lag[took])
        self._close(np.arange(len(self._first)))
        return self._sums

    def _take(self, chain: Column, edge: Column, image: Column, here: Column, lag: Column) -> None:
        """Lengthen the open pieces of chains by an edge each; those of other activities are closed before."""
        edges = self._graph.edges
        activity, parts = edges.activity(edge), edges.parts(edge)
        computes = (activity >= 0) & (activity < edges.ops)
        activity = np.where(activity == NONE, NONE, activity + image * self._graph.activities)
        other = np.flatnonzero(self._activity[chain] != activity)
        begun = chain[other]
        self._close(begun)
        self._activity[begun], self._from[begun], self._until[begun] = activity[other], here[other], here[other]
        self._parts[:, begun] = 0
        self._from[chain] = np.minimum(self._from[chain], here - lag)  # a lag within a message may be negative
        self._until[chain] = np.maximum(self._until[chain], here)
        for number, name in enumerate(PARTS):
            self._parts[number, chain] += parts[name]
        self._parts[COMPUTES, chain] += np.where(computes, lag, 0)

    def _close(self, chain: Column) -> None:
        """Sum the pieces of chains, clipped to each of the waits that end with these."""
        chain = chain[self._activity[chain] != ROOT]
        count = self._count[chain]
        before = np.cumsum(count) - count
        wait = np.arange(int(count.sum())) + np.repeat(self._first[chain] - before, count)
        chain = np.repeat(chain, count)
        within = (self._until[chain] > self._waits["start"][wait]) & (self._from[chain] < self._waits["end"][wait])
        chain, wait = chain[within], wait[within]
        computes = self._parts[COMPUTES, chain] > 0
        in_ops = next(self._clipped(chain[computes], wait[computes], (COMPUTES,)))
        np.add.at(self._sums, self._waits["reason"][wait[computes]], in_ops)
        of_messages = self._clipped(chain[~computes], wait[~computes], self._order)
        for reason, took in zip(self._reasons, of_messages, strict=True):
            self._sums[reason] += took.sum()

    def _clipped(self, chain: Column, wait: Column, parts: Sequence[int]) -> Iterator[Column]:
        """How long each part of chains' open pieces takes within waits."""
        begin, stop, at = self._waits["start"][wait], self._waits["end"][wait], self._from[chain]
        for part in parts:
            after = at + self._parts[part, chain]
            yield np.maximum(np.minimum(after, stop) - np.maximum(at, begin), 0)
            at = after
