"""The critical edges of a graph, shortened: edges in a row, without a branch between them, become one chain.

    ──►──►──►──┬──►──►──┐          three chains: what is looked for on all critical paths, such as the most time of
               └──►──►──┴──►──     a class, needs to visit only the points where chains meet

Values are passed from chain to chain in the order of these points (`Step`), each in a slot that is used again once all
chains that begin there are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hybrid_des.planning.program_table import NONE, Column


class Step(NamedTuple):
    """The chains into a point.

    Attributes:
        point: the number of the point.
        slot: where its values are kept.
        chain: the first chain; the others follow it.
        starts: the slots of the causes of the chains.
        fresh: those of causes that nothing releases.
    """

    point: int
    slot: int
    chain: int
    starts: Sequence[int]
    fresh: Sequence[int]


@dataclass(frozen=True, eq=False)
class Chains:
    """Edges, with chains of them that do not branch merged.

    Attributes:
        cause, point: the ends of each chain, numbered in order; chains are ordered by `point`.
        of: the chain of each edge.
        ends: the point of the graph that each number is.
    """

    cause: Column
    point: Column
    of: Column
    ends: Column

    @classmethod
    def of_edges(cls, cause: Column, point: Column, kept: Column) -> Chains:
        """Merge chains of edges without branches, except at some points.

        The chain of an edge is found by pointer jumping: each edge points to the one before it, then to the one before
        that, twice as far each time.

        Args:
            cause: where each edge begins.
            point: where it ends; edges are ordered by it.
            kept: the points at which chains end in any case.
        """
        points, cause, point = _numbered(cause, point)
        into, out = np.bincount(point, minlength=len(points)), np.bincount(cause, minlength=len(points))
        edge_into = np.zeros(len(points), dtype=np.int64)
        edge_into[point] = np.arange(len(point))
        inner = (into == 1) & (out == 1) & ~np.isin(points, kept)
        root = np.where(inner[cause], edge_into[cause], np.arange(len(cause)))
        while ((before := root[root]) != root).any():
            root = before
        roots, chain = np.unique(root, return_inverse=True)
        last = np.zeros(len(roots), dtype=np.int64)
        np.maximum.at(last, chain, point)
        order = np.argsort(last, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        ends, cause, point = _numbered(cause[roots][order], last[order])
        return cls(cause, point, position[chain], points[ends])

    def steps(self) -> tuple[list[Step], int]:
        """The chains into each point, in order, and the most points that are needed at once.

        A point's values are kept in a slot, which is used again after its last chain.
        """
        causes, unused = self.cause.tolist(), list[int]()
        last = dict(zip(causes, range(len(causes)), strict=True))
        slot: list[int] = [NONE] * len(self.ends)
        steps: list[Step] = []
        number = slots = 0
        for end, count in zip(*(column.tolist() for column in np.unique(self.point, return_counts=True)), strict=True):
            starts, fresh = causes[number : number + count], list[int]()
            for point in (*starts, end):
                if slot[point] == NONE:
                    if unused:
                        slot[point] = unused.pop()
                    else:
                        slot[point], slots = slots, slots + 1
                    if point != end:
                        fresh.append(slot[point])
            steps.append(Step(end, slot[end], number, [slot[start] for start in starts], fresh))
            for chain, start in enumerate(starts, number):
                if last[start] == chain:
                    unused.append(slot[start])
            number += count
        return steps, slots


def _numbered(cause: Column, point: Column) -> tuple[Column, Column, Column]:
    """The points of some edges, in order, and the ends of the edges by their numbers among these."""
    points, numbers = np.unique(np.concatenate([cause, point]), return_inverse=True)
    return points, numbers[: len(cause)], numbers[len(cause) :]
