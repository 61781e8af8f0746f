"""Who was slow: the law that a simulated scenario (`slowest`) and a measured run (`stragglers.ideals`) share.

    S          T / T_ideal                            all ops of a kind at their mean
    removed    (T − T with C ideal) / (T − T_ideal)   share of the loss that a class of ops C is behind

As in the straggler study (Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI
2025). A simulation gives T with any messages and any ranks changed; longest paths give it for all steps of a measured
run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

MOST = 0.5  # of the loss, for a class to be named …
NEARLY = 0.9  # … and of what a larger class explains, for the smaller one to be named instead

Class = TypeVar("Class")


class Loss(NamedTuple):
    """The time of a run, and with all ops at the mean of their kind, in the same unit."""

    whole: float
    ideal: float

    @property
    def slowdown(self) -> float:
        """S; 1 for a run without ops."""
        return self.whole / self.ideal if self.ideal else 1.0

    def removed(self, without: float) -> float:
        """The share of the loss that vanishes with a class of ops ideal; 0 if there is no loss."""
        return (self.whole - without) / (self.whole - self.ideal) if self.whole != self.ideal else 0.0


def culprit(found: Sequence[tuple[Class, float]]) -> Class | None:
    """The smallest class behind most of the loss; None if there is none.

    Args:
        found: classes, the smallest first, with the share of the loss that each removes.
    """
    most = max((removed for _, removed in found), default=0.0)
    return next(one for one, removed in found if removed >= NEARLY * most) if most >= MOST else None
