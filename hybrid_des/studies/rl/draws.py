"""Prompts, responses, turns, waits, rewards and filters, drawn from the seed group by group.

Each topic has a stream of its own, and groups are drawn in the order of their numbers, whoever runs them and when: two
loops with the same seed have the same samples.

A lognormal response has the `mean` after its cut. With X = exp(µ + σZ), least a and most m, µ solves (by bisection)

    E[min(max(X, a), m)] = a Φ(α) + exp(µ + σ²/2) (Φ(β − σ) − Φ(α − σ)) + m (1 − Φ(β)),

α = (ln a − µ)/σ, β = (ln m − µ)/σ: the partial expectation of a log-normal number (Johnson, Kotz and Balakrishnan,
Continuous Univariate Distributions 1, 1994, section 14.3). Lengths are rounded to the nearest whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import erfc, exp, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.options import LONGEST
from hybrid_des.scenario.sections.data import Lengths
from hybrid_des.scenario.sections.rl import Delay, Rl
from hybrid_des.units import PICOSECONDS_PER_SECOND, split_evenly
from hybrid_des.workload import distributions
from hybrid_des.workload import lengths as kinds
from hybrid_des.workload.draws import BLOCK, stream
from hybrid_des.workload.lengths import Documents, LengthRequest, endless


class DrawnGroup(NamedTuple):
    """A prompt and its samples.

    Attributes:
        prompt: tokens of the prompt.
        responses: tokens of each response.
        parts: tokens of each response up to the end of each of its parts; the last is the response.
        waits: picoseconds of the tool after each part but the last, for each response.
        rewards: picoseconds of each reward: one per sample, or one for all.
        filtered: whether all samples have the same reward, and are thrown away.
    """

    prompt: int
    responses: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    waits: tuple[tuple[int, ...], ...]
    rewards: tuple[int, ...]
    filtered: bool


class GroupDraws:
    """Draws groups, each in its turn.

    Args:
        rl: the section.
        seed: of the scenario.
    """

    def __init__(self, rl: Rl, seed: int) -> None:
        self._rl, self._seed = rl, seed
        self._prompts = self._lengths(rl.prompt, "prompt")
        self._responses = self._lengths(rl.response, "response")
        turns, reward = rl.turns, rl.reward
        self._counts = None if turns is None else self._lengths(turns.count, "turns")
        self._waits = None if turns is None else self._delays(turns.wait, "wait")
        self._rewards = None if reward is None else self._delays(reward, "reward")
        self._per_group = reward is not None and reward.per == "group"
        self._share = float(rl.filter)
        self._filters = _shares(stream(seed, "rl", "filter")) if rl.filter else None

    def _lengths(self, section: Lengths, topic: str) -> Documents:
        return drawn_lengths(section, stream(self._seed, "rl", topic))

    def _delays(self, section: Delay, topic: str) -> Iterator[int]:
        return drawn_delays(section, stream(self._seed, "rl", topic))

    def next(self) -> DrawnGroup:
        """The next group."""
        count = self._rl.samples
        responses = tuple(self._responses.take() for _ in range(count))
        parts = tuple(self._parts(response) for response in responses)
        waits = tuple(tuple(islice(self._waits or (), len(ends) - 1)) for ends in parts)
        rewarded = 0 if self._rewards is None else 1 if self._per_group else count
        rewards = tuple(islice(self._rewards or (), rewarded))
        filtered = self._filters is not None and next(self._filters) < self._share
        return DrawnGroup(self._prompts.take(), responses, parts, waits, rewards, filtered)

    def _parts(self, response: int) -> tuple[int, ...]:
        """Tokens up to the end of each part; each part has at least one."""
        if self._counts is None:
            return (response,)
        each = split_evenly(response, min(self._counts.take(), response))
        return tuple(np.cumsum(each).tolist())


def drawn_lengths(section: Lengths, generator: np.random.Generator) -> Documents:
    """The lengths that a section describes; a lognormal's `mean` is that after the cut."""
    length = getattr(section.options, "length", None)
    most = section.max or length or LONGEST
    request = LengthRequest(section.min, most, most)
    if section.kind != "lognormal":
        return Documents(kinds.find(section.kind).build(request, *section.arguments), request, generator)
    options: Any = section.options
    sigma = float(options.sigma)
    middle = cut_middle(float(options.mean), sigma, section.min, most)
    draw = endless(lambda numbers: np.rint(np.exp(middle + sigma * numbers.standard_normal(kinds.BLOCK))))
    return Documents(draw, request, generator)


def cut_middle(mean: float, sigma: float, least: int, most: int) -> float:
    """The µ of a log-normal length whose mean between `least` and `most` is `mean`, from the first to the last."""
    if not sigma:
        return log(mean)
    low, high = log(least) - 12 * sigma - 1, log(most) + 12 * sigma + 1
    while low < (middle := (low + high) / 2) < high:
        if cut_mean(middle, sigma, least, most) < mean:
            low = middle
        else:
            high = middle
    return middle


def cut_mean(middle: float, sigma: float, least: int, most: int) -> float:
    """The mean of exp(`middle` + `sigma`·Z), σ above 0, between `least` and `most`."""
    low, high = (log(least) - middle) / sigma, (log(most) - middle) / sigma
    between = _normal(high - sigma) - _normal(low - sigma)
    inside = exp(middle + sigma**2 / 2 + log(between)) if between > 0 else 0.0
    return least * _normal(low) + inside + most * _normal(-high)


def _normal(number: float) -> float:
    """Φ."""
    return erfc(-number / sqrt(2)) / 2 if number > -inf else 0.0


def drawn_delays(section: Delay, generator: np.random.Generator) -> Iterator[int]:
    """Picoseconds of a time, each multiplied by its own factor."""
    time = section.time * PICOSECONDS_PER_SECOND
    if section.distribution is None:
        whole = round(time)
        while True:
            yield whole
    sample: Callable[..., Any] = distributions.find(section.distribution).build(*section.arguments)
    while True:
        yield from (round(float(time) * factor) for factor in sample(generator, BLOCK).tolist())


def _shares(generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from generator.random(BLOCK).tolist()
