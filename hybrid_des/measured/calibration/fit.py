"""Quality of fit: how well a table, or one latency and one bandwidth, predicts measured times."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hybrid_des.cluster.time_table import TimeTable
from hybrid_des.measured.calibration.nccl_tests import Measurement
from hybrid_des.units import PICOSECONDS_PER_SECOND

LARGE = 2**20  # errors count above this size; smaller messages are latency-bound and vary from run to run


class Fit(NamedTuple):
    """Relative errors of predictions, and the number of sizes."""

    mean: float
    worst: float
    sizes: int


def fit_of_every_second(times: Sequence[Measurement]) -> Fit:
    """Error of a table of the 1st, 3rd, 5th … size at the sizes in between, above 1 MiB."""
    table = TimeTable(tuple((one.size, one.time) for one in times[::2]))
    return _fit((table.time(one.size), one.time) for one in times[1::2] if one.size > LARGE)


def fit_of_one_line(times: Sequence[Measurement]) -> Fit:
    """Error of one latency and one bandwidth, a least-squares fit of relative errors above 1 MiB."""
    large = [one for one in times if one.size > LARGE]
    line = _line(large) if len(large) >= 3 else None
    if line is None:
        return Fit(0.0, 0.0, 0)
    return _fit((line[0] + line[1] * one.size, one.time) for one in large)


def line_through(times: Sequence[Measurement]) -> tuple[float, float]:
    """The latency in seconds, at least 0, and the bytes per second that fit all sizes best by relative errors."""
    line = _line(times)
    if line is None or line[0] < 0 or line[1] <= 0:  # through zero: minimise Σ (b·s/t − 1)²
        ratios = [one.size / one.time for one in times]
        line = 0.0, sum(ratios) / sum(ratio * ratio for ratio in ratios)
    return line[0] / PICOSECONDS_PER_SECOND, PICOSECONDS_PER_SECOND / line[1]


def _line(times: Sequence[Measurement]) -> tuple[float, float] | None:
    """Picoseconds, and picoseconds per byte, that minimise Σ (a/t + b·s/t − 1)²; None if all sizes are the same."""
    u, v = [1 / one.time for one in times], [one.size / one.time for one in times]
    uu, uv, vv = sum(x * x for x in u), sum(x * y for x, y in zip(u, v, strict=True)), sum(y * y for y in v)
    determinant = uu * vv - uv * uv
    if determinant <= 0:
        return None
    return (sum(u) * vv - sum(v) * uv) / determinant, (sum(v) * uu - sum(u) * uv) / determinant


def _fit(pairs: Iterable[tuple[float, int]]) -> Fit:
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return Fit(sum(errors) / len(errors), max(errors), len(errors)) if errors else Fit(0.0, 0.0, 0)
