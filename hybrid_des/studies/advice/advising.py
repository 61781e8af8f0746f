"""Advice on a scenario: its neighbours priced, the best weighed, and those that would be shown simulated."""

from __future__ import annotations

from hybrid_des.analysis.advice import Advice
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.shortcuts.run import run as simulated
from hybrid_des.simulation.memory import worst_peak
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND


def advise(scenario: Source, overrides: Overrides = (), *, run: Run | None = None) -> Advice:
    """What to change in a scenario so that its step is shorter, or fits into memory; settings only, never the machine.

    Args:
        scenario: the scenario, the path of its file, or a mapping.
        overrides: changes of it, such as ["schedule.kind=gpipe"] or {"schedule.kind": "gpipe"}.
        run: its run, if it has been simulated.

    Raises:
        HybridDesError: the scenario cannot be simulated.
    """
    scenario = load(scenario, overrides)
    if run is None:
        run = simulated(scenario.model_copy(update={"record": "compute", "on_oom": "warn"}))
    peak = worst_peak(run.ranks, run.peak_memory, scenario.cluster.gpus_of(run.ranks))
    step = run.timeline.duration / PICOSECONDS_PER_SECOND / scenario.steps
    return Advice(scenario, step, peak.held, peak.gpu.memory)
