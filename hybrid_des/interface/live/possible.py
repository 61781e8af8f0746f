"""Which values a control can take while all other values stay: those that a scenario and its schedule accept."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

from hybrid_des.errors import HybridDesError
from hybrid_des.interface.live.controls import Control
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import PlanRequest
from hybrid_des.scenario.composition import override
from hybrid_des.scenario.loading import scenario_of
from hybrid_des.scenario.strict_yaml import Document

TRIED = (
    "parallel.pipeline", "parallel.data", "parallel.tensor", "parallel.context", "schedule.kind", "schedule.chunks",
    "schedule.microbatches",
)  # fmt: skip
MOST = 32  # the largest whole number that is tried


def possible_values(document: Document, controls: Iterable[Control]) -> dict[str, list[str]]:
    """The values of each control that are possible, as in a file; whole numbers are tried up to 32."""
    return {
        control.path: [value for value in _candidates(control) if _is_possible(document, control, value)]
        for control in controls
        if control.path in TRIED
    }


def _candidates(control: Control) -> Iterator[str]:
    if control.kind == "choice":
        yield from control.choices
    elif control.kind == "whole" and control.number is not None:
        yield from map(str, range(max(1, int(control.least)), min(int(control.most), MOST) + 1))


def _is_possible(document: Document, control: Control, value: str) -> bool:
    if value == control.value:
        return True
    changed = copy.deepcopy(document)
    try:
        override(changed, [f"{control.path}={value}"])
        scenario = scenario_of(changed)
        schedule, ranks = scenario.schedule, scenario.parallel.pipeline
        if schedule.kind is not None:  # a schedule refuses numbers, whatever its ops take
            unit = (1,) * ranks
            request = PlanRequest(ranks, schedule.microbatches, schedule.chunks, unit, unit, unit)
            schedules.find(schedule.kind).build(request, *schedule.arguments)
    except HybridDesError:
        return False
    return True
