"""What a step is lost to and who holds it up: a run, what slow parts cost, and what faster links would give.

That is all that the short text of `explain` says of the step as it is, and needs no causes of what was recorded; what
does is an `Explanation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hybrid_des.analysis.counterfactual.attribution import Straggler, Stragglers, straggler_tasks, stragglers_of
from hybrid_des.analysis.counterfactual.ladder import Gain, gains_of
from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.analysis.critical_path.traced import FEWEST_FOLDED, traced_parts
from hybrid_des.analysis.first_runs import SHORT
from hybrid_des.analysis.step_breakdown import StepBreakdown, step_breakdown
from hybrid_des.analysis.tasks import AtOnce, grouped, in_turn
from hybrid_des.analysis.verdict import main_loss, verdict
from hybrid_des.scenario.definition import Scenario
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.run import reduced_gc
from hybrid_des.units import PICOSECONDS_PER_SECOND

LINKS = "link"  # the sort of the classes of `Losses.links`


@dataclass(frozen=True)
class Losses:
    """What a step is lost to.

    Attributes:
        run: the run.
        slow: what slow ranks, nodes and links cost; None if none are.
        links: the run with each kind of link twice as fast, the most helpful first.
    """

    run: Run
    slow: Stragglers | None = None
    links: Sequence[Gain] = ()

    @property
    def duration(self) -> int:
        """The end of the run in picoseconds."""
        return self.run.timeline.duration

    def seconds(self, picoseconds: int) -> float:
        """Picoseconds of the run as seconds per step."""
        return picoseconds / PICOSECONDS_PER_SECOND / self.run.scenario.steps

    def gain(self, duration: float) -> float:
        """The share of the run that a changed one, which takes so many picoseconds, saves."""
        return 1 - duration / self.duration if self.duration else 0.0

    @cached_property
    def breakdown(self) -> StepBreakdown:
        """What the mean GPU does in a step, as in the summary."""
        return step_breakdown(self.run)

    @property
    def culprit(self) -> Straggler | None:
        """What holds up the run."""
        return self.slow.culprit(self.duration) if self.slow else None

    @property
    def main_loss(self) -> str | None:
        """The name of the largest share of the step that is not useful computing, if it is a tenth."""
        return main_loss(self.breakdown.shares)

    @property
    def verdict(self) -> str:
        """What costs the most, and why, in one or two sentences."""
        culprit = self.culprit
        cost = self.gain(culprit.least) if culprit else 0.0
        return verdict(self.run.scenario, self.breakdown.shares, culprit, cost)


def step_alone(scenario: Scenario) -> Run:
    """Simulate a scenario without rows of messages and without training, whether it fits into memory or not."""
    quiet = scenario.model_copy(update={"record": "compute", "on_oom": "warn"})
    return run(quiet, parts=traced_parts(quiet), fold_from=FEWEST_FOLDED)


@reduced_gc()
def losses(scenario: Scenario, at_once: AtOnce = in_turn, *, base: Run | None = None) -> Losses:
    """Find out what a step is lost to.

    Args:
        scenario: what to simulate.
        at_once: runs the simulations of a long run.
        base: its run (`step_alone`), if it has been simulated.

    Raises:
        HybridDesError: the scenario cannot be simulated.
    """
    base = base or step_alone(scenario)
    links = [task for part, task in gains_of(Variant.of(base)).items() if part.sort == LINKS]
    long = base.events + base.parts.times.messages >= SHORT
    slowed, gains = grouped((straggler_tasks(base), links), at_once if long else in_turn)
    return Losses(base, stragglers_of(base, slowed), sorted(gains, key=lambda gain: gain.duration))
