"""Mean and percentiles of a sample, each with a confidence interval, and of the differences between paired samples.

The interval of a mean is mean ± 1.96 s/√n; that of a percentile lies between two values of the ordered sample, whose
positions follow from the binomial number of values below it (Conover, Practical Nonparametric Statistics, 1999,
section 3.2). Where the sample is too small to have such a value, the interval has no bound.
"""

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95


PERCENTILES = (50, 90, 99)


class Estimate(NamedTuple):
    """An estimate and its confidence interval; an end is None where the sample is too small to tell."""

    value: float
    low: float | None
    high: float | None


def estimates_of(sample: ArrayLike) -> dict[str, Estimate]:
    """The figures of a sample of at least 2 numbers: `mean`, `p50`, `p90`, `p99`."""
    ordered = np.sort(np.asarray(sample, dtype=np.float64))
    wide = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    mean, error = float(ordered.mean()), float(ordered.std(ddof=1)) / math.sqrt(len(ordered))
    estimates = {"mean": Estimate(mean, mean - wide * error, mean + wide * error)}
    for percent in PERCENTILES:
        share = percent / 100
        about, by = share * len(ordered), wide * math.sqrt(len(ordered) * share * (1 - share))
        low, high = math.floor(about - by) - 1, math.ceil(about + by)
        estimates[f"p{percent}"] = Estimate(
            float(np.percentile(ordered, percent)),
            float(ordered[low]) if low >= 0 else None,
            float(ordered[high]) if high < len(ordered) else None,
        )
    return estimates


def as_mapping(sample: ArrayLike) -> dict[str, Any]:
    """The figures of a sample for JSON, with its size, standard deviation, minimum and maximum."""
    numbers = np.asarray(sample, dtype=np.float64)
    mapping: dict[str, Any] = {"n": len(numbers)}
    for name, estimate in estimates_of(sample).items():
        mapping |= {name: estimate.value, f"{name}_ci95": [estimate.low, estimate.high]}
    return {**mapping, "std": float(numbers.std(ddof=1)), "min": float(numbers.min()), "max": float(numbers.max())}
