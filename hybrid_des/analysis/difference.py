"""How sure a difference between two predictions is: how far predicted ratios of measured runs were off.

Errors of two predictions of one system are alike, so that their ratio is better known than either. `pairs.csv` holds
one row per pair of measured runs of a corpus that differ in one kind of setting; it is written by `hybrid-des validate
CORPUS --record`, never by hand.

Of one kind of change, four of five ratios lie within the error that holds 0.8 of the weight of all its pairs and of
what is drawn next, whose error may be any, each corpus of equal weight. Drawn next is a corpus, as errors within one
are alike (hierarchical conformal prediction: Lee, Barber and Willett, Distribution-free inference with hierarchical
data, arxiv.org/abs/2306.06342). Of fewer than four corpora no error holds so much, and a pair is drawn (conformal
prediction with weights, see `experience`): of n pairs of one corpus, it is the ⌈0.8 (n + 1)⌉-th. Of a kind with fewer
than nine pairs, they lie within the widest of all kinds of changes of a plan that have as many. Errors of several kinds
combine as independent ones do: to the root of the sum of their squares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, expm1, hypot, log
from typing import Any, NamedTuple

from hybrid_des.analysis.experience import ROUNDING
from hybrid_des.analysis.moves import moves
from hybrid_des.analysis.pair_table import Pair, known_pairs
from hybrid_des.scenario.definition import Scenario

COVERED = 0.8


FEWEST = 9  # pairs of a kind that is told by its own


OF_JOBS = ("number of GPUs", "batch")  # kinds of changes of the job, which tell nothing of others


LEAST = 0.02  # a smaller change that may be none is a tie


class Difference(NamedTuple):
    """What is known of a change between two scenarios.

    Attributes:
        moves: the kinds of settings that differ.
        reach: the half-width of the interval of the ratio, as a logarithm.
        pairs: the number of pairs of measured runs that differ in one of these.
    """

    moves: tuple[str, ...]
    reach: float
    pairs: int

    def interval(self, change: float) -> tuple[float, float]:
        """The interval around a change of a step, as shares of it: −0.12 is a step that is 12 % shorter."""
        return (1 + change) * exp(-self.reach) - 1, (1 + change) * exp(self.reach) - 1

    def is_open(self, change: float) -> bool:
        """Whether the interval leaves open which of the two is quicker."""
        return abs(log(1 + change)) <= self.reach

    def is_tie(self, change: float) -> bool:
        """Whether it does so and the change is small itself."""
        return self.is_open(change) and abs(change) < LEAST

    def verdict(self, change: float) -> str:
        """What can be told of a change: nothing, that it is likely, or that it is certain."""
        if self.is_tie(change):
            return "not certain which is faster"
        direction = "slower" if change > 0 else "faster"
        return f"probably {direction}, not certain" if self.is_open(change) else direction

    def likely(self, change: float) -> str:
        """The interval in words: "likely -16 to -8 %"."""
        return f"likely {self._bounds(change)}"

    def text(self, change: float) -> str:
        """The verdict, the interval, and what it rests on, in words.

        "faster; 80 % prediction interval -16 to -8 % (4 of 5 measured differences of this kind, schedule, were
        predicted within ±4 %)"
        """
        within = "the difference is within the 80 % prediction interval," if self.is_open(change) else ""
        interval = f"{within or '80 % prediction interval'} {self._bounds(change)}"
        rests = f"4 of 5 measured differences of this kind, {' and '.join(self.moves)}, were predicted within"
        said = f"{self.verdict(change)}{': ' if within else '; '}{interval}"
        return f"{said} ({rests} ±{100 * expm1(self.reach):.0f} %)"

    def _bounds(self, change: float) -> str:
        low, high = self.interval(change)
        return f"{100 * low:+.0f} to {100 * high:+.0f} %"

    def to_mapping(self, change: float) -> dict[str, Any]:
        """As values of a summary; the interval in shares."""
        return {
            "moves": list(self.moves),
            "interval": list(self.interval(change)),
            "pairs": self.pairs,
            "text": self.text(change),
        }


def difference(first: Scenario, second: Scenario) -> Difference | None:
    """What is known of the change from one scenario to another; None if their models differ, or too few pairs."""
    changed = moves(first, second)
    return of_pairs(changed, known_pairs()) if changed else None


def of_pairs(changed: Sequence[str], pairs: Sequence[Pair]) -> Difference | None:
    """What pairs tell of a change of these kinds of settings; None if no kind has enough."""
    kinds = {move: [pair for pair in pairs if pair.move == move] for move in {*changed, *(pair.move for pair in pairs)}}
    reaches = {move: _reach(some) for move, some in kinds.items() if len(some) >= FEWEST}
    if not reaches:
        return None
    widest = max([reach for move, reach in reaches.items() if move not in OF_JOBS] or reaches.values())
    reach = hypot(*(reaches.get(move, max([widest, *(pair.error for pair in kinds[move])])) for move in changed))
    return Difference(tuple(changed), reach, sum(len(kinds[move]) for move in changed))


def _reach(pairs: Sequence[Pair]) -> float:
    """The error that four of five ratios lie within, each corpus of equal weight; the largest if none does."""
    sizes = Counter(pair.corpus for pair in pairs)
    corpora = len(sizes)
    drawn = corpora if COVERED * (corpora + 1) <= corpora else len(pairs)
    needed, sofar = COVERED * (drawn + 1), 0.0
    for pair in sorted(pairs, key=lambda pair: pair.error):
        sofar += drawn / corpora / sizes[pair.corpus]
        if sofar >= needed - ROUNDING:
            return pair.error
    return max(pair.error for pair in pairs)
