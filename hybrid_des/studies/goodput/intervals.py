"""Closed forms for the interval between checkpoints with exponential failures; times in any one unit.

τ is work, C the cost of its checkpoint, M the mean time between failures.
"""

from __future__ import annotations

import math

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
