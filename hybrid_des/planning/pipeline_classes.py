"""The paths of a plan's pipelines through the cluster: their ranks, speeds and distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

import numpy as np

from hybrid_des.cluster.connections import unlike_pairs
from hybrid_des.cost_model.cheapest_times import CheapestTimes
from hybrid_des.scenario.definition import Scenario


@dataclass(frozen=True)
class PipelineClasses:
    """Pipelines that are walked as one: each rank as fast, and each message as quick, as the fastest of them.

    Attributes:
        ranks: the global ranks of each pipeline, in order.
        speeds: the speed of every global rank.
    """

    ranks: Sequence[range]
    speeds: Sequence[Fraction]
    cheapest: CheapestTimes

    @classmethod
    def of(cls, scenario: Scenario, cheapest: CheapestTimes) -> PipelineClasses:
        """All pipelines of a scenario."""
        layout = scenario.parallel.layout
        stride, length = layout.strides["pipeline"], layout.sizes["pipeline"] * layout.strides["pipeline"]
        firsts = (rank for rank in range(layout.ranks) if not layout.coordinate(rank, "pipeline"))
        speeds = [node.speed for node in scenario.cluster.nodes_of(range(layout.ranks))]
        return cls([range(first, first + length, stride) for first in firsts], speeds, cheapest)

    @cached_property
    def alike(self) -> bool:
        """Whether they differ neither in speed nor in the routes from each rank to the next and back."""
        if len(self.ranks) == 1:
            return True
        count = len(self.ranks[0])
        pairs = [(i, j) for i in range(count) for j in {(i + 1) % count, (i - 1) % count} - {i}]
        return len(set(self.speeds)) == 1 and all(len(self._kinds(*pair)) == 1 for pair in pairs)

    def slowest(self) -> PipelineClasses:
        """The pipeline that computes longest; the first of equal ones."""
        longest = max(self.ranks, key=lambda way: sum(1 / self.speeds[rank] for rank in way))
        return replace(self, ranks=[longest])

    def speed(self, pipeline_rank: int) -> Fraction:
        """The speed of the fastest rank at a place."""
        return max(self.speeds[way[pipeline_rank]] for way in self.ranks)

    @cached_property
    def message(self) -> Callable[[int, int, int], int]:
        """(Sender's place, receiver's place, bytes) → the least time of a message."""
        kinds = self._kinds
        return cache(lambda rank, peer, size: min(self.cheapest.message(*ends, size) for ends in kinds(rank, peer)))

    @cached_property
    def _kinds(self) -> Callable[[int, int], list[tuple[int, int]]]:
        """(Sender's place, receiver's place) → a sender and receiver for every kind of route between them."""
        ranks = np.array(self.ranks)

        def kinds(rank: int, peer: int) -> list[tuple[int, int]]:
            pairs = unlike_pairs(self.cheapest.fabric, ranks[:, rank], ranks[:, peer])
            return list({self.cheapest.kind_of(*pair): pair for pair in pairs}.values())

        return cache(kinds)
