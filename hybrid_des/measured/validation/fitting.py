"""Numbers of a scenario fitted to measured runs: the least mean error, coordinate by coordinate."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, inf, log, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.measured.validation.corpus import Prediction
from hybrid_des.scenario.composition import put
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import misnamed, scenario_of
from hybrid_des.studies.sweep.axes import Sweep
from hybrid_des.studies.sweep.runner import with_case

ROUNDS = 4


STEP = 0.05  # of the logarithm of a number, to measure its effect


FARTHEST = 0.4  # that a number's logarithm moves in one round


CLOSE = 0.002  # a round that moves every number less than this is the last


DIGITS = 4


SHARES = ("efficiency.", "overlap.")  # sections whose numbers are at most 1, except overheads


Numbers = dict[str, float]


Vector = NDArray[np.float64]


def with_numbers(sweep: Sweep, numbers: Mapping[str, float]) -> Sweep:
    """The same rows with other numbers in the scenario."""
    document = replace(sweep.document, value=copy.deepcopy(sweep.document.value))
    for path, number in numbers.items():
        put(document.value, path.split("."), number, f"--fit {path}")
    return replace(sweep, document=document)


def starts(sweep: Sweep, paths: Sequence[str]) -> Numbers:
    """The numbers in the first row that is a valid scenario.

    Raises:
        UsageError: a path is not a positive number of the scenario, or is a column of the rows.
    """
    for path in paths:
        if wrong := misnamed(path):
            raise UsageError(f"--fit {path}: {wrong}")
        if path in sweep.paths:
            raise UsageError(f"--fit {path}: is a column of the rows")
    reasons: list[str] = []
    for case in sweep.cases():
        try:
            scenario = scenario_of(with_case(sweep.document, case))
        except ScenarioError as error:
            reasons += error.problems
            continue
        return {path: _number(scenario, path) for path in paths}
    raise UsageError(f"--fit: no row is a valid scenario; the first problem: {reasons[0]}")


def _number(scenario: Scenario, path: str) -> float:
    value: Any = scenario
    for key in path.split("."):
        value = getattr(value, key, None)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"--fit {path}: is not a number in this scenario") from None
    if not 0 < number < inf:
        raise UsageError(f"--fit {path}: starts at {number:g}; give it a positive value with --set")
    return number


def fitted(start: Numbers, predictions_for: Callable[[Numbers], Sequence[Prediction]]) -> Numbers:
    """Numbers that approximately minimize the mean error of step times, to four digits; `start` if none is less.

    Args:
        start: the initial numbers.
        predictions_for: numbers → the predictions of the rows to fit.

    Raises:
        UsageError: no row with a measured step time can be predicted.
    """
    paths = list(start)
    highest, error_at = most_of(paths), errors_of(paths, predictions_for)
    point = np.array([log(start[path]) for path in paths])
    first = now = error_at(point)
    if not np.isfinite(now).any():
        raise UsageError("--fit: no row with a measured time can be predicted")
    for _ in range(ROUNDS):
        move = least_move(*slopes_at(point, now, error_at), highest - point)
        point, then, done = _improved(point, move, now, error_at)
        if done:
            break
        now = then
    rounded = {path: float(f"{exp(value):.{DIGITS}g}") for path, value in zip(paths, point, strict=True)}
    return rounded if _less(error_at(np.array([log(rounded[path]) for path in paths])), first) else start


def errors_of(
    paths: Sequence[str], predictions_for: Callable[[Numbers], Sequence[Prediction]]
) -> Callable[[Vector], Vector]:
    """Logarithms of numbers → those of predicted over measured of each row; NaN where there is no prediction."""

    def error_at(point: Vector) -> Vector:
        numbers = {path: exp(value) for path, value in zip(paths, point, strict=True)}
        return np.array([log(p.time_ratio or nan) for p in predictions_for(numbers)])

    return error_at


def slopes_at(point: Vector, now: Vector, error_at: Callable[[Vector], Vector]) -> tuple[Vector, Vector]:
    """How the errors change with each number, and the errors now, of the rows for which both are known."""
    slopes = np.column_stack([(error_at(point - STEP * one) - now) / -STEP for one in np.eye(len(point))])
    usable = np.isfinite(now) & np.isfinite(slopes).all(axis=1)
    return slopes[usable], now[usable]


def most_of(paths: Sequence[str]) -> Vector:
    """The largest logarithms of these numbers: shares are at most 1."""
    return np.array([0.0 if path.startswith(SHARES) and "overhead" not in path else inf for path in paths])


def _improved(
    point: Vector, move: Vector, now: Vector, error_at: Callable[[Vector], Vector]
) -> tuple[Vector, Vector, bool]:
    """The point after the move or a part of it, the errors there, and whether the fit has converged."""
    for part in (move, move / 2, move / 4, move / 8):
        then = error_at(point + part)
        if _less(then, now):
            return point + part, then, bool(np.abs(part).max() < CLOSE)
    return point, now, True


def _less(then: Vector, now: Vector) -> bool:
    """Whether the mean error is less, of the rows that can be predicted now; not if one of them fails then (NaN)."""
    known = np.isfinite(now)
    return bool(np.abs(np.expm1(then[known])).mean() < np.abs(np.expm1(now[known])).mean())


def least_move(slopes: Vector, errors: Vector, room: Vector) -> Vector:
    """The move, at most `room` in each number, that minimizes the mean of |errors + slopes · move|."""
    move: Vector = np.zeros(len(room))
    free = np.ones(len(room), bool)
    for _ in room:
        rest = errors + slopes[:, ~free] @ move[~free]
        move[free] = _unbounded(slopes[:, free], rest)
        beyond = free & (move > room)
        if not beyond.any():
            break
        move[beyond] = room[beyond]  # then solve for the others again
        free &= ~beyond
    shorter: Vector = move * (FARTHEST / max(float(np.abs(move).max()), FARTHEST))
    return shorter


def _unbounded(slopes: Vector, errors: Vector) -> Vector:
    move: Vector = np.zeros(slopes.shape[1])
    for _ in range(60):
        weights = 1 / np.sqrt(np.maximum(np.abs(errors + slopes @ move), 1e-4))
        move = np.asarray(np.linalg.lstsq(slopes * weights[:, None], -errors * weights, rcond=None)[0], float)
    return move
