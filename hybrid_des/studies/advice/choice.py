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
    fitting = sorted((plan for plan in neighbours if plan.fits), key=lambda plan: (plan.step, len(plan.kinds)))
    worth = [plan for plan in fitting if not fits or plan.step <= (1 - LEAST) * step]
    shown = [*_of_kinds([plan for plan in worth if not catches(plan)])]
    if len(shown) < SHOWN:
        latest = (1 - LEAST) * shown[0].step if shown and fits else worth[-1].step if worth else 0
        caught = [plan for plan in worth if catches(plan) and plan.step <= latest]
        shown += _caught(caught, catches, fits=fits)
    return shown


def _of_kinds(plain: Sequence[Neighbour]) -> Iterator[Neighbour]:
    """The best, the best single move, and the best of further kinds, of plans in the order of their steps."""
    single = next((plan for plan in plain if len(plan.kinds) == 1), None)
    kept = [plan for plan in plain if plan is single or single is None or not _as_good(single, plan)]
    kinds: set[frozenset[str]] = set()
    for plan in (*kept[:1], *([single] if single else []), *kept):
        if len(kinds) < SHOWN and (kind := frozenset(plan.kinds)) not in kinds:
            kinds.add(kind)
            yield plan


def _as_good(single: Neighbour, plan: Neighbour) -> bool:
    """Whether a single move is as good as a plan of two."""
    return len(plan.kinds) > 1 and single.step <= (1 + LEAST) * plan.step


def _caught(caught: Sequence[Neighbour], catches: Catches, *, fits: bool) -> list[Neighbour]:
    """The plan with catches that is shown: of those as quick as any, or of any that make the step fit, the simplest."""
    limit = (1 + LEAST) * caught[0].step if caught and fits else None
    among = [plan for plan in caught if limit is None or plan.step <= limit]
    return sorted(among, key=lambda plan: (catches(plan), len(plan.kinds), plan.step))[:1]
