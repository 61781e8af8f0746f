"""How well fitted numbers are supported: how many runs determine each, and the errors of runs left out of the fit.

A run determines a number if its step time follows it: by at least a twentieth of what the number itself changes by. A
run is left out to first order: errors near the fitted numbers are linear in their logarithms, so that the numbers
without this run, and its error then, need no further simulations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from hybrid_des.measured.validation.corpus import Prediction
from hybrid_des.measured.validation.fitting import Numbers, Vector, errors_of, least_move, most_of, slopes_at

CARRIES = 0.05  # of a number's relative change


@dataclass(frozen=True)
class Evidence:
    """What fitted numbers rest on.

    Attributes:
        rows: rows with a measured step time that could be predicted.
        carried: number → how many of them carry it.
        left_out: predicted over measured of each, as if it had been left out of the fit; none if there is only one.
    """

    rows: int
    carried: Mapping[str, int]
    left_out: tuple[float, ...]

    @property
    def weak(self) -> list[str]:
        """The numbers that rest on one row, or on none."""
        return [path for path, count in self.carried.items() if count < 2]


def evidence(numbers: Numbers, predictions_for: Callable[[Numbers], Sequence[Prediction]]) -> Evidence:
    """What these numbers rest on among the rows that they were fitted to.

    Args:
        numbers: as fitted.
        predictions_for: numbers → the predictions of the rows.
    """
    paths, error_at = list(numbers), errors_of([*numbers], predictions_for)
    point = np.array([log(numbers[path]) for path in paths])
    slopes, now = slopes_at(point, error_at(point), error_at)
    carried = (np.abs(slopes) >= CARRIES).sum(axis=0)
    room = most_of(paths) - point
    return Evidence(
        len(now),
        {path: int(count) for path, count in zip(paths, carried, strict=True)},
        tuple(_left_out(now, slopes, row, room) for row in range(len(now))) if len(now) > 1 else (),
    )


def _left_out(errors: Vector, slopes: Vector, row: int, room: Vector) -> float:
    """Predicted over measured of a row, with the numbers of a fit to the others."""
    others = np.arange(len(errors)) != row
    move = least_move(slopes[others], errors[others], room)
    return float(np.exp(errors[row] + slopes[row] @ move))
