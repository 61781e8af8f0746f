"""Closed forms for checkpoints, restarts and spares give the published figures."""

import math

import pytest
from support.tables import from_table
from support.weeks import expected_goodput, segment_time

from hybrid_des.studies.goodput.summary import at_most, confidence, share_down, student
from hybrid_des.studies.goodput.work import best_interval, daly, young


@from_table
def test_best_intervals_to_six_digits(cost, mtbf, by_young, by_daly, exact):
    assert young(cost, mtbf) == pytest.approx(by_young, abs=5e-7)
    assert daly(cost, mtbf) == pytest.approx(by_daly, abs=5e-7)
    assert best_interval(cost, mtbf) == pytest.approx(exact, abs=5e-7)


@pytest.mark.parametrize("ratio", [1e-12, 1e-6, 0.01, 0.5, 1, 2])
def test_the_exact_interval_solves_its_equation(ratio):
    """In Lambert's form w·e^w = −e^(−C/M − 1) with w = τ/M − 1, as logarithms."""
    w = best_interval(ratio, 1) - 1
    assert -1 <= w <= 0
    assert w + math.log(-w) == pytest.approx(-1 - ratio, abs=1e-13)


def test_no_interval_is_better_than_the_exact_one():
    best = best_interval(60, 10800)
    times = [segment_time(tau + 60, 300, 10800) / tau for tau in (best, best * 0.999, best * 1.001)]
    assert min(times) == times[0]


def test_daly_gives_up_where_a_checkpoint_takes_too_long():
    assert daly(200, 100) == daly(300, 100) == 100


@from_table
def test_expected_segments_and_goodput(sizes, mean, goodput, mean_if_safe, goodput_if_safe):
    tau, cost, restart = sizes
    assert segment_time(tau + cost, restart, 10800) == pytest.approx(mean, abs=5e-7)
    assert segment_time(tau + cost, restart, 10800, can_fail=False) == pytest.approx(mean_if_safe, abs=5e-7)
    assert expected_goodput(*sizes, 10800) == pytest.approx(goodput, abs=5e-7)
    assert expected_goodput(*sizes, 10800, can_fail=False) == pytest.approx(goodput_if_safe, abs=5e-7)


def test_availability_of_spares_is_binomial():
    assert at_most(16, 2048 + 16, share_down(263.95, 1)) == pytest.approx(0.997191, abs=5e-7)
    assert at_most(1, 2, 0.5) == pytest.approx(0.75, abs=1e-12)
    assert at_most(5, 5, 0.1) == pytest.approx(1, abs=1e-12)
    assert at_most(0, 3, share_down(100, 0)) == 1


def test_rsc_is_productive_as_the_exponential_says():
    """16,000 GPUs that fail 6.5 times per 1,000 node-days, 5 min lost per restart (HPCA 2025)."""
    mtbf = 86400 / (2000 * 6.5 / 1000)
    assert expected_goodput(3600, 0, 300, mtbf) == pytest.approx(0.720242, abs=5e-7)
    assert expected_goodput(300, 0, 300, mtbf) == pytest.approx(0.934454, abs=5e-7)


@pytest.mark.parametrize(("freedom", "quantile"), [(3, 3.1824), (7, 2.3646), (31, 2.0395), (10**6, 1.95997)])
def test_the_quantile_of_student_is_that_of_tables(freedom, quantile):
    assert student(freedom) == pytest.approx(quantile, rel=2e-3)


def test_confidence_needs_four_values():
    assert confidence([1.0, 2.0, 3.0]) is None
    assert confidence([5.0] * 4) == [5.0, 5.0]
