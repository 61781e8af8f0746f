"""The three benchmarks of the first prototype: what a correct simulator shows where it was wrong."""

from fractions import Fraction

import pytest
from support.paths import SCENARIOS

from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.runner import sweep_rows
from hybrid_des.units import PICOSECONDS_PER_SECOND

MILLISECOND = PICOSECONDS_PER_SECOND // 1000


@pytest.fixture(scope="module")
def benchmark():
    """The rows of one of the sweeps, by name; each runs once."""
    known = {}

    def rows(name):
        if name not in known:
            known[name] = sweep_rows(load_sweep(SCENARIOS / "report" / f"{name}.yaml"))
        return known[name]

    return rows


def milliseconds(seconds):
    return Fraction(round(seconds * PICOSECONDS_PER_SECOND), MILLISECOND)


def steps(rows):
    return [milliseconds(row["step_time_s"]) for row in rows]


def of(rows, **values):
    return [row for row in rows if all(row[path.replace("__", ".")] == value for path, value in values.items())]


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
def test_more_microbatches_raise_the_speedup(benchmark, kind):
    rows = of(benchmark("microbatches"), schedule__kind=kind)
    assert steps(rows) == [430, 690, 1210, 2250]
    assert [round(row["speedup"], 2) for row in rows] == [2.42, 3.01, 3.44, 3.70]
    assert [round(100 * row["exposed_communication_ratio"], 1) for row in rows] == [9.3, 5.8, 3.3, 1.8]


def test_memory_grows_with_microbatches_for_gpipe_only(benchmark):
    rows = benchmark("microbatches")
    in_flight = {kind: [row["peak_activations"] for row in of(rows, schedule__kind=kind)] for kind in ("1f1b", "gpipe")}
    assert in_flight == {"1f1b": [[2, 1]] * 4, "gpipe": [[m, m] for m in (2, 4, 8, 16)]}
    peaks = [max(row["peak_memory_bytes"]) for row in of(rows, schedule__kind="gpipe")]
    assert peaks == [(4 + m) * 10**9 for m in (2, 4, 8, 16)]


def test_a_deeper_pipeline_of_the_same_model_is_faster(benchmark):
    rows = of(benchmark("depth"), workload__per="model")
    assert steps(rows) == [1040, 585, Fraction(3575, 10), Fraction(24375, 100)]
    assert [round(100 * row["bubble_ratio"], 1) for row in rows] == [0, 11.1, 27.3, 46.7]


def test_a_pipeline_with_more_stages_of_fixed_size_is_slower(benchmark):
    rows = of(benchmark("depth"), workload__per="rank")
    assert steps(rows) == [1040, 1170, 1430, 1950]
    assert [round(100 * row["bubble_ratio"], 1) for row in rows] == [0, 11.1, 27.3, 46.7]


@pytest.mark.parametrize(("parameters", "times"), [(250e6, [0, 20, 30, 35]), (500e6, [0, 40, 60, 70])])
def test_a_ring_of_more_replicas_stays_below_twice_the_bytes(benchmark, parameters, times):
    rows = of(benchmark("data_parallel"), workload__parameters=parameters)
    assert [milliseconds(row["gradient_communication_s"]["exposed"]) for row in rows] == times
    pipeline = [Fraction(130, 2) * (8 // d + 1) for d in (1, 2, 4, 8)]
    assert steps(rows) == [both + ring for both, ring in zip(pipeline, times, strict=True)]


def test_two_replicas_share_the_work_of_one(benchmark):
    (row,) = of(benchmark("data_parallel"), workload__parameters=500e6, parallel__data=2)
    assert steps([row]) == [365]
    assert round(row["speedup"], 2) == 2.85
