"""The spread of response lengths from what a log says of them: sigma of a lognormal that is cut at a cap.

With Z standard normal, a length is min(cap, exp(μ + σZ)). A log has its mean after the cut, and one of

- the share s at the cap. With z = Φ⁻¹(1 − s), μ = ln cap − σz, and mean/cap = s + exp(σ²/2 − σz)·Φ(z − σ), which falls
  from 1 to s as σ grows: one solution if s < mean/cap < 1.
- the standard deviation d after the cut: of a lognormal that nothing cuts, σ² = ln(1 + (d/mean)²); else from its first
  two moments, E[min(cap, L)ᵏ] = exp(kμ + (kσ)²/2)·Φ(z − kσ) + capᵏ·s.
- the largest of n of a step, on average m: ln m = μ + σz with z = Φ⁻¹((n − 3/8)/(n + 1/4)) (Blom, Statistical Estimates
  and Transformed Beta-Variables, 1958), so that with mean = exp(μ + σ²/2), σ = z − √(z² − 2·ln(m/mean)).
"""

from collections.abc import Callable
from math import exp, inf, log, sqrt
from statistics import NormalDist

STANDARD = NormalDist()
WIDEST = 8.0  # sigma beyond which nothing is looked for
_HALVINGS = 60


def from_share(mean: float, cap: float, share: float) -> float | None:
    """Sigma from the share of lengths at the cap; None if no lognormal has these.

    Args:
        mean: of the lengths after the cut, in tokens.
        cap: the longest, in tokens.
        share: of the lengths that are this long, above 0 and below 1.
    """
    if not (0 < share < 1 and share * cap < mean < cap):
        return None
    z, wanted = STANDARD.inv_cdf(1 - share), mean / cap - share

    def below(sigma: float) -> float:
        return exp(sigma * sigma / 2 - sigma * z) * STANDARD.cdf(z - sigma)

    return _root(lambda sigma: below(sigma) > wanted, 0.0, WIDEST) if below(WIDEST) < wanted else None


def from_deviation(mean: float, deviation: float, cap: float = inf) -> float | None:
    """Sigma from the standard deviation of lengths after the cut; None if no lognormal has these.

    Args:
        mean: of the lengths after the cut, in tokens.
        deviation: their standard deviation, in tokens.
        cap: the longest, in tokens.
    """
    if not (0 < mean < cap and deviation > 0):
        return None
    if cap == inf:
        return sqrt(log(1 + (deviation / mean) ** 2))

    def narrow(sigma: float) -> bool:
        location = _root(lambda at: _moment(at, sigma, cap, 1) < mean, log(mean) - WIDEST**2, log(cap) + WIDEST**2)
        return _moment(location, sigma, cap, 2) - mean**2 < deviation**2

    return _root(narrow, 1e-6, WIDEST) if not narrow(WIDEST) else None


def _moment(location: float, sigma: float, cap: float, power: int) -> float:
    """The mean of min(cap, exp(location + σZ)) to a power."""
    z = (log(cap) - location) / sigma
    below = STANDARD.cdf(z - power * sigma)
    return (exp(power * location + (power * sigma) ** 2 / 2) * below if below else 0) + cap**power * STANDARD.cdf(-z)


def _root(below: Callable[[float], bool], low: float, high: float) -> float:
    """Where something that grows stops being below what is looked for."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def from_largest(mean: float, largest: float, samples: int) -> float | None:
    """Sigma from the mean of the largest lengths of steps, in tokens; None if no lognormal has these.

    Args:
        mean: of all lengths.
        largest: mean of the largest one of each step.
        samples: lengths of a step.
    """
    if samples < 2 or not 0 < mean < largest:
        return None
    z = STANDARD.inv_cdf((samples - 3 / 8) / (samples + 1 / 4))
    inside = z * z - 2 * log(largest / mean)
    return z - sqrt(inside) if inside > 0 else None
