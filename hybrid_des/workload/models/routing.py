"""Routing of tokens to experts: which a token chooses, which ranks hold them, and how many tokens each receives.

A token chooses `active` different experts of `count`, all sets of them equally likely. With groups, it first chooses
`top_groups` of `groups` equal groups of neighbouring experts, and then its experts among theirs (DeepSeek-AI, arXiv
2412.19437, section 2.1.2: 4 of 8 groups, so that a token visits at most four nodes).

    experts that a rank or node holds, s of E     P(hit) = 1 − C(E−s, k) / C(E, k)
    with groups, M = E·top/groups                 the mean of 1 − C(M−c, k) / C(M, k) over the c of them chosen

Where loads differ, a choice is as likely as the product of its experts' weights, and the weights are those by which
every expert gets its load: P(a token chooses e) = load·k/E (Chen, Dempster and Liu, Weighted finite population sampling
to maximize entropy, Biometrika 81, 1994: unique; found by changing each weight by wanted odds over found ones). Equal
loads give the above. An expert that several ranks hold serves each token on one of them, all copies equally likely:

    P(miss) = Z(w·(1−q)) / Z(w)      Z: the sum over all choices of the product of their weights
                                     q: the share of an expert's tokens that go to its copies on the rank or node

With a capacity, an expert takes at most that many tokens relative to the mean, and the rest of its are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

Held = tuple[int, ...]  # experts; several times, if there are several copies
Floats = NDArray[np.float64]

ALWAYS = 1 - 1e-12  # probability from which an expert counts as chosen by every token
MOST_ROUNDS, EXACT = 100, 1e-8  # of the search for weights; relative error of a load at which it ends
DAMPED = 0.7  # exponent of each change: undamped, those of coupled experts overshoot


@dataclass(frozen=True)
class Routing:
    """How a token's experts are chosen, and where they are.

    Attributes:
        count: experts.
        active: experts per token.
        groups, top_groups: groups of neighbouring experts, and those that a token may use.
        loads: tokens of each expert relative to the mean; none: all equal.
        placed: the experts of each rank, in equal numbers; none: equal numbers of neighbouring ones.
        capacity: the most tokens that an expert takes, relative to the mean; None: all that want it.
    """

    count: int
    active: int
    groups: int = 1
    top_groups: int = 1
    loads: tuple[float, ...] = ()
    placed: tuple[Held, ...] = ()
    capacity: float | None = None

    def hit(self, held: Held) -> Fraction:
        """The probability that one of these copies serves a token; exact where loads are equal, without copies."""
        return self.hits((held,))[0]

    def hits(self, each: tuple[Held, ...]) -> list[Fraction]:
        """The same for several sets of copies, found together."""
        once = all(len(set(held)) == len(held) for held in each)
        if once and not self.loads and self.capacity is None and max(self.copies.values()) == 1:
            choices = replace(self, placed=())  # which do not depend on where experts are
            return [_hit(choices, held) for held in each]
        return [Fraction(missed) for missed in _missed(self, each)]

    def held(self, rank: int, ranks: int) -> Held:
        """The experts of one of so many ranks."""
        if self.placed:
            assert len(self.placed) == ranks
            return self.placed[rank]
        each = self.count // ranks
        return tuple(range(rank * each, (rank + 1) * each))

    def slots(self, ranks: int) -> int:
        """Experts that each of so many ranks holds, copies included."""
        return len(self.placed[0]) if self.placed else self.count // ranks

    def of_rank(self, rank: int, ranks: int) -> float:
        """Tokens that one of so many ranks serves, relative to their mean before any are dropped."""
        if self.is_plain:
            return 1.0
        served = ((self.served(expert), self.copies[expert]) for expert in self.held(rank, ranks))
        return sum(load / copies for load, copies in served) * ranks / self.count

    @property
    def is_plain(self) -> bool:
        """Whether all experts are equally wanted, and on each rank as many neighbouring ones."""
        return not (self.loads or self.placed or self.capacity is not None)

    def served(self, expert: int) -> float:
        """Tokens of an expert that are not dropped, relative to the mean."""
        wanted = self.loads[expert] if self.loads else 1.0
        return wanted if self.capacity is None else min(wanted, self.capacity)

    def busiest(self, ranks: int) -> Fraction:
        """Tokens of the busiest of so many ranks, all copies counted, relative to the mean."""
        return Fraction(max(self.of_rank(rank, ranks) for rank in range(ranks)))

    @property
    def dropped(self) -> float:
        """The share of choices that find no room."""
        if self.capacity is None:
            return 0.0
        return max(0.0, 1 - sum(map(self.served, range(self.count))) / self.count)

    @cached_property
    def copies(self) -> Counter[int]:
        """Expert → the number of its copies."""
        if not self.placed:
            return Counter(range(self.count))
        return Counter(expert for held in self.placed for expert in held)


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
def _missed(routing: Routing, each: tuple[Held, ...]) -> list[float]:
    """1 − Z(w·(1−q)) / Z(w), of several sets of copies."""
    choices = weighted(replace(routing, placed=(), capacity=None))
    passed = np.ones((len(each), routing.count))
    for number, held in enumerate(each):
        for expert, here in Counter(held).items():
            wanted = routing.loads[expert] if routing.loads else 1.0
            kept = routing.served(expert) / wanted if wanted else 1.0
            passed[number, expert] = 1 - kept * here / routing.copies[expert]
    return [max(0.0, 1 - one / choices.whole) for one in choices.sums_of(passed)]


@dataclass(frozen=True)
class Choices:
    """The choices of a token, by the weights of experts.

    Attributes:
        weights: of experts that a token may or may not choose.
        always: whether it chooses an expert, if its group is among those it may use.
    """

    routing: Routing
    weights: Floats
    always: NDArray[np.bool_]

    def sums_of(self, factors: Floats) -> list[float]:
        """For each row of factors, the sum over all choices of the product of weights and factors of their experts."""
        each = (list(self._over(list(sums)))[-1] for sums in self._sums_of_groups(factors))
        return [float(whole[-1, -1]) for whole in each]

    @cached_property
    def whole(self) -> float:
        """The sum over all choices of the product of weights of their experts."""
        return self.sums_of(np.ones((1, self.routing.count)))[0]

    def chosen(self) -> Floats:
        """The probability that a token chooses each expert."""
        degree, top = self.routing.active, self.routing.top_groups
        left = self._sums_without_each()
        sums = list(left[:, 0])
        before, after = list(self._over(sums)), list(self._over(sums[::-1]))[::-1]
        whole = before[-1][-1, -1]
        others = np.zeros((len(sums), degree))  # of the other groups, for sets that lack one expert
        for group in range(len(sums)):
            for used in range(top):
                both = np.convolve(before[group][used], after[group + 1][top - 1 - used])
                others[group] += both[:degree]
        ways = np.einsum("gej,gj->ge", left[:, 1:, :degree], others[:, ::-1]).reshape(-1)
        return np.where(self.always, 1.0, self.weights * ways / whole)

    @property
    def _by_group(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Weights, and whether an expert is always chosen; group × expert."""
        shape = self.routing.groups, -1
        return self.weights.reshape(shape), self.always.reshape(shape)

    def _sums_of_groups(self, factors: Floats) -> Floats:
        """Row × group × size of a set: the sums over sets of so many of its experts, with the factors of a row."""
        (weights, always), factors = self._by_group, factors.reshape(len(factors), self.routing.groups, -1)
        sums = np.zeros((len(factors), self.routing.groups, self.routing.active + 1))
        sums[:, :, 0] = 1.0
        with_expert = np.where(always, factors, weights * factors)
        for number, sure in enumerate(np.logical_or.reduce(always).tolist()):
            larger = with_expert[:, :, number, None] * sums[:, :, :-1]
            if sure:
                sums[:, always[:, number]] = 0.0
            sums[:, :, 1:] += larger
        return sums

    def _sums_without_each(self) -> Floats:
        """Group × expert + 1 × size of a set: the same without that expert, and first with all of them."""
        (weights, always), sizes = self._by_group, self.routing.active + 1
        sums = np.zeros((sizes, weights.shape[0], weights.shape[1] + 1))
        sums[0] = 1.0
        with_expert = np.where(always, 1.0, weights)
        for number, sure in enumerate(np.logical_or.reduce(always).tolist()):
            sums[:, :, number + 1] = sums[:, :, 0]  # until now nothing is without an expert that is yet to come
            done = sums[:, :, : number + 1]
            larger = with_expert[:, number, None] * done[:-1]
            if sure:
                done[:, always[:, number]] = 0.0
            done[1:] += larger
        return np.ascontiguousarray(sums.transpose(1, 2, 0))

    def _over(self, sums: Sequence[Floats]) -> Iterator[Floats]:
        """After none, one, … and all of these groups: number of groups used × size of a set."""
        top, degree = self.routing.top_groups, self.routing.active
        together = np.zeros((top + 1, degree + 1))
        together[0, 0] = 1.0
        yield together
        for of_group in sums:
            before, together = together, together.copy()
            for used in range(1, top + 1):
                together[used] += np.convolve(before[used - 1], of_group)[: degree + 1]
            yield together


@lru_cache(maxsize=1024)
def weighted(routing: Routing) -> Choices:
    """The choices by which every expert gets its load, as nearly as groups allow."""
    wanted = np.array(routing.loads or (1.0,) * routing.count) * routing.active / routing.count
    always = (wanted >= ALWAYS) if routing.groups == 1 else np.zeros(routing.count, dtype=np.bool_)
    choices = Choices(routing, np.where(always, 0.0, wanted), always)
    if len(set(routing.loads)) < 2 or routing.active == 1:
        return choices
    free, unwanted = (wanted > 0) & ~always, np.maximum(1 - wanted, 1 - ALWAYS)
    for _ in range(MOST_ROUNDS):
        chosen = choices.chosen()
        if np.abs(np.where(free, chosen / np.where(free, wanted, 1.0) - 1, 0.0)).max() < EXACT:
            break
        missing, excess = np.maximum(1 - chosen, 1 - ALWAYS), unwanted * chosen
        odds = np.divide(wanted * missing, excess, where=free, out=np.ones_like(wanted))
        weights = choices.weights * odds**DAMPED
        choices = replace(choices, weights=weights / weights.max(initial=1e-300))
    return choices
