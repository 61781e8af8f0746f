"""Predictions against measurements: a corpus of published runs, its errors in percent, and a fit of some numbers to it.

sweep: {file: rows.csv}        # columns: keys of the scenario, measured.step_time_s, measured.peak_memory_bytes;
                               # or collective.name, collective.bytes, measured.collective_time_s

predictions = predict(sweep, partial(sweep_rows, jobs=2))

A fit minimizes the mean of |ln(predicted/measured)| of step times, which is robust to outliers. Every round simulates
the rows once per number, to see how predictions depend on it, then solves the linear problem by iteratively reweighted
least squares and simulates its solution; a step that does not reduce the mean of |predicted/measured − 1|, the error
that is shown, is halved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.errors import UsageError, unknown
from hybrid_des.options import describe
from hybrid_des.studies.sweep.axes import Case, Sweep, is_key, plain
from hybrid_des.units import grouped_by

# keys of the summary that are compared, and the time of a row's collective
FIGURES = ("step_time_s", "collective_time_s", "peak_memory_bytes")


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

    @property
    def time_ratio(self) -> float | None:
        """Predicted over measured time, of the step or of the collective."""
        return self.ratio("step_time_s") or self.ratio("collective_time_s")

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
        values = {column: case[column] for column in known if column in case}
        if not values:
            raise UsageError(f"{source}: row {number} has no measurement; expected {' or '.join(known)}")
        for column, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not LEAST <= value <= MOST:
                wrong = f"expected a positive number, found {describe(value)}"
                raise UsageError(f"{source}: row {number}: {column}: {wrong}")


def predict(sweep: Sweep, run: RunCases) -> list[Prediction]:
    """Run every row."""
    predictions = []
    for case, row in zip(map(plain, sweep.cases()), run(sweep), strict=True):
        measured = {figure: float(case[MEASURED + figure]) for figure in FIGURES if MEASURED + figure in case}
        predicted = {figure: float(np.max(row[figure])) for figure in FIGURES if figure in row}
        predictions.append(Prediction(case, measured, predicted, row.get("error")))
    return predictions


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
