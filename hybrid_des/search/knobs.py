"""The continuous knobs of a search, such as the size of a bucket, and the ranges in which they are tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from hybrid_des.options import describe, read_bytes
from hybrid_des.scenario.loading import misnamed

if TYPE_CHECKING:
    from optuna.trial import Trial

Report = Callable[[str, str], None]  # a key, and the error in its range


@dataclass(frozen=True)
class Knob:
    """A key that is tuned, and its range; sizes are bytes."""

    path: str
    low: float
    high: float
    size: bool

    def drawn(self, trial: Trial) -> float:
        """The value of a trial."""
        if self.size:
            return float(trial.suggest_int(self.path, int(self.low), int(self.high), log=True))
        return float(trial.suggest_float(self.path, self.low, self.high))


def knobs_in(ranges: Mapping[str, Any], report: Report) -> tuple[Knob, ...]:
    """The knobs of a `search.tune`; problems are reported."""
    found = []
    for path, ends in ranges.items():
        if wrong := misnamed(str(path)):
            report(str(path), wrong)
        elif knob := _knob(str(path), ends):
            found.append(knob)
        else:
            message = "expected two numbers or sizes, the smaller one first, such as [1 MiB, 1 GiB]"
            report(str(path), f"{message}, found {describe(ends)}")
    return tuple(found)


def _knob(path: str, ends: Any) -> Knob | None:
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    plain = all(isinstance(end, Real) and not isinstance(end, bool) for end in ends)
    try:
        low, high = map(float, ends) if plain else map(read_bytes, ends)
    except (TypeError, ValueError):
        return None
    if not low < high or (not plain and low < 1):
        return None
    return Knob(path, low, high, size=not plain)
