"""Arithmetic on an amount, or on an array of amounts: of one micro-batch, or of as many as have documents of their own.

Costs are the same formulas for both. Python's floats and NumPy's round +, −, · and / alike, so that an array holds, bit
for bit, what its elements cost one by one; here are the operations that are spelled otherwise. Types name a single
amount: `int` also stands for an array of 64-bit integers, `float` for one of floats.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import reduce
from math import ceil
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import SimulationError

Amount = TypeVar("Amount", int, float)
LIMIT = 2**63  # of integers in arrays


def is_array(amount: Any) -> TypeGuard[NDArray[Any]]:
    """Whether these are many amounts."""
    return isinstance(amount, np.ndarray)


def is_any(amount: float) -> bool:
    """Whether any amount is not zero."""
    return bool(amount.any()) if is_array(amount) else bool(amount)


def larger(a: Amount, b: Amount) -> Amount:
    """The larger of two amounts."""
    if is_array(a) or is_array(b):
        return cast(Amount, np.maximum(a, b))
    return max(a, b)


def largest(amounts: Iterable[int]) -> int:
    """The largest of amounts, of which there is at least one."""
    return reduce(larger, amounts)


def rounded_up(amount: float) -> int:
    """The least whole number that is not below."""
    return cast(int, _whole(np.ceil(amount))) if is_array(amount) else ceil(amount)


def rounded(amount: float) -> int:
    """The nearest whole number, the even one of two."""
    return cast(int, _whole(np.rint(amount))) if is_array(amount) else round(amount)


def _whole(amounts: NDArray[np.float64]) -> NDArray[np.int64]:
    """The same as integers.

    Raises:
        SimulationError: sums of a hundred of them would not fit.
    """
    if amounts.size and amounts.max() >= LIMIT // 2**7:
        what = "a layer of one micro-batch takes more than 20 hours, or 72 PB"
        raise SimulationError(f"{what}; with documents of unequal length, expected less")
    return amounts.astype(np.int64)


def where(holds: bool, then: float, otherwise: float) -> float:
    """The first amount where something holds, the other one elsewhere."""
    if is_array(holds):
        return cast(float, np.where(holds, then, otherwise))
    return then if holds else otherwise


def times_up(amount: int, share: Fraction) -> int:
    """A whole amount times a share, rounded up."""
    if is_array(amount) and int(amount.max()) * share.numerator >= LIMIT:
        return cast(int, np.array([times_up(one, share) for one in amount.tolist()]))
    return -(-amount * share.numerator // share.denominator)


def quotients(over: int, under: int, factor: Fraction = Fraction(1)) -> float:
    """Rounded once: over · factor / under; factors and products of arrays may be larger than 64 bits."""
    above, below = factor.numerator, factor.denominator
    if is_array(over) and is_array(under):
        each = zip(over.tolist(), under.tolist(), strict=True)
        return cast(float, np.array([above * a / (below * b) for a, b in each]))
    return above * over / (below * under)
