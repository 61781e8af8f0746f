"""The neighbours of a plan: one and two moves away, no two of one sort, all priced.

A second move is made from the plans of one move that are the quickest, those that would be if they fitted (a second
move may make them fit), and those that hold least.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from hybrid_des.studies.advice.evaluation import Evaluator, Neighbour, neighbour_of
from hybrid_des.studies.advice.moves import moves_from

FROM = 3  # plans of each sort that a second move is made from
MOST_PRICED = 160  # plans two moves away, the most promising by their screen


def neighbourhood(evaluator: Evaluator) -> list[Neighbour]:
    """Every neighbour that is possible, priced."""
    first = [neighbour_of(evaluator.position, move) for move in moves_from(evaluator.position)]
    singles = evaluator.passed("price", evaluator.passed("screen", _distinct(first, ())))
    second = [
        neighbour_of(at, move) for at in map(evaluator.at, _bases(singles)) for move in moves_from(at)
    ]
    screened = evaluator.passed("screen", _distinct(second, singles))
    promising = sorted((one for one in screened if one.fits), key=attrgetter("step"))[:MOST_PRICED]
    nearest = [] if promising else sorted(screened, key=attrgetter("held"))[:FROM]
    return [*singles, *evaluator.passed("price", [*promising, *nearest])]


def _bases(singles: list[Neighbour]) -> list[Neighbour]:
    """The plans that a second move is made from, each once."""
    by_step = sorted(singles, key=attrgetter("step"))
    quickest = [one for one in by_step if one.fits][:FROM]
    promising = [one for one in by_step if not one.fits][:FROM]
    smallest = sorted(singles, key=attrgetter("held", "step"))[:FROM]
    return list({id(one): one for one in (*quickest, *promising, *smallest)}.values())


def _distinct(neighbours: Iterable[Neighbour], known: Iterable[Neighbour]) -> list[Neighbour]:
    """The first of all that set the same, without those that are known."""
    seen = {one.key for one in known}
    return [one for one in neighbours if not (one.key in seen or seen.add(one.key))]  # type: ignore[func-returns-value]
