"""Jitter: random factors of durations, each distribution a function that registers itself.

    @distribution("lognormal", summary="…", options=Lognormal)
    def lognormal(options: Lognormal) -> Sample: ...

A factor multiplies a duration. Its mean is 1, unless the summary of the distribution says otherwise.

| name        | factor                                  | mean                | standard deviation |
|-------------|-----------------------------------------|---------------------|--------------------|
| normal      | max(0, 1 + σZ) divided by its mean      | 1                   | σ, where σ ≪ 1     |
| lognormal   | exp(σZ − σ²/2)                          | 1                   | √(exp σ² − 1)      |
| exponential | 1 − share + share · E                   | 1                   | share              |
| uniform     | 1 − spread … 1 + spread                 | 1                   | spread/√3          |
| bernoulli   | `factor` with probability p, else 1     | 1 + p (factor − 1)  |                    |

Z is a standard normal number, E an exponential one of mean 1. The mean of a normal number cut at 0 is
Φ(1/σ) + σ φ(1/σ) (Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1, 1994, section 13.10.1).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import UsageError
from hybrid_des.options import Factor, Options, describe_type, within
from hybrid_des.registry import Registry, called

Floats = NDArray[np.float64]


LARGEST = 1e6  # factor of a duration


# in quotes, since a run without random numbers need not import `numpy.random`, which takes 10 ms
Sample = Callable[["np.random.Generator", int], Floats]  # (generator, number of factors) → factors


_REGISTRY: Registry[Callable[..., Sample]] = Registry("distribution", "hybrid_des.workload.distributions")


names = _REGISTRY.names


find = _REGISTRY.__getitem__


def distribution(
    name: str, *, summary: str, options: type[Options]
) -> Callable[[Callable[..., Sample]], Callable[..., Sample]]:
    """Register a distribution of factors under its name in a scenario's `jitter.distribution`."""
    register = _REGISTRY(name, options, summary=summary)

    def checked(build: Callable[..., Sample]) -> Callable[..., Sample]:
        return register(build) if build.__module__ == __name__ else register(_checked(name, build))

    return checked


def _checked(name: str, build: Callable[..., Sample]) -> Callable[..., Sample]:
    """A user's distribution, whose factors are checked as they are drawn."""

    @wraps(build)
    def checked(*arguments: Options) -> Sample:
        sample = build(*arguments)
        what = f'distribution "{name}"'
        if not callable(sample):
            raise UsageError(
                f"{what} returned {describe_type(sample)}; expected a function of a generator and a number"
            )

        def drawn(generator: np.random.Generator, count: int) -> Floats:
            given = (generator, count)
            factors: Floats = called(f"{what}: what it returned", sample, given, ", a generator and a number")
            _check_factors(what, factors, count)
            return factors

        return drawn

    return checked


def _check_factors(what: str, factors: object, count: int) -> None:
    """Check what a user's distribution has drawn.

    Raises:
        UsageError: it is no array of so many factors from 0 to `LARGEST`.
    """
    if not isinstance(factors, np.ndarray) or factors.shape != (count,) or factors.dtype.kind not in "iuf":
        raise UsageError(f"{what} drew {describe_type(factors)}; expected an array of {count} numbers")
    wrong = ~((factors >= 0) & (factors <= LARGEST))
    if wrong.any():
        raise UsageError(f"{what} drew {factors[wrong][0]:g}; expected factors from 0 to {LARGEST:g}")


WIDEST = 10  # largest standard deviation of a factor or of its logarithm


Sigma = Annotated[Fraction, within(0, WIDEST, f"at most {WIDEST}")]


Probability = Annotated[Fraction, within(0, 1, "from 0 to 1")]


class Normal(Options):
    """How widely normal factors vary."""

    sigma: Sigma
    """Standard deviation of a factor, before it is cut at 0."""


class Lognormal(Options):
    """How widely log-normal factors vary."""

    sigma: Sigma
    """Standard deviation of the factor's logarithm; healthy ranks have 0.017 to 0.028."""


class Exponential(Options):
    """How much of a duration is random."""

    share: Probability = Fraction(1)
    """The share of a duration that is exponential; the rest is constant."""


class Uniform(Options):
    """How widely uniform factors vary."""

    spread: Probability
    """Factors lie between 1 − spread and 1 + spread."""


class Bernoulli(Options):
    """Rare slow ops."""

    p: Probability
    """Probability that a duration is multiplied by `factor`."""
    factor: Factor
    """The factor of rare durations; all others stay as they are."""


@distribution("normal", summary="normal, cut at 0", options=Normal)
def normal(options: Normal) -> Sample:
    """Factors max(0, 1 + σZ), divided by their mean."""
    from statistics import NormalDist  # takes 5 ms

    sigma, standard = float(options.sigma), NormalDist()
    mean = standard.cdf(1 / sigma) + sigma * standard.pdf(1 / sigma) if sigma else 1.0

    def sample(generator: np.random.Generator, count: int) -> Floats:
        return np.maximum(1 + sigma * generator.standard_normal(count), 0) / mean

    return sample


@distribution("lognormal", summary="log-normal", options=Lognormal)
def lognormal(options: Lognormal) -> Sample:
    """Factors exp(σZ − σ²/2)."""
    sigma = float(options.sigma)
    return lambda generator, count: np.exp(sigma * generator.standard_normal(count) - sigma**2 / 2)


@distribution("exponential", summary="a share of the duration is exponential", options=Exponential)
def exponential(options: Exponential) -> Sample:
    """Factors 1 − share + share · E."""
    share = float(options.share)
    return lambda generator, count: 1 - share + share * generator.standard_exponential(count)


@distribution("uniform", summary="uniform around 1", options=Uniform)
def uniform(options: Uniform) -> Sample:
    """Factors between 1 − spread and 1 + spread."""
    spread = float(options.spread)
    return lambda generator, count: 1 - spread + 2 * spread * generator.random(count)


@distribution("bernoulli", summary="rarely `factor` times as long, else as given: the mean is not 1", options=Bernoulli)
def bernoulli(options: Bernoulli) -> Sample:
    """Factors `factor` with probability p, else 1."""
    p, factor = float(options.p), float(options.factor)
    return lambda generator, count: np.where(generator.random(count) < p, factor, 1.0)
