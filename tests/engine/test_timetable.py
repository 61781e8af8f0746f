"""Timetables: work done under a factor that changes, in whole picoseconds and fractions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.engine.timetable import Interval, Noise, PiecewiseRate

HALF = Fraction(1, 2)
TIMES = st.integers(0, 60)
FACTORS = st.sampled_from([Fraction(0), Fraction(1, 3), HALF, Fraction(1), Fraction(2)])
SPELLS = st.lists(
    st.builds(
        lambda start, length, factor: Interval(start, start + length, factor), TIMES, st.integers(1, 30), FACTORS
    ),
    max_size=4,
)
NOISES = st.one_of(
    st.none(),
    st.integers(2, 9).flatmap(
        lambda period: st.builds(Noise, st.just(period), st.integers(1, period - 1), st.integers(0, period - 1))
    ),
)


@pytest.mark.parametrize(
    ("spells", "start", "work", "end"),
    [
        ([], 5, 10, 15),
        ([Interval(0, None, HALF)], 5, 10, 25),
        ([Interval(2, 6, HALF)], 0, 10, 12),  # 2 + 2 + 6
        ([Interval(2, 6, HALF)], 6, 10, 16),
        ([Interval(2, 6, HALF)], 0, 2, 2),
        ([Interval(3, 5, Fraction(0))], 0, 10, 12),
        ([Interval(3, 5, Fraction(0))], 4, 1, 6),
        ([Interval(0, 8, HALF), Interval(4, None, HALF)], 0, 4, 10),  # 2 by 4, at a quarter 3 by 8, at a half 4 by 10
    ],
)
def test_work_ends_where_the_integral_says(spells, start, work, end):
    assert PiecewiseRate.of(spells).end(start, work) == end


@given(SPELLS, NOISES, TIMES, st.integers(0, 50))
def test_ends_are_those_of_a_walk_in_small_steps(spells, noise, start, work):
    """Every third of a picosecond, so that the factors of 1/3 fit; the end is exact before it is rounded."""
    table = PiecewiseRate.of(spells, noise)
    at, left = Fraction(start), Fraction(work)
    while left > 0:
        factor = _factor(spells, noise, at)
        step = Fraction(1, 6)
        if factor and left <= factor * step:
            at, left = at + left / factor, Fraction(0)
        else:
            at, left = at + step, left - factor * step
    assert table.end(start, work) == round(at)


def _factor(spells, noise, at):
    factor = Fraction(1)
    for spell in spells:
        if spell.start <= at < spell.until:
            factor *= spell.factor
    busy = noise is not None and (at - noise.phase) % noise.period < noise.detour
    return Fraction(0) if busy else factor


@given(SPELLS, NOISES, st.tuples(TIMES, TIMES, TIMES))
def test_work_adds_up_over_intervals(spells, noise, times):
    table = PiecewiseRate.of(spells, noise)
    first, second, third = sorted(times)
    assert table.work(first, second) + table.work(second, third) == table.work(first, third)


def test_noise_lengthens_work_by_the_share_of_its_detours():
    noise = PiecewiseRate.of([], Noise(period=10, detour=1, phase=3))
    assert noise.end(0, 9 * 1000) == 10 * 1000
    assert noise.constant is None
    assert PiecewiseRate.of([]).constant == 1


def test_equal_neighbours_are_one_factor():
    table = PiecewiseRate.of([Interval(3, 5, HALF), Interval(5, 9, HALF)])
    assert (table.starts, table.next_change(3), table.next_change(9)) == ((0, 3, 9), 9, None)
    assert PiecewiseRate.of([Interval(3, 5, Fraction(0)), Interval(4, 9, HALF)]).resumes(3) == 5
