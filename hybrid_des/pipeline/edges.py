"""The dependencies of a plan: which actions must be done before which."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Edges:
    """Dependencies between the actions of all programs, which are numbered rank by rank, top to bottom.

    Attributes:
        producers: for each action the actions that must be done before it.
        rank: the pipeline rank of each action.
    """

    producers: Sequence[Sequence[int]]
    rank: Sequence[int]

    @cached_property
    def remote(self) -> tuple[Numbers, Numbers]:
        """The dependencies that cross ranks, each carried by a message: consumers in ascending order, and producers."""
        rank = np.array(self.rank, dtype=np.int64)
        consumer = np.repeat(np.arange(len(self.rank)), [len(needed) for needed in self.producers])
        producer = np.fromiter(chain.from_iterable(self.producers), dtype=np.int64)
        crosses = rank[consumer] != rank[producer]
        return consumer[crosses], producer[crosses]
