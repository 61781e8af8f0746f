"""The neighbours of a plan: one and two moves away, no two of one sort, all priced.

A second move is made from the plans of one move that are the quickest, those that would be if they fitted (a second
move may make them fit), and those that hold least. Of those that do not fit, only plans without a catch: what follows
from one that the framework does not have would be no better than it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

from hybrid_des.studies.advice.choice import Catches
from hybrid_des.studies.advice.evaluation import Evaluator, Neighbour, neighbour_of
from hybrid_des.studies.neighbours.moves import moves_from

FROM = 3  # plans of each sort that a second move is made from
MOST_PRICED = 160  # plans two moves away, the most promising by their screen


def neighbourhood(evaluator: Evaluator, catches: Catches) -> list[Neighbour]:
    """Every neighbour that may be worth showing, priced; `catches`: how many a plan has."""
    first = [neighbour_of(evaluator.position, move) for move in moves_from(evaluator.position)]
    singles = evaluator.passed("price", evaluator.passed("screen", _distinct(first, ())))
    second = [
        neighbour_of(at, move)
        for single in _bases(singles, catches)
        for at in [evaluator.at(single)]
        for move in moves_from(at, fits=single.fits)
    ]
    screened = evaluator.hopeful(evaluator.passed("screen", _distinct(second, singles)))
    promising = sorted((plan for plan in screened if plan.fits), key=attrgetter("step"))[:MOST_PRICED]
    nearest = [] if promising else sorted(screened, key=attrgetter("held"))[:FROM]
    return evaluator.hopeful([*singles, *evaluator.passed("price", [*promising, *nearest])])


def _bases(singles: list[Neighbour], catches: Catches) -> list[Neighbour]:
    """The plans that a second move is made from, each once."""
    singles = [plan for plan in singles if "host" not in plan.kinds or not plan.fits]
    by_step = sorted(singles, key=attrgetter("step"))
    quickest = [plan for plan in by_step if plan.fits][:FROM]
    promising = [*islice((plan for plan in by_step if not plan.fits and not catches(plan)), FROM)]
    smallest = sorted(singles, key=attrgetter("held", "step"))[:FROM]
    return list({id(plan): plan for plan in (*quickest, *promising, *smallest)}.values())


def _distinct(neighbours: Iterable[Neighbour], known: Iterable[Neighbour]) -> list[Neighbour]:
    """The first of all that set the same, without those that are known."""
    seen = {plan.key for plan in known}
    return [plan for plan in neighbours if not (plan.key in seen or seen.add(plan.key))]  # type: ignore[func-returns-value]
