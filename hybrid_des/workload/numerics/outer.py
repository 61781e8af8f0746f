"""The exchange between groups of replicas that train by themselves for some steps: local SGD with an outer optimizer.

After every H steps, or fragment by fragment in between,

    g = mean over groups of codec(w₀ − w)          w₀: the weights that all groups had after the last exchange
    v = μ v + g                                    outer SGD with Nesterov momentum, learning rate η
    w₀ = w₀ − η (g + μ v)

and every group goes on from w₀; if the exchange overlaps τ steps, with α w + (1 − α) w₀ of its weights τ steps later.

Douillard et al., DiLoCo (arXiv 2311.08105): η = 0.7, μ = 0.9; Streaming DiLoCo (arXiv 2501.18512): fragments, α = 0.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from hybrid_des.workload.numerics.datasets import Array
from hybrid_des.workload.numerics.layers import StageLayers


class Learner(Protocol):
    """A rank's part of the model."""

    @property
    def stages(self) -> Mapping[int, StageLayers]:
        """Stage → its layers with their weights."""


@dataclass(frozen=True)
class OuterSettings:
    """The exchange.

    Attributes:
        groups: number of groups of consecutive replicas.
        every, fragments, overlap: as in `gradients`.
        learning_rate, momentum, mixing: η, μ and α.
        sent: what arrives of changes that are encoded by the codec of the exchange.
    """

    groups: int
    every: int
    fragments: int
    overlap: int
    learning_rate: float
    momentum: float
    mixing: float
    sent: Callable[[Array], Array]


class IncomingWeights(NamedTuple):
    """Weights that arrive after a step: stage, their places in it, and their values."""

    step: int
    stage: int
    places: slice
    values: Array


class OuterStep:
    """The weights that groups have in common, and the outer optimizer's state.

    Args:
        settings: the exchange.
    """

    def __init__(self, settings: OuterSettings) -> None:
        self.settings = settings
        self._workers: list[tuple[int, Learner]] = []
        self._common: dict[int, Array] = {}
        self._momentum: dict[int, Array] = {}
        self._learned = Counter[int]()
        self._arriving: list[IncomingWeights] = []

    def join(self, worker: Learner, group: int) -> None:
        """Add the worker of a rank in a group, with its initial weights."""
        self._workers.append((group, worker))
        for stage, state in worker.stages.items():
            if stage not in self._common:
                self._common[stage] = state.weights.astype(np.float64)
                self._momentum[stage] = np.zeros_like(self._common[stage])

    def learned(self, step: int) -> None:
        """Note that a worker has taken an inner step; after the last one, exchange what is due."""
        self._learned[step] += 1
        if self._learned[step] < len(self._workers):
            return
        del self._learned[step]
        settings = self.settings
        for fragment in range(settings.fragments):
            if (step + 1) % settings.every == (fragment + 1) * settings.every // settings.fragments % settings.every:
                self._arriving += [self._exchanged(step, stage, fragment) for stage in self._common]
        for arriving in [one for one in self._arriving if one.step <= step]:
            self._arriving.remove(arriving)
            self._arrive(arriving)

    def _exchanged(self, step: int, stage: int, fragment: int) -> IncomingWeights:
        """Average a fragment of a stage over the groups, and take the outer step."""
        settings, common, momentum = self.settings, self._common[stage], self._momentum[stage]
        places = self._places(common.size, fragment)
        change = sum(settings.sent(common[places] - own[places]) for own in self._of_groups(stage)) / settings.groups
        momentum[places] = settings.momentum * momentum[places] + change
        common[places] -= settings.learning_rate * (change + settings.momentum * momentum[places])
        return IncomingWeights(step + settings.overlap, stage, places, common[places].copy())

    def _of_groups(self, stage: int) -> Iterator[Array]:
        """The weights of a stage in each group; its replicas have the same ones."""
        seen = set()
        for group, worker in self._workers:
            if stage in worker.stages and group not in seen:
                seen.add(group)
                yield worker.stages[stage].weights.astype(np.float64)

    def _arrive(self, arriving: IncomingWeights) -> None:
        kept = self.settings.mixing if self.settings.overlap else 0.0
        for _, worker in self._workers:
            if arriving.stage in worker.stages:
                weights = worker.stages[arriving.stage].weights
                weights[arriving.places] = kept * weights[arriving.places] + (1 - kept) * arriving.values

    def _places(self, size: int, fragment: int) -> slice:
        count = self.settings.fragments
        return slice(size * fragment // count, size * (fragment + 1) // count)
