"""Evaluation of neighbours with the steps of a search: screened, priced, weighed, simulated; counted, never timed.

Until it is simulated, the step of a plan is estimated: its bound, times what the step as it is takes over its own
bound. Bounds need ops that take what they cost: where some ranks are slow, times are random or documents differ, plans
are priced and weighed without that. Simulated is always the plan itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf

from hybrid_des.analysis.tasks import AtOnce, in_turn
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.shortcuts.least_remaining import is_perturbed
from hybrid_des.studies.neighbours.moves import Move
from hybrid_des.studies.neighbours.position import Position
from hybrid_des.studies.plan_search.evaluation import Evaluation, evaluate, scenario_in
from hybrid_des.studies.plan_search.terms import SearchBlock, Settings
from hybrid_des.studies.sweep.runner import with_case
from hybrid_des.units import grouped_by

ORDERING = ("schedule.", "parallel.pipeline", "parallel.data", "batch")  # beginnings of keys
PERTURBED = ("slow", "jitter", "data", "steps")  # keys of what makes times of ops differ from their costs


@dataclass
class Neighbour:
    """A plan one or two moves away.

    Attributes:
        kinds: the kinds of its moves.
        settings: what they set.
        step: seconds of its step; estimated until it is simulated.
        least: the bound on them.
        held: bytes held by the GPU closest to its memory, which has `memory`.
        done: the last step of its evaluation.
        fingerprint: a hash that equal plans share, once it is weighed.
    """

    kinds: tuple[str, ...]
    settings: dict[str, object]
    step: float = 0.0
    least: float = 0.0
    held: int = 0
    memory: int = 0
    done: str = ""
    fingerprint: str = ""

    @property
    def fits(self) -> bool:
        """Whether it fits into memory, as far as is known."""
        return self.held <= self.memory

    @property
    def simulated(self) -> bool:
        """Whether its step and its memory are those of its own run."""
        return self.done == "simulate"

    @property
    def key(self) -> frozenset[str]:
        """What tells it apart from others."""
        return frozenset(f"{path}={value!r}" for path, value in self.settings.items())


@dataclass
class Evaluator:
    """Evaluates the neighbours of a plan, and counts them.

    Attributes:
        position: the plan.
        step: seconds of its step.
        longest: seconds; a plan that takes longer is not shown.
        at_once: runs evaluations.
        counts: how many plans passed each step of the evaluation.
        events: of all simulations.
    """

    position: Position
    step: float
    longest: float = inf
    at_once: AtOnce = in_turn
    counts: Counter[str] = field(default_factory=Counter)
    events: int = 0

    def __post_init__(self) -> None:
        document = self.position.document
        self._plain = self._calm = _settings(document)
        if is_perturbed(self.position.scenario):
            values = {key: value for key, value in document.value.items() if key not in PERTURBED}
            self._calm = _settings(Document(values, document.source, document.places))
        bound = self._evaluated("weigh", {}).least
        self._scale = self.step / bound if bound else 1.0

    def scenario(self, neighbour: Neighbour) -> Scenario:
        """The scenario of a neighbour."""
        return scenario_in(self._plain, neighbour.settings)

    def at(self, neighbour: Neighbour) -> Position:
        """A neighbour as the plan from which further moves are made."""
        document = with_case(self.position.document, neighbour.settings, "advice")
        return Position(self.scenario(neighbour), document, neighbour.settings, neighbour.kinds)

    def hopeful(self, neighbours: Iterable[Neighbour]) -> list[Neighbour]:
        """Those that may be worth showing: not those whose bounds say that they take too long, where bounds are known.

        Where times of ops differ from their costs, a step may take less than the bound on one without that.
        """
        known = self._calm is self._plain
        return [plan for plan in neighbours if not known or plan.least <= self.longest]

    def passed(self, step: str, neighbours: Iterable[Neighbour]) -> list[Neighbour]:
        """The neighbours that are possible after a step of the evaluation."""
        plans = [*neighbours]
        self.counts[step] += len(plans)
        evaluations = zip(plans, self._evaluations(step, plans), strict=True)
        return [plan for plan, evaluation in evaluations if self._passes(step, plan, evaluation)]

    def _evaluations(self, step: str, plans: Sequence[Neighbour]) -> list[Evaluation]:
        """Those of plans whose ops may be in one order follow each other, so that this order is made once."""
        alike = grouped_by(range(len(plans)), lambda number: _order_of(plans[number])).values()
        settings = [[plans[number].settings for number in numbers] for numbers in alike]
        of_groups = self.at_once([partial(self._evaluated_all, step, some) for some in settings])
        of_number = dict(zip(chain.from_iterable(alike), chain.from_iterable(of_groups), strict=True))
        return [of_number[number] for number in range(len(plans))]

    def _passes(self, step: str, plan: Neighbour, evaluation: Evaluation) -> bool:
        if evaluation.reason:
            return False
        plan.done, plan.fingerprint = step, evaluation.fingerprint or plan.fingerprint
        self.events += evaluation.row.get("events", 0)
        plan.least = max(plan.least, evaluation.least)
        plan.step = evaluation.least if plan.simulated else max(plan.step, evaluation.least * self._scale)
        if evaluation.allowed:
            plan.held, plan.memory = evaluation.allowed + evaluation.excess, evaluation.allowed
        return True

    def _evaluated_all(self, step: str, settings: Sequence[dict[str, object]]) -> list[Evaluation]:
        return [self._evaluated(step, one) for one in settings]

    def _evaluated(self, step: str, settings: dict[str, object]) -> Evaluation:
        return evaluate(self._plain if step == "simulate" else self._calm, step, settings)


def _order_of(plan: Neighbour) -> tuple[str, ...]:
    """What a plan sets of the order of its ops."""
    return tuple(f"{path}={value!r}" for path, value in sorted(plan.settings.items()) if path.startswith(ORDERING))


def _settings(document: Document) -> Settings:
    """A search's settings in which plans that do not fit have bounds too."""
    values = {key: value for key, value in document.value.items() if key not in ("search", "sweep", "plot")}
    return replace(Settings(Document(values, document.source, document.places), (), (), SearchBlock()), bounding=True)


def neighbour_of(at: Position, move: Move) -> Neighbour:
    """The plan to which a move leads."""
    return Neighbour((*at.kinds, move.kind), {**at.settings, **move.settings})
