"""How tokens choose their experts, and how likely a rank or node holds one of them.

A token chooses `active` different experts of `count`, all sets of them equally likely. With groups, it first chooses
`top_groups` of `groups` equal groups of neighbouring experts, and then its experts among theirs (DeepSeek-AI, arXiv
2412.19437, section 2.1.2: 4 of 8 groups, so that a token visits at most four nodes).

    experts that a rank or node holds, s of E     P(hit) = 1 − C(E−s, k) / C(E, k)
    with groups, M = E·top/groups                 the mean of 1 − C(M−c, k) / C(M, k) over the c of them chosen

Experts whose loads differ are drawn with weights: a set is as likely as the product of its members' weights, so that
equal weights give the above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

Held = tuple[int, ...]  # experts


@dataclass(frozen=True)
class Routing:
    """How a token's experts are chosen.

    Attributes:
        count: experts.
        active: experts per token.
        groups, top_groups: groups of neighbouring experts, and those that a token may use.
        loads: tokens of each expert relative to the mean; none: all equal.
    """

    count: int
    active: int
    groups: int = 1
    top_groups: int = 1
    loads: tuple[float, ...] = ()

    def hit(self, held: Held) -> Fraction:
        """The probability that a token has at least one of these experts; exact where loads are equal."""
        return Fraction(_weighted_hit(self, held)) if self.loads else _hit(self, held)

    def held(self, rank: int, ranks: int) -> Held:
        """The experts of one of so many ranks, which hold equal numbers of neighbouring ones."""
        each = self.count // ranks
        return tuple(range(rank * each, (rank + 1) * each))

    def busiest(self, ranks: int) -> Fraction:
        """Tokens of the busiest of so many ranks, all copies counted, relative to the mean."""
        if not self.loads:
            return Fraction(1)
        each = self.count // ranks
        return Fraction(max(sum(self.loads[rank * each : (rank + 1) * each]) for rank in range(ranks)) / each)


@lru_cache(maxsize=4096)
def _hit(routing: Routing, held: Held) -> Fraction:
    size, chosen, k = routing.count // routing.groups, routing.top_groups, routing.active
    among = chosen * size
    held_in = [_overlap(held, range(group * size, (group + 1) * size)) for group in range(routing.groups)]
    counts: Counter[tuple[int, int]] = Counter({(0, 0): 1})  # (groups chosen, experts held among theirs) → ways
    for here in held_in:
        more = Counter({(number + 1, total + here): ways for (number, total), ways in counts.items()})
        counts.update({key: ways for key, ways in more.items() if key[0] <= chosen})
    missed = sum(ways * comb(among - total, k) for (number, total), ways in counts.items() if number == chosen)
    return 1 - Fraction(missed, comb(routing.groups, chosen) * comb(among, k))


def _overlap(held: Held, among: range) -> int:
    return sum(expert in among for expert in held)


@lru_cache(maxsize=4096)
def _weighted_hit(routing: Routing, held: Held) -> float:
    """The mean over the choices of groups of 1 − e(weights of the others) / e(all weights), e as in `_polynomial`."""
    size, k = routing.count // routing.groups, routing.active
    places = [range(group * size, (group + 1) * size) for group in range(routing.groups)]
    whole = [_polynomial(routing, place, ()) for place in places]
    others = [
        _polynomial(routing, place, held) if _overlap(held, place) else of
        for place, of in zip(places, whole, strict=True)
    ]
    missed = [
        _product([others[group] for group in chosen], k)[k] / _product([whole[group] for group in chosen], k)[k]
        for chosen in combinations(range(routing.groups), routing.top_groups)
    ]
    return 1 - float(np.mean(missed))


@lru_cache(maxsize=4096)
def _polynomial(routing: Routing, among: range, without: Held) -> NDArray[np.float64]:
    """The elementary symmetric polynomials of the weights among these experts, of degree 0 to `active`."""
    coefficients = np.zeros(routing.active + 1)
    coefficients[0] = 1.0
    for expert in among:
        if expert not in without:
            coefficients[1:] += routing.loads[expert] * coefficients[:-1]
    return coefficients


def _product(factors: Sequence[NDArray[np.float64]], degree: int) -> NDArray[np.float64]:
    whole = factors[0]
    for factor in factors[1:]:
        whole = np.convolve(whole, factor)[: degree + 1]
    return whole
