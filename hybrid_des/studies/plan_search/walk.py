"""A walk over the graph of plans from the one of the file, the most promising first, for good plans early.

    neighbours of a plan ─► screened ─► priced ─► four weighed ─► two simulated
                               └─► none that promises no less than the best so far costs

A plan promises its bound, times the least by which a plan that was simulated cost more than its own. Neighbourhoods are
visited in this order; a plan that does not fit counts more by the share of memory that it lacks. The walk ends when no
plan that was met promises to be better than the best. Which plans are met does not depend on the number of processes:
a neighbourhood is finished before the next begins, and its plans are simulated one by one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from hybrid_des.studies.plan_search.branch import KEPT, SIMULATED, Candidate, Standing, lost
from hybrid_des.studies.plan_search.evaluation import Evaluation, evaluate
from hybrid_des.studies.plan_search.plan_graph import PlanGraph, Visited
from hybrid_des.studies.plan_search.terms import Settings
from hybrid_des.studies.pool import Pool
from hybrid_des.studies.sweep.axes import Case

Key = TypeVar("Key")
AGAIN = 0.02  # by how much less a plan promises for every neighbourhood that was visited of its layout
WEIGHED, SIMULATIONS = 4, 2  # of the plans that are new around one
FEW = 16  # plans whose neighbours are visited where all plans are examined later


class Walk:
    """The state of a walk.

    Attributes:
        known: (step, number of a plan) → its evaluation, those of an earlier search among them.
        found: number of a plan of the space → its fingerprint, once it is simulated.
        beyond: the best plan beyond the space, if it is better than those of the space that were met.
    """

    def __init__(
        self,
        settings: Settings,
        cases: Sequence[Case],
        *,
        known: Mapping[tuple[str, int], Evaluation],
        note: Callable[[str, int, Evaluation], None],
        progress: Callable[[Standing], None],
    ) -> None:
        """Begin where the file is.

        Args:
            settings: the scenario and its `search` block.
            cases: the plans of the space.
            known: (step, number of a plan) → the evaluation of an earlier search.
            note: called with the step, the number and the evaluation of every plan that is weighed or simulated.
            progress: called after every neighbourhood.
        """
        self.known = dict(known)
        self.found: dict[int, str] = {}
        self.beyond: Candidate | None = None
        self._best = inf
        self._more: list[float] = []  # costs of simulated plans over their bounds
        self._settings = replace(settings, bounding=True)
        self._cases, self._note, self._progress = cases, note, progress
        self._left: list[tuple[float, int, float, Visited]] = []
        self._order = count()
        self._visits: Counter[tuple[int, ...]] = Counter()  # layout → neighbourhoods of its plans
        self._met: set[str | int] = set()
        self._unlike: set[str] = set()

    def run(self, pool: Pool) -> None:
        """Walk until no plan that was met can be better; without a time limit, over few neighbourhoods.

        Raises:
            BudgetSpentError: the time of the pool is over.
            WorkersLostError: its executor no longer runs anything.
        """
        graph = PlanGraph(self._settings, self._cases)
        root, visited = graph.root(), 0
        self._visit(pool, graph, [root])
        self._left = self._left or [(0.0, next(self._order), 0.0, root)]
        while (plan := self._next(graph)) is not None and (pool.until < inf or visited < FEW):
            if graph.is_offered(plan):
                visited += 1
                self._visits[graph.layout(plan)] += 1
                self._visit(pool, graph, graph.neighbours(plan))

    def _next(self, graph: PlanGraph) -> Visited | None:
        """The most promising plan that is left."""
        while self._left:
            weight, order, promise, plan = heapq.heappop(self._left)
            now = promise * (1 + AGAIN * self._visits[graph.layout(plan)])
            if now > weight:
                heapq.heappush(self._left, (now, order, promise, plan))
            elif self._is_promising(promise):
                return plan
        return None

    def _visit(self, pool: Pool, graph: PlanGraph, plans: Iterable[Visited]) -> None:
        """Evaluate the plans that are new, each as far as it is promising."""
        screened = self._passed(pool, "screen", [plan for plan in plans if _is_new(plan.key, self._met)])
        priced = self._passed(pool, "price", self._promising(screened))
        for plan in priced:  # by its bound, whatever it comes to
            heapq.heappush(self._left, (plan.promise, next(self._order), plan.promise, plan))
        fitting = (plan for plan in self._promising(priced) if not plan.excess and graph.is_offered(plan))
        weighed = self._passed(pool, "weigh", islice(fitting, WEIGHED))
        unlike = (plan for plan in self._promising(weighed) if _is_new(plan.fingerprint, self._unlike))
        for plan in islice(unlike, SIMULATIONS):
            if self._is_promising(plan.least):
                self._simulate(pool, plan)
        self._progress(Standing(len(self._cases), 0, len(self.found), 0, self._best, 0.0, len(self._met)))

    def _promising(self, plans: Iterable[Visited]) -> list[Visited]:
        """Those that may be better than the best, the most promising first."""
        return sorted((plan for plan in plans if self._is_promising(plan.least)), key=attrgetter("least"))

    def _is_promising(self, bound: float) -> bool:
        return bound * min(self._more, default=1.0) < self._best

    def _passed(self, pool: Pool, step: str, plans: Iterable[Visited]) -> list[Visited]:
        """The plans that are possible after a step, in the order given."""
        plans = list(plans)
        evaluations = [None if plan.number is None else self.known.get((step, plan.number)) for plan in plans]
        places = [place for place, evaluation in enumerate(evaluations) if evaluation is None]
        cases = [plans[place].case for place in places]
        for number, evaluation in pool.map(partial(evaluate, self._settings, step), cases, lost):
            evaluations[places[number]] = evaluation
            self._remember(step, plans[places[number]], evaluation)
        pairs = zip(plans, evaluations, strict=True)
        return [plan for plan, evaluation in pairs if evaluation is not None and plan.learns(step, evaluation)]

    def _remember(self, step: str, plan: Visited, evaluation: Evaluation) -> None:
        """Keep what the search after the walk need not evaluate again."""
        if plan.number is None or evaluation.reason or evaluation.misfit:
            return
        self.known[step, plan.number] = evaluation
        if step in KEPT:
            self._note(step, plan.number, evaluation)

    def _simulate(self, pool: Pool, plan: Visited) -> None:
        """Simulate a plan, and take it up if it fits."""
        bound = plan.least
        if not self._passed(pool, "simulate", [plan]) or plan.excess:
            return
        self._more += [plan.least / bound] if bound else []
        if plan.number is not None:
            self.found[plan.number] = plan.fingerprint
            if plan.least <= self._best:
                self.beyond = None
        elif plan.least < self._best:
            known: Any = {name: getattr(plan.last, name) for name in ("least", "held", "excess", "against", "row")}
            self.beyond = Candidate(len(self._cases), plan.case, SIMULATED, done="simulate", beyond=True, **known)
        self._best = min(self._best, plan.least)


def _is_new(key: Key, known: set[Key]) -> bool:
    """Whether a key is met for the first time."""
    if key in known:
        return False
    known.add(key)
    return True
