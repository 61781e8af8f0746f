"""A corpus: a scenario, and rows of values of its keys with measurements.

sweep: {file: rows.csv}        # columns: keys of the scenario, measured.step_time_s, measured.peak_memory_bytes

predictions = predict(sweep, partial(sweep_rows, jobs=2))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hybrid_des.errors import UsageError, unknown
from hybrid_des.options import describe
from hybrid_des.sweep.axes import Case, Sweep
from hybrid_des.sweep.rows import is_key, plain

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
    return [_compared(plain(case), row) for case, row in zip(sweep.cases(), run(sweep), strict=True)]


def _compared(case: Case, row: Mapping[str, Any]) -> Prediction:
    measured = {figure: float(case[MEASURED + figure]) for figure in FIGURES if MEASURED + figure in case}
    if "error" in row:
        return Prediction(case, measured, {}, str(row["error"]))
    return Prediction(case, measured, {figure: _largest(row[figure]) for figure in FIGURES})


def _largest(figure: float | Sequence[float]) -> float:
    return float(max(figure) if isinstance(figure, Sequence) else figure)
