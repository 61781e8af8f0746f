"""Errors of predictions: relative to the measurement, in percent, overall and by the values of a column."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hybrid_des.validation.corpus import FIGURES, Prediction


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
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(str(prediction.case.get(column, "")), []).append(prediction)
    return groups
