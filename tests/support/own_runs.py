"""The step of a scenario as its own run has it, whether it fits into memory or not."""

from typing import NamedTuple

from hybrid_des.scenario.definition import Scenario
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.memory import MemoryPeak, worst_peak
from hybrid_des.units import PICOSECONDS_PER_SECOND


class Simulated(NamedTuple):
    """A run.

    Attributes:
        duration: of all its steps, in picoseconds.
        step_s: seconds of a step.
        peak: of the GPU that lacks the most memory, or has the least left.
    """

    duration: int
    step_s: float
    peak: MemoryPeak


def simulated(scenario: Scenario) -> Simulated:
    """Run a scenario."""
    done = run(scenario.model_copy(update={"on_oom": "warn", "record": "compute"}))
    peak = worst_peak(done.ranks, done.peak_memory, scenario.cluster.gpus_of(done.ranks))
    duration = done.timeline.duration
    return Simulated(duration, duration / PICOSECONDS_PER_SECOND / scenario.steps, peak)
