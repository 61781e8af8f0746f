"""Best-first search: of all plans that may still be the best, the one with the lowest bound is examined next.

    screened ─► priced ─► weighed ─► simulated     a plan returns to the queue after each step, with a higher bound
        └─► impossible, does not fit, the same as another, or excluded: the best so far is no worse than its bound

When the queue holds only plans whose bounds are no better than the best ones found, these are proved to be the best.
"""

from __future__ import annotations

import heapq
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

from hybrid_des.errors import HybridDesError
from hybrid_des.search.appraisal import Finding, neighbours, price, screen, simulate, weigh
from hybrid_des.search.terms import Settings
from hybrid_des.simulation.watch import BudgetSpentError
from hybrid_des.sweep.axes import Case
from hybrid_des.sweep.dispatch import Row

UNKNOWN, IMPOSSIBLE, MISFIT = "unknown", "impossible", "does not fit"
SAME, EXCLUDED, SIMULATED = "same as another", "excluded by bound", "simulated"
BATCH = 64  # plans that are screened together
PATIENCE_S = 1.0  # without a result, before `waiting` is called


STEPS = ("screen", "price", "weigh", "simulate")
KEPT = STEPS[2:]  # steps that a resumed search does not repeat


class Runs(Protocol):
    """The part of an executor that is used; each gets one job at a time."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Run a function elsewhere."""


class AtOnce:
    """An executor that runs everything immediately, in this process."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Run a function."""
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


@dataclass
class Candidate:
    """A plan, and what is known about it.

    Attributes:
        number: its place in the space.
        case: its values.
        status: its outcome so far.
        reason: why it is ruled out, unless by its bound.
        least: a lower bound on its cost; its cost if it is simulated.
        held: bytes held by its fullest GPU; a lower bound before it is weighed.
        excess: bytes beyond the usable memory.
        done: the last of `STEPS` that it has passed; empty if none.
        row: its summary.
    """

    number: int
    case: Case
    status: str = UNKNOWN
    reason: str = ""
    least: float = 0.0
    held: int = 0
    excess: int = 0
    done: str = ""
    row: Row = field(default_factory=dict)

    @property
    def weighed(self) -> bool:
        """Whether its bound and memory are those of its order of ops."""
        return self.done in STEPS[2:]


class Standing(NamedTuple):
    """The progress of a search; costs are infinite where none is known."""

    plans: int
    screened: int
    simulated: int
    open: int
    best: float
    least: float


class _Job(NamedTuple):
    step: str
    candidates: Sequence[Candidate]
    again: bool = False  # whether its worker was lost once before


_STEPS: Mapping[str, Callable[..., Any]] = {"screen": screen, "price": price, "weigh": weigh, "simulate": simulate}


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
        known: Mapping[tuple[str, int], Finding],
        note: Callable[[str, int, Finding], None],
        progress: Callable[[Standing], None],
    ) -> None:
        """Begin with every plan unknown.

        Args:
            settings: the scenario and its `search` block.
            cases: the plans.
            known: (step, number of a plan) → the finding of an earlier search.
            note: called with the step, the number and the finding of every plan that is weighed or simulated.
            progress: called after every finding.
        """
        self.candidates = [Candidate(number, case) for number, case in enumerate(cases)]
        self._settings = settings
        self._known = known
        self._note = note
        self._progress = progress
        self._screening = iter(_batches(self.candidates))
        self._candidates: list[tuple[float, int, int]] = []  # bound, remaining steps, number
        self._lost: deque[_Job] = deque()
        self._running: dict[Future[Any], tuple[_Job, Runs]] = {}
        self._costs: list[float] = []  # of simulated plans, in ascending order
        self._twins: dict[str, int] = {}
        self._screened = 0

    def run(self, executors: Sequence[Runs], until: float = inf, waiting: Callable[[], None] = lambda: None) -> None:
        """Search to the end.

        Args:
            executors: run the steps, each one job at a time.
            until: the monotonic time at which to stop.
            waiting: called periodically while nothing finishes; may raise.

        Raises:
            BudgetSpentError: `until` has passed.
        """
        for next_job in (self._next_screening, self._next):
            self._drive(next_job, list(executors), until, waiting)
        for candidate in self.candidates:
            if candidate.status == UNKNOWN:
                candidate.status = EXCLUDED

    def stop(self) -> None:
        """Mark the plans that can no longer be the best as excluded; the others stay unknown."""
        for candidate in self.candidates:
            if candidate.status == UNKNOWN and candidate.done and self._is_out(candidate):
                candidate.status = EXCLUDED

    @property
    def least(self) -> float:
        """A cost that no plan undercuts."""
        if self._screened < len(self.candidates):
            return 0.0
        return min((one.least for one in self.candidates if one.status in (UNKNOWN, SIMULATED)), default=inf)

    def _drive(
        self, next_job: Callable[[], _Job | None], idle: list[Runs], until: float, waiting: Callable[[], None]
    ) -> None:
        while True:
            while idle and (job := self._lost.popleft() if self._lost else next_job()):
                if time.monotonic() >= until:
                    raise BudgetSpentError
                self._submit(job, idle.pop())
            if not self._running:
                return
            left = until - time.monotonic()
            done, _ = wait(self._running, timeout=max(0, min(PATIENCE_S, left)), return_when=FIRST_COMPLETED)
            if not done:
                if left <= 0:
                    raise BudgetSpentError
                waiting()
            for future in done:
                job, executor = self._running.pop(future)
                idle.append(executor)
                self._receive(job, future)

    def _submit(self, job: _Job, executor: Runs) -> None:
        cases = [candidate.case for candidate in job.candidates]
        argument = cases if job.step == "screen" else cases[0]
        self._running[executor.submit(_STEPS[job.step], self._settings, argument)] = job, executor

    def _receive(self, job: _Job, future: Future[Any]) -> None:
        try:
            result = future.result()
        except (HybridDesError, KeyboardInterrupt):
            raise
        except BaseException as error:  # its worker was lost
            if not job.again:
                self._lost.extend(_Job(job.step, [candidate], again=True) for candidate in job.candidates)
                return
            result = [Finding(reason=f"its worker was lost twice: {type(error).__name__}")]
        findings = result if isinstance(result, list) else [result]
        for candidate, finding in zip(job.candidates, findings, strict=True):
            self._learn(job.step, candidate, finding)
        self._progress(self._standing())

    def _learn(self, step: str, candidate: Candidate, finding: Finding) -> None:
        """Apply the finding of a step to a plan."""
        if step == "screen":
            self._screened += 1
        elif step in KEPT and (step, candidate.number) not in self._known:
            self._note(step, candidate.number, finding)
        candidate.done, candidate.reason = step, finding.reason
        candidate.held, candidate.excess = max(candidate.held, finding.held), finding.excess
        if finding.reason:
            candidate.status = MISFIT if finding.misfit else IMPOSSIBLE
            return
        candidate.least = finding.least if step == "simulate" else max(candidate.least, finding.least)
        if step == "simulate":
            candidate.status, candidate.row = SIMULATED, finding.row
            insort(self._costs, finding.least)
            return
        if step == "weigh":
            first = self._twins.setdefault(finding.twin, candidate.number)
            if first != candidate.number:
                candidate.status, candidate.reason = SAME, f"the same as plan {first}"
                return
        heapq.heappush(self._candidates, (candidate.least, len(STEPS) - STEPS.index(step), candidate.number))

    def _next_screening(self) -> _Job | None:
        batch = next(self._screening, None)
        return None if batch is None else _Job("screen", batch)

    def _next(self) -> _Job | None:
        """The next step of the plan with the lowest bound; findings of earlier searches are reused."""
        while self._candidates:
            candidate = self.candidates[heapq.heappop(self._candidates)[2]]
            if self._is_out(candidate):
                candidate.status = EXCLUDED
                continue
            step = STEPS[STEPS.index(candidate.done) + 1]
            known = self._known.get((step, candidate.number))
            if known is None:
                return _Job(step, [candidate])
            self._learn(step, candidate, known)
        return None

    def _is_out(self, candidate: Candidate) -> bool:
        """Whether the requested number of simulated plans are no worse than it can be."""
        top = self._settings.block.top
        if len(self._costs) < top or candidate.least < self._costs[top - 1]:
            return False
        return not self._settings.block.front or self._is_dominated(candidate)

    def _is_dominated(self, candidate: Candidate) -> bool:
        """Whether a simulated plan needs neither more time nor more memory."""
        simulated = (one for one in self.candidates if one.status == SIMULATED)
        return any(one.least <= candidate.least and one.held <= candidate.held for one in simulated)

    def _standing(self) -> Standing:
        best = self._costs[0] if self._costs else inf
        waiting = [job.candidates[0].least for job, _ in self._running.values() if job.step != "screen"]
        least = min([best, *waiting, *(one[0] for one in self._candidates[:1])])
        still = sum(least_of < best for least_of, _, _ in self._candidates) + len(waiting)
        return Standing(len(self.candidates), self._screened, len(self._costs), still, best, least)


def _batches(candidates: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Candidates that are screened together; those that share their costs are neighbours."""
    near = sorted(candidates, key=lambda one: (neighbours(one.case), one.number))
    return (near[first : first + BATCH] for first in range(0, len(near), BATCH))
