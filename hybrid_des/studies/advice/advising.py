"""Advice on a scenario: its neighbours priced, the best weighed, and those that would be shown simulated.

    60 to 250 plans screened ─► those that may gain priced ─► 30 weighed ─► those to show simulated, until all shown are

The budget is counted, so that the same scenario has the same advice everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import inf
from operator import attrgetter

from hybrid_des.analysis.advice import Advice, AdviceLine
from hybrid_des.analysis.difference import difference
from hybrid_des.analysis.tasks import AtOnce, in_turn
from hybrid_des.scenario.loading import Source, scenario_of, stated_of
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.shortcuts.run import run as simulated
from hybrid_des.simulation.memory import MemoryPeak
from hybrid_des.simulation.outcome import Run, fullest
from hybrid_des.simulation.run import reduced_gc
from hybrid_des.studies.advice.catches import catches, remarks
from hybrid_des.studies.advice.choice import LEAST, Catches, chosen
from hybrid_des.studies.advice.evaluation import Evaluator, Neighbour
from hybrid_des.studies.advice.neighbourhood import neighbourhood
from hybrid_des.studies.advice.words import words_of
from hybrid_des.studies.neighbours.framework import changed_flags
from hybrid_des.studies.neighbours.position import Position
from hybrid_des.units import PICOSECONDS_PER_SECOND

WEIGHED = 8  # plans without a catch, the best by price; beside them the best of every kind
KINDS = 16  # the most of these
CAUGHT = 3  # plans with one catch
SIMULATED, FEW = 8, 4  # plans that are simulated; fewer where the run itself has many events
MANY_EVENTS = 10_000
EVENTS = 4_000_000  # of all simulations together, after which none is begun


@reduced_gc()
def advise(scenario: Source, overrides: Overrides = (), *, run: Run | None = None, at_once: AtOnce = in_turn) -> Advice:
    """Find settings that make a scenario's step shorter, or make it fit into memory; the machine stays the same.

    Args:
        scenario: the scenario, the path of its file, or a mapping.
        overrides: changes to it, such as ["schedule.kind=gpipe"] or {"schedule.kind": "gpipe"}.
        run: its run, if it has been simulated.
        at_once: runs independent simulations; `hybrid_des.studies.forked.forked(4)` uses four processes. Default: one
            after the other. The advice does not depend on it.

    Raises:
        HybridDesError: the scenario cannot be simulated.

    Example:
        >>> from hybrid_des import advise
        >>> advice = advise("scenarios/h100_2x8.yaml")
        >>> advice
        <Advice on h100_2x8: step 2.76 s; 1 line; ZB-V schedule: 2.354 s>
        >>> advice.lines[0].settings
        {'schedule.kind': 'zb-v'}
    """
    document = stated_of(scenario, overrides)
    position = Position(scenario_of(document), document, {})
    if run is None:
        run = simulated(position.scenario.model_copy(update={"record": "compute", "on_oom": "warn"}))
    return _Advising(position, run, at_once).advice()


@dataclass(frozen=True)
class _Advising:
    """The search for advice on a run."""

    position: Position
    run: Run
    at_once: AtOnce = in_turn
    _known: dict[object, int] = field(default_factory=dict)

    @property
    def _step(self) -> float:
        return self.run.timeline.duration / PICOSECONDS_PER_SECOND / self.run.scenario.steps

    @cached_property
    def _peak(self) -> MemoryPeak:
        return fullest(self.run)

    @cached_property
    def _evaluator(self) -> Evaluator:
        longest = (1 - LEAST) * self._step if self._peak.fits else inf
        return Evaluator(self.position, self._step, longest, self.at_once)

    def advice(self) -> Advice:
        """The advice."""
        framework, counts = self.position.framework, self._evaluator.counts
        neighbours = neighbourhood(self._evaluator, self._counted)
        lines = sorted(self._shown(neighbours), key=lambda plan: (bool(self._counted(plan)), plan.step))
        nearest = None if lines or self._peak.fits else self._nearest(neighbours)
        return Advice(
            self.position.scenario,
            self._step,
            self._peak.held,
            self._peak.gpu.memory,
            [self._line(plan) for plan in lines],
            None if nearest is None else self._line(nearest),
            framework="" if framework is None else framework.name,
            assumed=framework is not None and framework.assumed,
            priced=counts["price"],
            weighed=counts["weigh"],
            simulated=counts["simulate"],
        )

    def _shown(self, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
        """The plans to show, all simulated."""
        evaluator, fits = self._evaluator, self._peak.fits
        weighed = _unlike(evaluator.passed("weigh", _to_weigh(neighbours, self._counted)))
        most = FEW if self.run.events > MANY_EVENTS else SIMULATED
        while evaluator.counts["simulate"] < most and evaluator.events < EVENTS:
            shown = chosen(weighed, self._step, self._counted, fits=fits)
            unknown = [plan for plan in shown or self._doubtful(weighed) if not plan.simulated][:1]
            if not unknown:
                break
            if not evaluator.passed("simulate", unknown):
                weighed.remove(unknown[0])
        return chosen([plan for plan in weighed if plan.simulated], self._step, self._counted, fits=fits)

    def _doubtful(self, weighed: Sequence[Neighbour]) -> list[Neighbour]:
        """The plans that may be worth showing, though they are estimated not to be: their bounds do not tell."""
        unknown = (plan for plan in weighed if plan.fits and not plan.simulated)
        return sorted(self._evaluator.hopeful(unknown), key=lambda plan: (self._counted(plan), plan.step))

    def _nearest(self, neighbours: Sequence[Neighbour]) -> Neighbour | None:
        """The plan that lacks the fewest bytes, if that is fewer than now; simulated."""
        least = min(neighbours, key=lambda plan: (plan.held - plan.memory, len(plan.kinds)), default=None)
        if least is None or least.held - least.memory >= self._peak.excess:
            return None
        return next(iter(self._evaluator.passed("simulate", [least])), None)

    def _counted(self, plan: Neighbour) -> int:
        """How many catches a plan has."""
        key = plan.key, plan.held, plan.memory
        if key not in self._known:
            self._known[key] = len(self._catches(plan))
        return self._known[key]

    def _catches(self, plan: Neighbour) -> tuple[str, ...]:
        after = self._evaluator.scenario(plan)
        return catches(self.position.scenario, after, self.position.framework, plan.held, plan.memory, self._peak.held)

    def _line(self, plan: Neighbour) -> AdviceLine:
        before, after = self.position.scenario, self._evaluator.scenario(plan)
        framework = self.position.framework
        return AdviceLine(
            words_of(before, after),
            plan.settings,
            plan.kinds,
            after,
            plan.step,
            1 - plan.step / self._step,
            difference(before, after),
            plan.held,
            plan.memory,
            (*remarks(before, after), *self._catches(plan)),
            () if framework is None else changed_flags(framework.launch(before), framework.launch(after)),
        )


def _to_weigh(neighbours: Sequence[Neighbour], catches: Catches) -> list[Neighbour]:
    """By their prices: the best without a catch, the best with one, and the best of every kind."""
    ordered = sorted((plan for plan in neighbours if plan.fits), key=attrgetter("step"))
    best: dict[frozenset[str], Neighbour] = {}
    for plan in ordered:
        best.setdefault(frozenset(plan.kinds), plan)
    of_kinds = sorted(best.values(), key=lambda plan: len(plan.kinds))[:KINDS]
    plain = islice((plan for plan in ordered if not catches(plan)), WEIGHED)
    caught = islice((plan for plan in ordered if catches(plan) == 1), CAUGHT)
    return list({id(plan): plan for plan in (*plain, *caught, *of_kinds)}.values())


def _unlike(weighed: Sequence[Neighbour]) -> list[Neighbour]:
    """Of plans that are the same, the one of the fewest moves."""
    first: dict[str, Neighbour] = {}
    for plan in sorted(weighed, key=lambda plan: len(plan.kinds)):
        first.setdefault(plan.fingerprint, plan)
    return list(first.values())
