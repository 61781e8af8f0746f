"""Best-first search: of all plans that may still be the best, the one with the lowest bound is examined next.

    screened ─► priced ─► weighed ─► simulated     a plan returns to the queue after each step, with a higher bound
        └─► impossible, does not fit, the same as another, or excluded: the best so far is no worse than its bound

When the queue holds only plans whose bounds are no better than the best ones found, these are proved to be the best.

Where time is limited, some tasks are spent on the plan that is furthest along, so that a few are simulated early, while
others are still screened; the order of the others stays.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import attrgetter, le
from typing import NamedTuple

from hybrid_des.studies.plan_search.evaluation import STEPS, Evaluation, evaluate, neighbours
from hybrid_des.studies.plan_search.terms import Settings
from hybrid_des.studies.pool import LOST, Pool, Task
from hybrid_des.studies.sweep.axes import Case
from hybrid_des.studies.sweep.rows import Row

UNKNOWN, IMPOSSIBLE, MISFIT = "unknown", "impossible", "does not fit"
SAME, EXCLUDED, SIMULATED = "same as another", "excluded by bound", "simulated"
TOGETHER = 64  # plans that are screened
ORDER = tuple(STEPS)
KEPT = ORDER[2:]  # steps that a resumed search does not repeat
EARLY = 3  # plans simulated early, beyond those asked for
AFTER, AMONG = 4, 2  # every so many tasks one is for such a plan: of those that screen, and of the others


@dataclass
class Candidate:
    """A plan, and what is known about it.

    Attributes:
        number: its place in the space.
        case: its values.
        status: its outcome so far.
        reason: why it is ruled out, unless by its bound.
        least: a lower bound on its cost; its cost if it is simulated.
        held: bytes held by its fullest GPU; a lower bound before it is priced.
        excess: bytes beyond the usable memory.
        against: of an objective that has it, a lower bound on what it is weighed against; this, if it is simulated.
        done: the last step that it has passed; empty if none.
        row: its summary.
        beyond: whether it is a neighbour that is none of the plans listed.
    """

    number: int
    case: Case
    status: str = UNKNOWN
    reason: str = ""
    least: float = 0.0
    held: int = 0
    excess: int = 0
    against: float = 0.0
    done: str = ""
    row: Row = field(default_factory=dict)
    beyond: bool = False

    @property
    def ordered(self) -> bool:
        """Whether its memory is that of its order of ops."""
        return self.done in ORDER[1:]


class Standing(NamedTuple):
    """The progress of a search; costs are infinite where none is known. Before it, of plans that a walk met."""

    plans: int
    screened: int
    simulated: int
    open: int
    best: float
    least: float
    walked: int = 0


class BranchAndBound:
    """The state of a search.

    Attributes:
        candidates: all plans.
    """

    def __init__(
        self,
        settings: Settings,
        cases: Sequence[Case],
        *,
        known: Mapping[tuple[str, int], Evaluation] | None = None,
        simulated: Mapping[int, str] | None = None,
        note: Callable[[str, int, Evaluation], None] = lambda step, number, evaluation: None,
        progress: Callable[[Standing], None] = lambda standing: None,
    ) -> None:
        """Begin with every plan unknown.

        Args:
            settings: the scenario and its `search` block.
            cases: the plans.
            known: (step, number of a plan) → the evaluation of an earlier search, or of a walk.
            simulated: number of a plan that a walk simulated → its fingerprint.
            note: called with the step, the number and the evaluation of every plan whose order is bound or simulated.
            progress: called after every evaluation.
        """
        self.candidates = [Candidate(number, case) for number, case in enumerate(cases)]
        self._settings = settings
        self._known = {} if known is None else known  # a walk may still add to both
        self._found = {} if simulated is None else simulated
        self._note = note
        self._progress = progress
        self._screening: Iterator[Sequence[Candidate]] = iter(())
        self._candidates: list[tuple[float, int, int]] = []  # bound, remaining steps, number
        self._running: dict[int, Candidate] = {}
        self._costs: list[float] = []  # of simulated plans, in ascending order
        self._equivalent: dict[str, int] = {}
        self._asked = 0
        self._early_plan = -1  # the last that was chosen to be simulated early
        self._early_plans = 0  # chosen so far
        self._screened = 0
        self._weighed = settings.objective.against is not None

    def run(self, pool: Pool) -> None:
        """Search to the end; within a time limit, take up what a walk found, and simulate some plans early.

        Raises:
            BudgetSpentError: the time of the pool is over.
            WorkersLostError: its executor no longer runs anything.
        """
        if pool.until < inf:
            self._take_up()
        self._screening = iter(_batches([one for one in self.candidates if not one.done]))
        for next_task in (self._next_screening, self._next) if pool.until == inf else (self._next_in_time,):
            with closing(pool.run(next_task, lost)) as finished:
                for task, evaluations in finished:
                    for (step, candidate), evaluation in zip(task.keys, evaluations, strict=False):
                        self._learn(step, candidate, evaluation)
                    self._progress(self._standing())
        for candidate in self.candidates:
            if candidate.status == UNKNOWN:
                candidate.status = EXCLUDED

    def stop(self) -> None:
        """Mark the plans that can no longer be the best as excluded; the others stay unknown."""
        self._take_up()
        for candidate in self.candidates:
            if candidate.status == UNKNOWN and candidate.done and self._is_out(candidate):
                candidate.status = EXCLUDED

    @property
    def least(self) -> float:
        """A cost that no plan undercuts."""
        if self._screened < len(self.candidates):
            return 0.0
        return min((one.least for one in self.candidates if one.status in (UNKNOWN, SIMULATED)), default=inf)

    def _take_up(self) -> None:
        """Learn the plans that a walk simulated."""
        for number, fingerprint in self._found.items():
            candidate = self.candidates[number]
            if candidate.status != UNKNOWN:
                continue
            self._screened += not candidate.done
            candidate.done = "simulate"
            if not self._is_same(candidate, fingerprint):
                self._learn("simulate", candidate, self._known["simulate", number])

    def _is_same(self, candidate: Candidate, fingerprint: str) -> bool:
        """Whether a plan is the same as one before it, with which it is then done."""
        first = self._equivalent.setdefault(fingerprint, candidate.number)
        if first != candidate.number:
            candidate.status, candidate.reason = SAME, f"the same as plan {first}"
        return first != candidate.number

    def _learn(self, step: str, candidate: Candidate, evaluation: Evaluation) -> None:
        """Apply the evaluation of a step to a plan."""
        self._running.pop(candidate.number, None)
        if step == "screen":
            self._screened += 1
        elif step in KEPT and (step, candidate.number) not in self._known:
            self._note(step, candidate.number, evaluation)
        candidate.done, candidate.reason = step, evaluation.reason
        candidate.held, candidate.excess = max(candidate.held, evaluation.held), evaluation.excess
        if evaluation.reason:
            candidate.status = MISFIT if evaluation.misfit else IMPOSSIBLE
            return
        if step == "simulate":
            candidate.least, candidate.against = evaluation.least, evaluation.against
        else:
            candidate.least = max(candidate.least, evaluation.least)
            candidate.against = max(candidate.against, evaluation.against)
        if step == "simulate":
            candidate.status, candidate.row = SIMULATED, evaluation.row
            insort(self._costs, evaluation.least)
            return
        if step == "weigh" and self._is_same(candidate, evaluation.fingerprint):
            return
        heapq.heappush(self._candidates, (candidate.least, len(ORDER) - ORDER.index(step), candidate.number))

    def _next_screening(self) -> Task | None:
        near = next(self._screening, None)
        return None if near is None else self._task("screen", near)

    def _task(self, step: str, candidates: Sequence[Candidate]) -> Task:
        cases = [candidate.case for candidate in candidates]
        return Task(partial(evaluate, self._settings, step), cases, [(step, candidate) for candidate in candidates])

    def _next(self) -> Task | None:
        """The next step of the plan with the lowest bound; evaluations of earlier searches are reused."""
        while self._candidates:
            if task := self._further(heapq.heappop(self._candidates)[2]):
                return task
        return None

    def _next_in_time(self) -> Task | None:
        """A screening, or else the next step; every few times, that of the plan that is furthest along."""
        self._asked += 1
        every = AFTER if self._screened < len(self.candidates) else AMONG
        if len(self._costs) < self._settings.block.top + EARLY and self._asked % every == 0 and (task := self._early()):
            return task
        return self._next_screening() or self._next()

    def _early(self) -> Task | None:
        """The next step of the plan that is simulated early; none while one of its steps is under way."""
        while self._candidates and self._early_plan not in self._running:
            queued = self._chosen_early()
            self._candidates.remove(queued)
            heapq.heapify(self._candidates)
            if task := self._further(queued[2]):
                return task
        return None

    def _chosen_early(self) -> tuple[float, int, int]:
        """The plan chosen before, until it is simulated or ruled out, then another.

        That is the one furthest along; of several, the one with the lowest bound. The quickest plans are often those
        that do not fit: until one is simulated, every second is the one that holds least.
        """
        for queued in self._candidates:
            if queued[2] == self._early_plan:
                return queued
        self._early_plans += 1
        if not self._costs and self._early_plans % 2 == 0:
            chosen = min(self._candidates, key=lambda queued: (self.candidates[queued[2]].held, queued))
        else:
            chosen = min(self._candidates, key=lambda queued: (queued[1], queued[0], queued[2]))
        self._early_plan = chosen[2]
        return chosen

    def _further(self, number: int) -> Task | None:
        """The next step of a plan; none if it is excluded, or if an earlier search took the step."""
        candidate = self.candidates[number]
        if self._is_out(candidate):
            candidate.status = EXCLUDED
            return None
        step = ORDER[ORDER.index(candidate.done) + 1]
        known = self._known.get((step, number))
        if known is not None:
            self._learn(step, candidate, known)
            return None
        self._running[number] = candidate
        return self._task(step, [candidate])

    def _is_out(self, candidate: Candidate) -> bool:
        """Whether the requested number of simulated plans are no worse than it can be."""
        top = self._settings.block.top
        if len(self._costs) < top or candidate.least < self._costs[top - 1]:
            return False
        weighed = [*(["held"] if self._settings.block.front else []), *(["against"] if self._weighed else [])]
        return not weighed or self._is_dominated(candidate, "least", *weighed)

    def _is_dominated(self, candidate: Candidate, *figures: str) -> bool:
        """Whether a simulated plan is worse in none of these attributes."""
        worst = attrgetter(*figures)(candidate)
        simulated = (attrgetter(*figures)(one) for one in self.candidates if one.status == SIMULATED)
        return any(all(map(le, each, worst)) for each in simulated)

    def _standing(self) -> Standing:
        best = self._costs[0] if self._costs else inf
        running = [candidate.least for candidate in self._running.values()]
        least = min([best, *running, *(one[0] for one in self._candidates[:1])])
        still = sum(least_of < best for least_of, _, _ in self._candidates) + len(running)
        return Standing(len(self.candidates), self._screened, len(self._costs), still, best, least)


def _batches(candidates: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Candidates that are screened together; those that share their costs are neighbours."""
    near = sorted(candidates, key=lambda candidate: (neighbours(candidate.case), candidate.number))
    return (near[first : first + TOGETHER] for first in range(0, len(near), TOGETHER))


def lost(case: Case, error: BaseException) -> Evaluation:
    """The evaluation of a plan whose worker was lost twice."""
    return Evaluation(reason=f"{LOST}: {type(error).__name__}")
