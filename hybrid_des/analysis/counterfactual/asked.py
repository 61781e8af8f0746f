"""What-ifs beside the run as it was: simulated unless their ends are known, and in frozen order."""

from __future__ import annotations

from functools import partial

from hybrid_des.analysis.counterfactual.first_order import first_order
from hybrid_des.analysis.counterfactual.retimed_tasks import OfRetimed
from hybrid_des.analysis.counterfactual.retiming import is_retimed
from hybrid_des.analysis.counterfactual.what_if import Tried, Variant
from hybrid_des.analysis.critical_path.traced import Traced
from hybrid_des.analysis.tasks import Task


def asked_for(name: str, change: Variant, traced: Traced, end: int | None) -> Task:
    """A task that finds what a change gives, whose end may be known."""
    simulated = partial(_simulated, name, change, traced, end)
    if end is not None or not is_retimed(traced.run, change):
        return simulated
    return OfRetimed(lambda: [change], partial(_simulated, name, change, traced), simulated)


def _simulated(name: str, change: Variant, traced: Traced, end: int | None) -> Tried:
    """A what-if, simulated unless its end is known."""
    changed, fold = change.scenario, traced.run.fold
    if end is None:  # first: it refuses durations that no column holds
        run = change.simulated(detailed=False)
        end, fold = run.duration, run.fold
    first = first_order(traced.fitting(fold), change)
    return Tried(name, end, changed.steps, changed.schedule.microbatches, first)
