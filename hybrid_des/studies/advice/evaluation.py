"""Evaluation of neighbours with the steps of a search: screened, priced, weighed, simulated; counted, never timed.

Until it is simulated, the step of a plan is estimated: its bound, times what the step as it is takes over its own
bound. Bounds need ops that take what they cost: where some ranks are slow, times are random or documents differ, plans
are priced and weighed without that. Simulated is always the plan itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.shortcuts.least_remaining import is_perturbed
from hybrid_des.studies.neighbours.moves import Move
from hybrid_des.studies.neighbours.position import Position
from hybrid_des.studies.plan_search.evaluation import Evaluation, evaluate, scenario_in
from hybrid_des.studies.plan_search.terms import SearchBlock, Settings
from hybrid_des.studies.sweep.runner import with_case

PERTURBED = ("slow", "jitter", "data", "steps")  # keys of what makes times of ops differ from their costs


@dataclass
class Neighbour:
    """A plan one or two moves away.

    Attributes:
        kinds: the kinds of its moves.
        settings: what they set.
        step: seconds of its step; estimated until it is simulated.
        held: bytes held by the GPU closest to its memory, which has `memory`.
        done: the last step of its evaluation.
        fingerprint: a hash that equal plans share, once it is weighed.
    """

    kinds: tuple[str, ...]
    settings: dict[str, object]
    step: float = 0.0
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
        counts: how many plans passed each step of the evaluation.
        events: of all simulations.
    """

    position: Position
    step: float
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

    def passed(self, step: str, neighbours: Iterable[Neighbour]) -> list[Neighbour]:
        """The neighbours that are possible after a step of the evaluation."""
        return [plan for plan in neighbours if self._passes(step, plan)]

    def _passes(self, step: str, plan: Neighbour) -> bool:
        self.counts[step] += 1
        evaluation = self._evaluated(step, plan.settings)
        if evaluation.reason:
            return False
        plan.done, plan.fingerprint = step, evaluation.fingerprint or plan.fingerprint
        self.events += evaluation.row.get("events", 0)
        plan.step = evaluation.least if plan.simulated else max(plan.step, evaluation.least * self._scale)
        if evaluation.allowed:
            plan.held, plan.memory = evaluation.allowed + evaluation.excess, evaluation.allowed
        return True

    def _evaluated(self, step: str, settings: dict[str, object]) -> Evaluation:
        return evaluate(self._plain if step == "simulate" else self._calm, step, settings)


def _settings(document: Document) -> Settings:
    """A search's settings in which plans that do not fit have bounds too."""
    values = {key: value for key, value in document.value.items() if key not in ("search", "sweep", "plot")}
    return replace(Settings(Document(values, document.source, document.places), (), (), SearchBlock()), bounding=True)


def neighbour_of(at: Position, move: Move) -> Neighbour:
    """The plan to which a move leads."""
    return Neighbour((*at.kinds, move.kind), {**at.settings, **move.settings})
