"""Closed forms for checkpoints, restarts and spares with exponential failures; times in any one unit.

L = τ + C is a segment: work and its checkpoint; M the mean time between failures, λ = 1/M; R the time of a restart.
"""

import math
from collections.abc import Iterator

CONVERGED = 1e-15
MOST_ROUNDS = 100


def young(cost: float, mtbf: float) -> float:
    """Young's best interval between checkpoints, √(2CM) (Communications of the ACM 17(9), 1974)."""
    return math.sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Daly's best interval, √(2CM)·[1 + ⅓√(C/2M) + ⅑(C/2M)] − C, or M if C ≥ 2M (FGCS 22(3), 2006, equation 37)."""
    share = cost / (2 * mtbf)
    if share >= 1:
        return mtbf
    return young(cost, mtbf) * (1 + math.sqrt(share) / 3 + share / 9) - cost


def best_interval(cost: float, mtbf: float) -> float:
    """The interval with the least expected time per unit of work: M·(1 + W₀(−e^(−C/M − 1))), W₀ Lambert's function.

    With y = τ/M it is the root of ln(1 − y) + y + C/M = 0, found by Newton's method from above: the left side is
    decreasing and concave, so no step overshoots the root, and no digits cancel if C is small.
    """
    a = cost / mtbf
    if a <= 0:
        return 0.0
    y = min(math.sqrt(2 * a), -math.expm1(-1 - a))
    for _ in range(MOST_ROUNDS):
        step = (math.log1p(-y) + y + a) * (1 - y) / y
        y += step
        if abs(step) <= CONVERGED * y:
            break
    return mtbf * y


def segment_time(length: float, restart: float, mtbf: float, can_fail: bool = True) -> float:
    """Expected time to complete a segment: e^(λR)·(e^(λL) − 1)/λ, or (1/λ + R)·(e^(λL) − 1) if restarts cannot fail.

    Daly (2006), equations 12 and 13.
    """
    lengthened = math.exp(restart / mtbf) * mtbf if can_fail else mtbf + restart
    return lengthened * math.expm1(length / mtbf)


def expected_goodput(interval: float, cost: float, restart: float, mtbf: float, can_fail: bool = True) -> float:
    """Work over wall time with synchronous checkpoints: τ/E[segment]."""
    return interval / segment_time(interval + cost, restart, mtbf, can_fail)


def share_down(mtbf: float, repair: float) -> float:
    """The share of time in which a node is being repaired."""
    return repair / (repair + mtbf)


def at_most(down: int, nodes: int, share: float) -> float:
    """The probability that at most `down` of independent nodes are down: P(Binomial(nodes, share) ≤ down)."""
    return math.fsum(probability for _, probability in zip(range(down + 1), _binomial(nodes, share), strict=False))


def standbys(nodes: int, share: float, quantile: float = 0.99) -> int:
    """The fewest standbys that suffice with a given probability: the quantile of Binomial(nodes, share).

    ByteRobust (SOSP 2025) keeps the 99th percentile of the machines that fail at the same time.
    """
    total = 0.0
    for down, probability in enumerate(_binomial(nodes, share)):
        total += probability
        if total >= quantile:
            return down
    return nodes


def _binomial(nodes: int, share: float) -> Iterator[float]:
    """The probabilities that 0, 1, 2, … of the nodes are down."""
    if share == 0:
        yield 1.0
        return
    for k in range(nodes + 1):
        ways = math.lgamma(nodes + 1) - math.lgamma(k + 1) - math.lgamma(nodes - k + 1)
        log = ways + (k * math.log(share) if k else 0.0) + (nodes - k) * math.log1p(-share)
        yield math.exp(log)
