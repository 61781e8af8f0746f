"""Distributions of jitter: their means and deviations, and streams that know nothing of each other."""

import math

import numpy as np
import pytest

from hybrid_des.workload import distributions
from hybrid_des.workload.draws import Draws, stream

COUNT = 200_000
CASES = [
    ("normal", {"sigma": 0.1}, 1, 0.1),
    ("normal", {"sigma": 1}, 1, None),
    ("lognormal", {"sigma": 0.1}, 1, math.sqrt(math.exp(0.01) - 1)),
    ("exponential", {}, 1, 1),
    ("exponential", {"share": 0.25}, 1, 0.25),
    ("uniform", {"spread": 0.3}, 1, 0.3 / math.sqrt(3)),
    ("bernoulli", {"p": 0.1, "factor": 3}, 1.2, 0.6),
]


def sample(name, options, seed=1, count=COUNT):
    entry = distributions.find(name)
    return entry.build(*entry.arguments(options))(stream(seed, name), count)


@pytest.mark.parametrize(("name", "options", "mean", "deviation"), CASES)
def test_mean_and_deviation_are_those_of_the_table(name, options, mean, deviation):
    factors = sample(name, options)
    assert factors.min() >= 0
    assert abs(factors.mean() - mean) < 4 * factors.std() / math.sqrt(COUNT)
    if deviation is not None:
        spread = ((factors - mean) ** 2).std() / math.sqrt(COUNT)
        assert abs((factors**2).mean() - mean**2 - deviation**2) < 4 * (
            spread + 2 * mean * deviation / math.sqrt(COUNT)
        )


def test_every_distribution_is_tested():
    assert {name for name, *_ in CASES} == set(distributions.names())


@pytest.mark.parametrize("name", ["normal", "lognormal"])
def test_without_deviation_nothing_varies(name):
    assert set(sample(name, {"sigma": 0}, count=10)) == {1.0}


def test_streams_of_other_keys_and_seeds_differ():
    keys = [(1, "a", 0), (1, "a", 1), (1, "b", 0), (2, "a", 0)]
    firsts = {stream(seed, *key).random() for seed, *key in keys}
    assert len(firsts) == len(keys)
    assert stream(1, "a", 0).random() == stream(1, "a", 0).random()


def test_draws_do_not_depend_on_the_order_of_asking():
    entry = distributions.find("lognormal")
    kind = entry.build(*entry.arguments({"sigma": 0.1}))
    up, down = (Draws(stream(3, "x"), kind) for _ in range(2))
    assert [up.at(i) for i in range(300)] == [down.at(i) for i in reversed(range(300))][::-1]
    assert np.std(up) > 0
