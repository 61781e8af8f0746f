"""Advice on a scenario: its neighbours priced, the best weighed, and those that would be shown simulated.

    60 to 250 plans priced ─► 30 weighed ─► those that would be shown simulated, until all shown are

The budget is counted, so that the same scenario has the same advice everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import attrgetter

from hybrid_des.analysis.advice import Advice, AdviceLine
from hybrid_des.analysis.difference import difference
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, document_of, given_values, load, scenario_of
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.shortcuts.run import run as simulated
from hybrid_des.simulation.memory import MemoryPeak, worst_peak
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.run import reduced_gc
from hybrid_des.studies.advice.catches import catches, remarks
from hybrid_des.studies.advice.choice import Catches, chosen
from hybrid_des.studies.advice.evaluation import Evaluator, Neighbour
from hybrid_des.studies.advice.framework import changed_flags
from hybrid_des.studies.advice.neighbourhood import neighbourhood
from hybrid_des.studies.advice.position import Position
from hybrid_des.studies.advice.words import words_of
from hybrid_des.units import PICOSECONDS_PER_SECOND

WEIGHED = 8  # plans without a catch, the best by price; beside them the best of every kind
KINDS = 20  # the most of these
CAUGHT = 3  # plans with one catch
SIMULATED, FEW = 8, 4  # plans that are simulated; fewer where the run itself has many events
MANY_EVENTS = 10_000
EVENTS = 4_000_000  # of all simulations together, after which none is begun


@reduced_gc()
def advise(scenario: Source, overrides: Overrides = (), *, run: Run | None = None) -> Advice:
    """What to change in a scenario so that its step is shorter, or fits into memory; settings only, never the machine.

    Args:
        scenario: the scenario, the path of its file, or a mapping.
        overrides: changes of it, such as ["schedule.kind=gpipe"] or {"schedule.kind": "gpipe"}.
        run: its run, if it has been simulated.

    Raises:
        HybridDesError: the scenario cannot be simulated.
    """
    document = _document(scenario, overrides)
    position = Position(scenario_of(document), document, {})
    if run is None:
        run = simulated(position.scenario.model_copy(update={"record": "compute", "on_oom": "warn"}))
    return _Advising(position, run).advice()


def _document(scenario: Source, overrides: Overrides) -> Document:
    """What is stated of a scenario: that of a file, or the fewest values that make it."""
    if isinstance(scenario, Scenario):
        return Document(given_values(load(scenario, overrides)), scenario.name)
    return document_of(scenario, overrides)


@dataclass(frozen=True)
class _Advising:
    """The search for advice on a run."""

    position: Position
    run: Run
    _known: dict[object, int] = field(default_factory=dict)

    @property
    def _step(self) -> float:
        return self.run.timeline.duration / PICOSECONDS_PER_SECOND / self.run.scenario.steps

    @cached_property
    def _peak(self) -> MemoryPeak:
        return worst_peak(self.run.ranks, self.run.peak_memory, self.run.scenario.cluster.gpus_of(self.run.ranks))

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.position, self._step)

    def advice(self) -> Advice:
        """The advice."""
        framework, counts = self.position.framework, self._evaluator.counts
        neighbours = neighbourhood(self._evaluator)
        lines = sorted(self._shown(neighbours), key=lambda one: (bool(self._counted(one)), one.step))
        nearest = None if lines or self._peak.fits else self._nearest(neighbours)
        return Advice(
            self.position.scenario,
            self._step,
            self._peak.held,
            self._peak.gpu.memory,
            [self._line(one) for one in lines],
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
            unknown = [one for one in shown if not one.simulated][:1]
            if not unknown:
                break
            if not evaluator.passed("simulate", unknown):
                weighed.remove(unknown[0])
        return chosen([one for one in weighed if one.simulated], self._step, self._counted, fits=fits)

    def _nearest(self, neighbours: Sequence[Neighbour]) -> Neighbour | None:
        """The plan that lacks the fewest bytes, if that is fewer than now; simulated."""
        least = min(neighbours, key=lambda one: (one.held - one.memory, len(one.kinds)), default=None)
        if least is None or least.held - least.memory >= self._peak.excess:
            return None
        return next(iter(self._evaluator.passed("simulate", [least])), None)

    def _counted(self, one: Neighbour) -> int:
        """How many catches a plan has."""
        key = one.key, one.held, one.memory
        if key not in self._known:
            self._known[key] = len(self._catches(one))
        return self._known[key]

    def _catches(self, one: Neighbour) -> tuple[str, ...]:
        after = self._evaluator.scenario(one)
        return catches(self.position.scenario, after, self.position.framework, one.held, one.memory, self._peak.held)

    def _line(self, one: Neighbour) -> AdviceLine:
        before, after = self.position.scenario, self._evaluator.scenario(one)
        framework = self.position.framework
        return AdviceLine(
            words_of(before, after),
            one.settings,
            one.kinds,
            after,
            one.step,
            1 - one.step / self._step,
            difference(before, after),
            one.held,
            one.memory,
            (*remarks(before, after), *self._catches(one)),
            () if framework is None else changed_flags(framework.launch(before), framework.launch(after)),
        )


def _to_weigh(neighbours: Sequence[Neighbour], catches: Catches) -> list[Neighbour]:
    """By their prices: the best without a catch, the best with one, and the best of every kind."""
    ordered = sorted((one for one in neighbours if one.fits), key=attrgetter("step"))
    best: dict[frozenset[str], Neighbour] = {}
    for one in ordered:
        best.setdefault(frozenset(one.kinds), one)
    of_kinds = sorted(best.values(), key=lambda one: len(one.kinds))[:KINDS]
    plain = islice((one for one in ordered if not catches(one)), WEIGHED)
    caught = islice((one for one in ordered if catches(one) == 1), CAUGHT)
    return list({id(one): one for one in (*plain, *caught, *of_kinds)}.values())


def _unlike(weighed: Sequence[Neighbour]) -> list[Neighbour]:
    """Of plans that are the same, the one of the fewest moves."""
    first: dict[str, Neighbour] = {}
    for one in sorted(weighed, key=lambda one: len(one.kinds)):
        first.setdefault(one.fingerprint, one)
    return list(first.values())
