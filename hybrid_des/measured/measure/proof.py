"""A real training step beside the one that is simulated from what was measured, and the error in per cent."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple


class Proof(NamedTuple):
    """A real step and its prediction.

    Attributes:
        what: the schedule, or the model's step.
        measured: seconds, the median over rounds.
        fastest: seconds of the fastest round.
        predicted: seconds, simulated from what was measured.
    """

    what: str
    measured: float
    fastest: float
    predicted: float

    @classmethod
    def of(cls, what: str, times: Sequence[float], predicted: float) -> Proof:
        """From the seconds of every round."""
        return cls(what, median(times), min(times), predicted)

    @property
    def error(self) -> float:
        """Per cent by which the prediction is longer than the median."""
        return 100 * (self.predicted / self.measured - 1)

    def to_mapping(self) -> dict[str, Any]:
        """The figures by their public keys."""
        return {
            "what": self.what, "measured_s": self.measured, "fastest_s": self.fastest, "predicted_s": self.predicted,
            "error_percent": self.error,
        }  # fmt: skip
