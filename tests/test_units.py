"""Quantities are read exactly, and what is not one is refused with a sentence."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.units import (
    PICOSECONDS_PER_SECOND,
    format_bytes,
    format_seconds,
    parse_quantity,
    split_evenly,
    to_picoseconds,
    to_seconds,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("50 ms", "time", Fraction(1, 20)),
        ("1.5us", "time", Fraction(3, 2 * 10**6)),
        ("2 µs", "time", Fraction(2, 10**6)),
        ("2 μs", "time", Fraction(2, 10**6)),
        ("1 h", "time", 3600),
        ("0", "time", 0),
        ("1e-6", "time", Fraction(1, 10**6)),
        ("64 MiB", "size", 64 * 2**20),
        ("64 MB", "size", 64 * 10**6),
        ("8 Gb", "size", 10**9),
        ("1 kB", "size", 1000),
        ("1 KiB", "size", 1024),
        (".5 B", "size", Fraction(1, 2)),
        ("25 GB/s", "bandwidth", 25 * 10**9),
        ("200 Gb/s", "bandwidth", 25 * 10**9),
        ("25 GiB/s", "bandwidth", 25 * 2**30),
        ("312 TFLOP/s", "compute", 312 * 10**12),
        ("125e6", "number", 125 * 10**6),
        (0.1, "time", Fraction(1, 10)),
        (3, "time", 3),
        (Fraction(1, 3), "time", Fraction(1, 3)),
    ],
)
def test_reads_exactly(text, dimension, value):
    assert parse_quantity(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "said"),
    [
        ("50 mss", "time", 'unknown unit "mss"'),
        ("50 MB", "time", "is a size; expected a time"),
        ("5 s", "size", "is a time; expected a size"),
        ("25 GB", "bandwidth", "is a size; expected a bandwidth"),
        ("125 M", "number", 'unknown unit "M"'),
        ("-1 s", "time", "negative"),
        (-1, "time", "negative"),
        ("", "time", "is not a quantity"),
        ("ms", "time", "is not a quantity"),
        ("1 2 s", "time", "is not a quantity"),
        ("1 ms s", "time", "is not a quantity"),
        ("1_000", "time", "_000"),
        ("1e9999", "number", "e9999"),
        ("inf", "time", "is not a quantity"),
        ("nan", "time", "is not a quantity"),
        (float("nan"), "time", "is not a quantity"),
        (True, "time", "not true"),
        ("KB", "size", "is not a quantity"),
        ("1 KB", "size", 'unknown unit "KB"'),
    ],
)
def test_refuses_with_a_sentence(text, dimension, said):
    with pytest.raises(ValueError, match="expected") as error:
        parse_quantity(text, dimension)
    assert said in str(error.value)


@given(st.integers(0, 10**15), st.integers(0, 9))
def test_decimals_are_exact(digits, places):
    text = f"{digits}e-{places} s"
    assert parse_quantity(text, "time") == Fraction(digits, 10**places)


@given(st.integers(0, 10**12), st.integers(1, 50))
def test_parts_add_up_and_differ_by_at_most_one(total, parts):
    pieces = split_evenly(total, parts)
    assert len(pieces) == parts
    assert sum(pieces) == total
    assert max(pieces) - min(pieces) <= 1


@given(st.integers(0, 10**18))
def test_picoseconds_survive_the_way_out_and_back(picoseconds):
    assert to_picoseconds(Fraction(picoseconds, PICOSECONDS_PER_SECOND)) == picoseconds
    assert to_seconds(picoseconds) == picoseconds / PICOSECONDS_PER_SECOND


def test_half_a_picosecond_goes_to_the_even_one():
    assert [to_picoseconds(Fraction(n, 2 * 10**12)) for n in (1, 3, 5)] == [0, 2, 2]


def test_writes_for_people():
    assert [format_seconds(s) for s in (0, 1.21, 0.07001, 3.2e-6, 5e-9, 7e-12)] == [
        *("0 s", "1.21 s", "70.01 ms", "3.2 µs", "5 ns", "7 ps"),
    ]
    assert [format_seconds(s) for s in (9999.4, 12345.6, 0.9999999)] == ["9999 s", "12,346 s", "1000 ms"]
    assert [format_bytes(b) for b in (0, 999, 1200, 1.2e9)] == ["0 B", "999 B", "1.2 kB", "1.2 GB"]
