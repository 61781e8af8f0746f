"""The graph of plans: which plans one change of settings leads to, from those of the file to all others.

A change that leads from a plan of the space to values that some of its plans have leads to these. Where a search is
given no axes, other changes lead to plans beyond the space: what the file states otherwise is changed too, but nothing
that changes rounding, needs memory of the host, or that the framework of the file does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import ne
from typing import Any

from hybrid_des.errors import HybridDesError
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.neighbours.framework import framework_of, lacking
from hybrid_des.studies.neighbours.moves import moves_from
from hybrid_des.studies.neighbours.position import Position
from hybrid_des.studies.plan_search.default_axes import planned
from hybrid_des.studies.plan_search.evaluation import LAST, Evaluation, scenario_in
from hybrid_des.studies.plan_search.terms import Settings
from hybrid_des.studies.sweep.axes import Case
from hybrid_des.studies.sweep.runner import with_case
from hybrid_des.units import collected

SIZES = ("parallel.pipeline", "parallel.data", "parallel.tensor", "parallel.context", "parallel.expert")


@dataclass
class Visited:
    """A plan, and what a walk knows about it.

    Attributes:
        case: its values.
        number: its place in the space; None beyond it.
        least: a lower bound on its cost; its cost once it is simulated.
        excess: bytes beyond the usable memory, as a share of that; 0 if it fits.
        fingerprint: a hash that equal plans share, once it is weighed.
        last: its last evaluation.
    """

    case: Case
    number: int | None
    least: float = 0.0
    excess: float = 0.0
    fingerprint: str = ""
    last: Evaluation = field(default_factory=Evaluation)

    @property
    def key(self) -> str | int:
        """What tells it apart from others."""
        if self.number is not None:
            return self.number
        return repr(sorted((path, repr(value)) for path, value in self.case.items()))

    @property
    def promise(self) -> float:
        """What it might cost if its memory were made to suffice."""
        return self.least * (1 + self.excess)

    def learns(self, step: str, evaluation: Evaluation) -> bool:
        """Apply the evaluation of a step; whether the plan is still possible."""
        if evaluation.reason:
            return False
        self.least = evaluation.least if step == LAST else max(self.least, evaluation.least)
        self.excess = max(0, evaluation.excess) / evaluation.allowed if evaluation.allowed else 0.0
        self.fingerprint, self.last = evaluation.fingerprint or self.fingerprint, evaluation
        return True


class PlanGraph:
    """The plans of a space, and their neighbours."""

    def __init__(self, settings: Settings, cases: Sequence[Case]) -> None:
        """Index the plans by the values that moves change."""
        self._settings, self._cases = settings, cases
        self._written = settings.written
        self._framework = framework_of(settings.written) if settings.by_default else None
        self._like = collected((_values(self._written, case), number) for number, case in enumerate(cases))

    def root(self) -> Visited:
        """The plan of the file; if it is none of the space, one with the most of its values."""
        own = _values(self._written, {})
        like = min(self._like, key=lambda values: sum(map(ne, values, own)))
        number = self._like[like][0]
        return Visited(self._cases[number], number)

    def neighbours(self, plan: Visited) -> Iterator[Visited]:
        """The plans that one move leads to; none from one that is impossible."""
        try:
            scenario = scenario_in(self._settings, plan.case)
        except HybridDesError:
            return
        at = Position(scenario, with_case(self._settings.document, plan.case, "search"), plan.case)
        for move in moves_from(at):
            if move.sort == "host" or "gradients.codec" in move.settings:
                continue
            case = {**plan.case, **move.settings}
            inside = () if plan.number is None else self._like.get(_values(self._written, case), ())
            if self._settings.by_default and (not inside or plan.number in inside):
                yield Visited(case, None)
            else:
                yield from (Visited(self._cases[number], number) for number in inside)

    def layout(self, plan: Visited) -> tuple[int, ...]:
        """The ranks along each axis."""
        return tuple(planned(self._written, plan.case, path) for path in SIZES)

    def is_offered(self, plan: Visited) -> bool:
        """Whether the framework of the file has what a plan needs."""
        if plan.number is not None or self._framework is None:
            return True
        launch = self._framework.launch
        return not lacking(launch(self._written), launch(scenario_in(self._settings, plan.case)))


def _values(written: Scenario, case: Case) -> tuple[Any, ...]:
    """The values of a plan that moves change, those without an effect left out."""
    sizes = [planned(written, case, path) for path in SIZES]
    pipeline, data, _, context, _ = sizes
    kind = planned(written, case, "schedule.kind") if pipeline != 1 else None
    chunks = planned(written, case, "schedule.chunks") if kind in schedules.names() and _is_free(kind) else None
    recompute = planned(written, case, "recompute")
    level = repr([*recompute] if isinstance(recompute, tuple) else recompute)
    whole = case.get("recompute_layers", written.recompute_layers) is None
    sharding = planned(written, case, "sharding") if data != 1 or context != 1 else None
    samples = planned(written, case, "schedule.microbatch_size")
    return *sizes, kind, chunks, samples, level, whole, sharding


def _is_free(kind: str) -> bool:
    """Whether the number of chunks of a schedule is a choice."""
    facts = schedules.find(kind).facts
    return bool(facts["many_chunks"]) and facts["chunks"] is None
