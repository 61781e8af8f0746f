"""Predictions against measurements: a corpus of published runs, its errors in percent, and a fit of some numbers to it.

sweep: {file: rows.csv}        # columns: keys of the scenario, measured.step_time_s, measured.peak_memory_bytes

predictions = predict(sweep, partial(sweep_rows, jobs=2))

A fit minimizes the mean of |ln(predicted/measured)| of step times, which is robust to outliers. Every round simulates
the rows once per number, to see how predictions depend on it, then solves the linear problem by iteratively reweighted
least squares and simulates its solution; a step that does not reduce the mean of |predicted/measured − 1|, the error
that is shown, is halved.
"""

from __future__ import annotations

import ast
import copy
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import exp, inf, log, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import ScenarioError, UsageError, unknown
from hybrid_des.options import describe
from hybrid_des.report.plots.style import LINES, MARKERS, legend, log_ticks, new_figure
from hybrid_des.report.plots.style import plain as plain_axes
from hybrid_des.scenario import misnamed, scenario_of
from hybrid_des.scenario.composition import put
from hybrid_des.sweep.axes import Case, Sweep, is_key, plain
from hybrid_des.sweep.runner import with_case
from hybrid_des.units import grouped_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = ("step_time_s", "peak_memory_bytes")  # keys of the summary that are compared
MEASURED = "measured."
LEAST, MOST = Fraction(1, 10**12), 10**18  # seconds, or bytes

RunCases = Callable[[Sweep], list[dict[str, Any]]]  # one row per case, with the keys of the summary or `error`


@dataclass(frozen=True)
class Prediction:
    """One row of a corpus.

    Attributes:
        case: its cells, numbers as plain ones.
        measured, predicted: figures by name; the maximum over all ranks.
        error: why nothing could be predicted.
    """

    case: Case
    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    error: str | None = None

    @property
    def name(self) -> str:
        """What the row is called in messages."""
        return str(self.case.get("name") or ", ".join(f"{k} {v}" for k, v in self.case.items() if is_key(k)))

    def ratio(self, figure: str) -> float | None:
        """Predicted over measured; None where either is missing."""
        if figure not in self.predicted or figure not in self.measured:
            return None
        return self.predicted[figure] / self.measured[figure]


def check_corpus(sweep: Sweep) -> None:
    """Check that every row has a measurement.

    Raises:
        UsageError: a column or a cell of measurements is wrong, or missing.
    """
    source, cases = sweep.document.source, list(sweep.cases())
    known = [MEASURED + figure for figure in FIGURES]
    columns = dict.fromkeys(column for case in cases for column in case if column.startswith(MEASURED))
    for column in columns:
        if column not in known:
            raise UsageError(f"{source}: {unknown(column, known)}")
    for number, case in enumerate(cases, start=1):
        found = {column: case[column] for column in known if column in case}
        if not found:
            raise UsageError(f"{source}: row {number} has no measurement; expected {' or '.join(known)}")
        for column, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not LEAST <= value <= MOST:
                wrong = f"expected a positive number, found {describe(value)}"
                raise UsageError(f"{source}: row {number}: {column}: {wrong}")


def predict(sweep: Sweep, run: RunCases) -> list[Prediction]:
    """Run every row."""
    found = []
    for case, row in zip(map(plain, sweep.cases()), run(sweep), strict=True):
        measured = {figure: float(case[MEASURED + figure]) for figure in FIGURES if MEASURED + figure in case}
        predicted = {figure: float(np.max(row[figure])) for figure in FIGURES if "error" not in row}
        found.append(Prediction(case, measured, predicted, row.get("error")))
    return found


class Errors(NamedTuple):
    """Errors of one figure over n rows.

    Attributes:
        mean_error_percent: mean of |predicted/measured − 1|; likewise the median, the 90th percentile (interpolated)
            and the worst.
        bias_percent: mean of predicted/measured − 1 with its sign; positive: predictions are too large.
    """

    n: int
    mean_error_percent: float
    median_error_percent: float
    p90_error_percent: float
    worst_error_percent: float
    bias_percent: float


def errors_of(ratios: Sequence[float]) -> Errors:
    """Errors of ratios predicted/measured, at least one."""
    signed = 100 * (np.asarray(ratios, float) - 1)
    amounts = np.abs(signed)
    figures = (amounts.mean(), np.median(amounts), np.percentile(amounts, 90), amounts.max(), signed.mean())
    return Errors(len(signed), *map(float, figures))


def errors_by_figure(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    """Errors of every figure that was measured and predicted in some row."""
    ratios = {figure: [p.ratio(figure) for p in predictions] for figure in FIGURES}
    known = {figure: [ratio for ratio in each if ratio is not None] for figure, each in ratios.items()}
    return {figure: errors_of(each) for figure, each in known.items() if each}


def grouped(predictions: Sequence[Prediction], column: str) -> Mapping[str, list[Prediction]]:
    """Rows by their value of a column; "" for those that have none."""
    return grouped_by(predictions, lambda prediction: str(prediction.case.get(column, "")))


# Conditions on rows, such as `split == "fit" and parallel.tensor in (1, 2)`, in Python syntax.


Condition = Callable[[Mapping[str, Any]], bool]

_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_WORDS = {"true": True, "false": False, "none": None}


def condition(text: str, columns: Iterable[str]) -> Condition:
    """Read a condition; a cell that is missing is None.

    Raises:
        UsageError: it is not a comparison of columns and values, or there is no such column.
    """
    known = sorted(columns)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # such as about 1not
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _wrong(text) from None
    _check(tree, known, text)
    return lambda row: bool(_value_of(tree, row, text))


def _name(node: ast.AST) -> str:
    """A column, which may have dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _name(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _check(node: ast.AST, known: Sequence[str], text: str) -> None:
    name = _name(node)
    if name and name not in known and name not in _WORDS:
        raise UsageError(f"{text}: {unknown(name, known)}")
    for part in () if name else ast.iter_child_nodes(node):
        _check(part, known, text)


def _value_of(node: ast.AST, row: Mapping[str, Any], text: str) -> Any:
    if name := _name(node):
        return _WORDS[name] if name in _WORDS else row.get(name)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [_value_of(part, row, text) for part in node.elts]
    if isinstance(node, ast.BoolOp):
        check = all if isinstance(node.op, ast.And) else any
        return check(_value_of(part, row, text) for part in node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _value_of(node.operand, row, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value_of(node.operand, row, text)
        if not isinstance(value, int | float):
            raise _wrong(text)
        return -value
    if isinstance(node, ast.Compare) and all(type(one) in _COMPARE for one in node.ops):
        values = [_value_of(part, row, text) for part in (node.left, *node.comparators)]
        return all(_compared(op, a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False))
    raise _wrong(text)


def _compared(op: ast.cmpop, one: Any, other: Any) -> bool:
    try:
        return _COMPARE[type(op)](one, other)
    except TypeError:  # a text and a number, or a missing cell, have no order
        return False


def _wrong(text: str) -> UsageError:
    return UsageError(f"""{text}: expected a condition on columns, such as split == "fit" and parallel.tensor > 1""")


NAMES = {"step_time_s": ("step time", "s", 1.0), "peak_memory_bytes": ("peak memory", "GB", 1e9)}
MOST_GROUPS = 8


def picture(title: str, predictions: Sequence[Prediction], by: str | None = None) -> Figure:
    """One pair of axes per figure; colours show the values of a column, if they are few."""
    shown = [figure for figure in FIGURES if any(p.ratio(figure) for p in predictions)]
    panels = max(1, len(shown))
    figure = new_figure((5.2 * panels, 5.6))
    axes = figure.subplots(2, panels, squeeze=False, sharex="col", height_ratios=(3, 1))
    groups = grouped(predictions, by) if by else {}
    few = groups if 0 < len(groups) <= MOST_GROUPS else {"": list(predictions)}
    for column, name in enumerate(shown):
        _panel(axes[0, column], axes[1, column], name, few)
    if len(few) > 1 and shown:
        legend(axes[0, -1], title=by)
    figure.suptitle(title, fontsize=10)
    return figure


def _panel(above: Axes, below: Axes, name: str, groups: Mapping[str, list[Prediction]]) -> None:
    words, unit, scale = NAMES[name]
    for i, (label, rows) in enumerate(groups.items()):
        pairs = [(p.measured[name] / scale, ratio) for p in rows if (ratio := p.ratio(name)) is not None]
        style: dict[str, Any] = {"color": LINES[i % len(LINES)], "marker": MARKERS[i % len(MARKERS)], "linestyle": ""}
        measured = [pair[0] for pair in pairs]
        above.plot(measured, [value * ratio for value, ratio in pairs], label=label, markersize=5, **style)
        below.plot(measured, [100 * (ratio - 1) for _, ratio in pairs], markersize=4, **style)
    for ax in (above, below):
        ax.set_xscale("log")
        plain_axes(ax)
    above.set_yscale("log")
    ends = (*above.get_xlim(), *above.get_ylim())
    for axis in (below.xaxis, above.yaxis):  # above has the x axis of below
        log_ticks(axis)
    above.axline((min(ends), min(ends)), (max(ends), max(ends)), color="0.6", linewidth=1, zorder=0)
    below.axhline(0, color="0.6", linewidth=1, zorder=0)
    above.set_ylabel(f"predicted {words} ({unit})")
    below.set_ylabel("error (%)")
    below.set_xlabel(f"measured {words} ({unit})")


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


def _number(scenario: Any, path: str) -> float:
    value = scenario
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
    highest = np.array([0.0 if path.startswith(SHARES) and "overhead" not in path else inf for path in paths])

    def error_at(point: Vector) -> Vector:
        numbers = {path: exp(value) for path, value in zip(paths, point, strict=True)}
        return np.array([log(p.ratio("step_time_s") or nan) for p in predictions_for(numbers)])

    point = np.array([log(start[path]) for path in paths])
    first = now = error_at(point)
    if not np.isfinite(now).any():
        raise UsageError("--fit: no row with measured.step_time_s can be predicted")
    for _ in range(ROUNDS):
        slopes = np.column_stack([(error_at(point - STEP * one) - now) / -STEP for one in np.eye(len(paths))])
        usable = np.isfinite(now) & np.isfinite(slopes).all(axis=1)
        move = _least(slopes[usable], now[usable], highest - point)
        point, then, done = _improved(point, move, now, error_at)
        if done:
            break
        now = then
    rounded = {path: float(f"{exp(value):.{DIGITS}g}") for path, value in zip(paths, point, strict=True)}
    return rounded if _less(error_at(np.array([log(rounded[path]) for path in paths])), first) else start


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


def _least(slopes: Vector, errors: Vector, room: Vector) -> Vector:
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
