"""Tasks of which the ends of runs that only take other times are all that matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_des.analysis.counterfactual.what_if import Variant


@dataclass(frozen=True)
class OfRetimed:
    """A task that makes something of the ends of variants which differ from a run in the durations of ops alone.

    Those ends may be found without simulations (`retiming`); as a task it simulates them.

    Attributes:
        variants: the variants.
        made: their ends in picoseconds, one after the other → what the task returns.
        simulated: the same by simulations, if these tell more than ends; default: from the ends of simulations.
    """

    variants: Callable[[], Sequence[Variant]]
    made: Callable[..., Any]
    simulated: Callable[[], Any] | None = None

    def __call__(self) -> Any:
        """Simulate the variants."""
        if self.simulated is not None:
            return self.simulated()
        return self.made(*(variant.duration for variant in self.variants()))
