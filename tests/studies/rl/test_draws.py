"""Draws of a loop: means after the cut, and the same samples for all who run them."""

import numpy as np
import pytest
from support.loops import Engine, loop_scenario, looped

from hybrid_des.studies.rl.draws import GroupDraws, cut_mean, cut_middle, drawn_lengths
from hybrid_des.workload.draws import stream


@pytest.mark.parametrize(("mean", "sigma", "most"), [(1600, 1.0, 28672), (700, 1.0, 1000), (30, 2, 4000), (5, 0.1, 64)])
def test_the_mean_is_that_after_the_cut(mean, sigma, most):
    section = loop_scenario(response={"kind": "lognormal", "mean": mean, "sigma": sigma, "max": most}).rl.response
    lengths = drawn_lengths(section, stream(0, "test"))
    drawn = np.array([lengths.take() for _ in range(100_000)])
    assert drawn.max() <= most and drawn.min() >= 1
    assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / 100_000**0.5)


def test_the_mean_after_the_cut_is_an_integral():
    middle, numbers = cut_middle(700, 1.0, 1, 1000), np.linspace(-9, 9, 2_000_001)
    density = np.exp(-(numbers**2) / 2) / np.sqrt(2 * np.pi)
    integral = np.sum(np.clip(np.exp(middle + numbers), 1, 1000) * density) * (numbers[1] - numbers[0])
    assert integral == pytest.approx(700, rel=1e-6)
    assert cut_mean(middle, 1.0, 1, 1000) == pytest.approx(700, rel=1e-12)


def test_a_mean_without_a_spread_is_the_length():
    section = loop_scenario(response={"kind": "lognormal", "mean": 30, "sigma": 0, "max": 64}).rl.response
    assert drawn_lengths(section, stream(0, "test")).take() == 30


@pytest.mark.parametrize("seed", [0, 7])
def test_groups_do_not_depend_on_who_runs_them(seed):
    records = [
        looped(
            loop_scenario(steps=4, seed=seed, ahead=ahead, order=order, rollout={"concurrency": places}), Engine(step)
        )
        for ahead, order, places, step in ((0, "oldest", 2, 10), (2, "completed", 9, 1000))
    ]
    drawn = [{(one.group, n % 4): one.response for n, one in enumerate(record.samples)} for record in records]
    both = drawn[0].keys() & drawn[1].keys()
    assert len(both) >= 32 and all(drawn[0][key] == drawn[1][key] for key in both)


def test_a_topic_has_a_stream_of_its_own():
    turns = {"count": {"kind": "uniform", "max": 4}, "wait": {"time": "1 s", "distribution": "exponential"}}
    plain, with_turns = (
        GroupDraws(loop_scenario(**keys).rl, 0) for keys in ({}, {"turns": turns, "reward": {"time": "1 s"}})
    )
    for _ in range(20):
        one, other = plain.next(), with_turns.next()
        assert one.responses == other.responses
        assert other.rewards == (10**12,) * 4
        for response, ends, waits in zip(other.responses, other.parts, other.waits, strict=True):
            assert ends[-1] == response and len(waits) == len(ends) - 1
            assert np.diff((0, *ends)).min() >= 1 and np.ptp(np.diff((0, *ends))) <= 1


def test_a_share_of_groups_is_filtered():
    draws = GroupDraws(loop_scenario(filter=0.25).rl, 0)
    assert np.mean([draws.next().filtered for _ in range(8000)]) == pytest.approx(0.25, abs=0.02)
