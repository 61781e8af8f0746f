"""Every codec: sizes, rounding, and what it does with empty, constant, tiny, huge and impossible input."""

import numpy as np
import pytest

from hybrid_des.collectives import codecs
from hybrid_des.errors import NumericsError

EVERY = codecs.names()


def make(name):
    return codecs.find(name).build()


def round_trip(name, values):
    codec = make(name)
    return codec.decode(codec.encode(np.asarray(values, dtype=float)))


def test_the_codecs_of_the_contract_are_there():
    assert {"fp64", "fp32", "fp16", "bf16", "int8", "fp4"} <= set(EVERY)


@pytest.mark.parametrize("elements", [0, 1, 15, 16, 17, 30, 1000])
@pytest.mark.parametrize("name", EVERY)
def test_the_sizes_asked_for_are_the_sizes_that_travel(name, elements):
    codec = make(name)
    payload = codec.encode(np.random.default_rng(0).normal(size=elements))
    assert payload.payload_bytes == codec.payload_bytes(elements)
    assert payload.scale_bytes == codec.scale_bytes(elements)
    assert codec.decode(payload).shape == (elements,)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_codec_sends_what_is_not_a_number(name, bad):
    with pytest.raises(NumericsError, match=r"element 2 of 4 is -?(nan|inf)"):
        make(name).encode(np.array([1.0, 2.0, bad, 4.0]))


@pytest.mark.parametrize("name", EVERY)
def test_zeros_come_back_as_zeros(name):
    assert not round_trip(name, np.zeros(40)).any()


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"top-k"}))
def test_encoding_again_what_was_decoded_changes_nothing(name):
    once = round_trip(name, np.random.default_rng(1).normal(size=200))
    assert np.array_equal(round_trip(name, once), once)


@pytest.mark.parametrize(("name", "bound"), [("fp64", 0.0), ("fp32", 2.0**-24), ("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_relative_error_of_the_floating_ones(name, bound):
    values = np.random.default_rng(2).normal(size=5000)
    values = values[np.abs(values) > 1e-4]
    errors = np.abs(round_trip(name, values) - values) / np.abs(values)
    assert errors.max() <= bound
    assert errors.max() >= 0.9 * bound


def test_int8_errs_by_half_a_scale_at_most():
    values = np.random.default_rng(3).normal(size=5000)
    assert np.abs(round_trip("int8", values) - values).max() <= np.abs(values).max() / 254 * (1 + 1e-6)


@pytest.mark.parametrize("constant", [3.0, -0.1, 1e-30, 1e30])
@pytest.mark.parametrize("name", ["int8", "fp4"])
def test_scaled_codecs_hold_constants_to_the_rounding_of_scales(constant, name):
    assert round_trip(name, np.full(7, constant)) == pytest.approx(np.full(7, constant), rel=1e-6)


@pytest.mark.parametrize("name", ["int8", "fp4"])
def test_scaled_codecs_give_up_what_their_scale_cannot_hold(name):
    assert not round_trip(name, [1e-37, -1e-40]).any()


@pytest.mark.parametrize("name", ["int8", "fp4"])
def test_scaled_codecs_are_symmetric(name):
    values = np.random.default_rng(4).normal(size=101)
    assert np.array_equal(round_trip(name, -values), -round_trip(name, values))


def test_fp4_rounds_to_powers_of_two_in_half_a_byte():
    values = [64, -1.5, 1.51, 0.5, -0.51, 3, 5.9, 6.1, 48.1]
    assert round_trip("fp4", values).tolist() == [64, -1, 2, 0, -1, 2, 4, 8, 64]
    assert make("fp4").payload_bytes(9) == 5
    random = np.random.default_rng(5).normal(size=5000)
    errors = np.abs(round_trip("fp4", random) / random - 1)[np.abs(random) > np.abs(random).max() / 64]
    assert 0.33 < errors.max() <= 1 / 3


@pytest.mark.parametrize(("name", "largest", "beyond"), [
    ("fp16", 65504.0, 65520.0),
    ("fp32", float(np.finfo(np.float32).max), 3.5e38),
    ("bf16", 3.3895e38, 3.4e38),
    ("int8", 3.4e38, 3.5e38),
    ("fp4", 3.4e38, 3.5e38),
    ("top-k", 3.4e38, 3.5e38),
])  # fmt: skip
def test_overflow_is_said_and_not_sent(name, largest, beyond):
    assert round_trip(name, [-largest])[0] == pytest.approx(-largest, rel=1e-2)
    with pytest.raises(NumericsError, match=r"element 1 of 2 .* too large"):
        make(name).encode(np.array([0.0, beyond]))


def test_bf16_rounds_ties_to_even():
    assert round_trip("bf16", [1 + 2**-8, 1 + 3 * 2**-8, 257.0, -257.0]).tolist() == [1.0, 1 + 2**-6, 256.0, -256.0]


def test_top_k_keeps_the_largest_in_their_places():
    values = np.arange(32.0)
    values[5] = -100.0
    expected = np.zeros(32)
    expected[[5, 31]] = -100.0, 31.0
    assert round_trip("top-k", values).tolist() == expected.tolist()
