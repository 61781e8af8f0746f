"""How many tokens want each expert, relative to the mean: drawn, or by the named workloads of a benchmark.

    dirichlet    shares of a Dirichlet distribution with one parameter per expert
    power law    tokens drawn with P(x) ∝ x^−α from 1 … 0.8 · tokens, then scaled (NVIDIA's AIConfigurator, document on
                 power laws of mixtures of experts: α ≈ 1.2 for Qwen3-235B, 1.01 for DeepSeek-R1; 0: all equal)
    W0 … W7      exact expectations of the workloads of NVIDIA/Megatron-LM, pull request 7488,
                 benchmarks/moe/token_imbalance

Each token chooses k different experts of E, so that no expert gets more than E/k times the mean: what a draw wants
beyond that goes to the others, in proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np

LARGEST = 0.8  # of the tokens: the most that a power law draws for one expert
FEW = (0.01, 2.0)  # between which it draws where there are fewer choices than experts
PERIOD, BURST = 3, 4  # steps after which W6 moves its hot experts; of which the last is W7's burst
HOT = Fraction(3, 4)  # of the tokens choose among hot experts only; half of them in a burst

Workload = Callable[[int, int, int], list[Fraction]]  # (experts, active, step) → loads


def bounded(shares: Sequence[float], most: float) -> list[float]:
    """Shares scaled to a mean of 1, none above `most`; what is beyond goes to the others in proportion.

    Where too few experts are wanted at all, those that are not get the rest, all as much.
    """
    given = np.asarray(shares, dtype=np.float64)
    loads, full = np.zeros(len(given)), np.zeros(len(given), dtype=np.bool_)
    while True:
        left = len(given) - most * full.sum()
        largest = given[~full].max(initial=0.0)
        if largest <= 0:  # nobody wants the others
            loads[~full] = left / max(1, (~full).sum())
            break
        rest = given[~full] / largest  # by their largest, so that the sum of tiny shares keeps its digits
        loads[~full] = rest * (left / rest.sum())
        over = (loads > most) & ~full
        if not over.any():
            break
        loads[over], full = most, full | over
    return [float(load) for load in loads]


def dirichlet(generator: np.random.Generator, concentration: float, experts: int) -> list[float]:
    """Shares of tokens, which sum to 1."""
    return [float(share) for share in generator.dirichlet([concentration] * experts)]


def power_law(generator: np.random.Generator, alpha: float, experts: int, active: int, tokens: int) -> list[float]:
    """Tokens of each expert, by the inverse of the distribution function, before they are scaled."""
    if alpha == 0:
        return [1.0] * experts
    low, high = (1.0, LARGEST * tokens) if tokens * active > experts else FEW
    drawn = generator.random(experts)
    if alpha == 1:
        return [float(low * (high / low) ** one) for one in drawn]
    ends = low ** (1 - alpha), high ** (1 - alpha)
    return [float(((ends[1] - ends[0]) * one + ends[0]) ** (1 / (1 - alpha))) for one in drawn]


def _preferred(experts: int, hot: Sequence[int], share: Fraction) -> list[Fraction]:
    """A share of the tokens chooses among hot experts only, the others among all."""
    of_hot = {expert: share * Fraction(experts, len(hot)) for expert in hot}
    return [of_hot.get(expert, Fraction(0)) + 1 - share for expert in range(experts)]


def _width(experts: int, active: int) -> int:
    return max(active, experts // 4)


def _block(experts: int, active: int, first: int = 0) -> list[int]:
    return [(first + number) % experts for number in range(_width(experts, active))]


def _equal(experts: int, active: int, step: int) -> list[Fraction]:
    return [Fraction(1)] * experts


def _hot_block(experts: int, active: int, step: int) -> list[Fraction]:
    return _preferred(experts, _block(experts, active), HOT)


def _spread(experts: int, active: int, step: int) -> list[Fraction]:
    hot = sorted({2 * number % experts for number in range(max(active, experts // 2))})
    return _preferred(experts, hot if len(hot) >= active else range(experts), HOT)


def _half(experts: int, active: int, step: int) -> list[Fraction]:
    return _preferred(experts, range(experts // 2, experts), Fraction(1))


def _rotating(experts: int, active: int, step: int) -> list[Fraction]:
    return _preferred(experts, _block(experts, active, step // PERIOD * _width(experts, active)), HOT)


def _burst(experts: int, active: int, step: int) -> list[Fraction]:
    share = Fraction(1, 2) if step % BURST == BURST - 1 else Fraction(0)
    return _preferred(experts, _block(experts, active), share)


WORKLOADS: Mapping[str, Workload] = {
    "W0": _equal,  # balanced
    "W1": _hot_block,  # a set of hot experts
    "W2": _hot_block,  # hot experts of one rank: as published, the same set; the layout says whose they are
    "W3": _spread,  # hot experts spread over ranks
    "W4": _equal,  # ranks that send unequally to equal experts: every rank has the same tokens here
    "W5": _half,  # experts, and ranks, without tokens
    "W6": _rotating,  # hot experts move every three steps
    "W7": _burst,  # three steady steps, then one with hot experts
}
