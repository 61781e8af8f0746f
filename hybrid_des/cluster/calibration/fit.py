"""Quality of fit: how well a table, or one latency and one bandwidth, predicts measured times."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hybrid_des.cluster.calibration.nccl_tests import Measurement
from hybrid_des.cluster.time_table import TimeTable

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
    # minimise Σ (a/t + b·s/t − 1)²
    u, v = [1 / one.time for one in large], [one.size / one.time for one in large]
    uu, uv, vv = sum(x * x for x in u), sum(x * y for x, y in zip(u, v, strict=True)), sum(y * y for y in v)
    determinant = uu * vv - uv * uv
    if len(large) < 3 or determinant <= 0:
        return Fit(0.0, 0.0, 0)
    a = (sum(u) * vv - sum(v) * uv) / determinant
    b = (sum(v) * uu - sum(u) * uv) / determinant
    return _fit((a + b * one.size, one.time) for one in large)


def _fit(pairs: Iterable[tuple[float, int]]) -> Fit:
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return Fit(sum(errors) / len(errors), max(errors), len(errors)) if errors else Fit(0.0, 0.0, 0)
