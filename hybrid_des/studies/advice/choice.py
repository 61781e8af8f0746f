"""Which plans are shown: the best, the best single move, and the best of another kind; three at most.

A plan is left out if one of fewer moves is as good within 2 %, or if it gains less. One with a catch stands below those
without, one at a time, and only if it is 2 % quicker. Where the scenario does not fit, only plans that do are shown:
those without a catch by time, then the smallest change that is tight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hybrid_des.studies.advice.evaluation import Neighbour

SHOWN = 3
LEAST = 0.02  # share of a step below which no difference can be told
Catches = Callable[[Neighbour], int]  # how many a plan has


def chosen(neighbours: Sequence[Neighbour], step: float, catches: Catches, *, fits: bool) -> list[Neighbour]:
    """The plans to show, the most important first: the best, the best single move, another kind, one with a catch.

    Args:
        neighbours: all plans.
        step: seconds of the step as it is.
        catches: how many catches a plan has.
        fits: whether the scenario fits as it is; if not, plans that take longer are shown too.
    """
    fitting = sorted((one for one in neighbours if one.fits), key=lambda one: (one.step, len(one.kinds)))
    worth = [one for one in fitting if not fits or one.step <= (1 - LEAST) * step]
    shown = [*_of_kinds([one for one in worth if not catches(one)])]
    if len(shown) < SHOWN:
        latest = (1 - LEAST) * shown[0].step if shown and fits else worth[-1].step if worth else 0
        caught = [one for one in worth if catches(one) and one.step <= latest]
        shown += _caught(caught, catches, fits=fits)
    return shown


def _of_kinds(plain: Sequence[Neighbour]) -> Iterator[Neighbour]:
    """The best, the best single move, and the best of further kinds, of plans in the order of their steps."""
    single = next((one for one in plain if len(one.kinds) == 1), None)
    kept = [one for one in plain if one is single or single is None or not _as_good(single, one)]
    kinds: set[frozenset[str]] = set()
    for one in (*kept[:1], *([single] if single else []), *kept):
        if len(kinds) < SHOWN and (kind := frozenset(one.kinds)) not in kinds:
            kinds.add(kind)
            yield one


def _as_good(single: Neighbour, one: Neighbour) -> bool:
    """Whether a single move is as good as a plan of two."""
    return len(one.kinds) > 1 and single.step <= (1 + LEAST) * one.step


def _caught(caught: Sequence[Neighbour], catches: Catches, *, fits: bool) -> list[Neighbour]:
    """The plan with catches that is shown: of those as quick as any, or of any that make the step fit, the simplest."""
    limit = (1 + LEAST) * caught[0].step if caught and fits else None
    among = [one for one in caught if limit is None or one.step <= limit]
    return sorted(among, key=lambda one: (catches(one), len(one.kinds), one.step))[:1]
