"""Times of the trainer in a changed loop: those of the unchanged one, and a few more steps that are simulated.

A step with about as many tokens and squared lengths as a known one takes its time. Of others at most `MOST` are
simulated; beyond them a step takes the time per token of the nearest. So a what-if costs little more than its loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from hybrid_des.errors import NoRoomError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.rl import MeasuredTrainer
from hybrid_des.studies.rl.loop import run_loop
from hybrid_des.studies.rl.parts import TrainerCosts
from hybrid_des.studies.rl.parts_of_scenario import parts_of
from hybrid_des.studies.rl.record import LoopRecord
from hybrid_des.studies.rl.trainer import KnownStep, TrainerTimes, UpdateTime, sums_of

CLOSE = 0.05  # relative difference of tokens and squares up to which a step takes the time of a known one
MOST = 4  # further steps that are simulated
ENDLESS = 2**62  # events
Lengths = Sequence[int]  # tokens of the samples of a step
Loop = Callable[[Scenario], LoopRecord]


class NotedTimes:
    """A trainer whose steps are noted.

    Args:
        trainer: its times.

    Attributes:
        steps: those so far.
    """

    def __init__(self, trainer: TrainerCosts) -> None:
        self._trainer = trainer
        self.steps = list[KnownStep]()

    def take(self, updates: Sequence[Lengths]) -> Sequence[tuple[int, int]]:
        """As `TrainerCosts.take`."""
        times = self._trainer.take(updates)
        self.steps += (KnownStep(*sums_of(one), UpdateTime(*time)) for one, time in zip(updates, times, strict=True))
        return times

    @property
    def notes(self) -> tuple[str, ...]:
        """Those of the trainer."""
        return tuple(getattr(self._trainer, "notes", ()))

    @property
    def fits(self) -> bool:
        """Whether its steps fit into memory, as far as is known."""
        return bool(getattr(self._trainer, "fits", True))


class FewTimes:
    """Times of a trainer of which some steps are known.

    Args:
        scenario: the trainer.
        known: steps that it has made.
    """

    def __init__(self, scenario: Scenario, known: Sequence[KnownStep]) -> None:
        assert scenario.rl is not None
        self._times = TrainerTimes(scenario, scenario.rl.passes.names, most_events=ENDLESS)
        self._known, self._left = [*known], MOST

    @property
    def fits(self) -> bool:
        """Whether the steps that were simulated fit into memory."""
        return self._times.fits

    def take(self, updates: Sequence[Lengths]) -> Sequence[tuple[int, int]]:
        """As `TrainerCosts.take`."""
        return [self._time(lengths) for lengths in updates]

    def _time(self, lengths: Lengths) -> tuple[int, int]:
        tokens, squares = sums_of(lengths)
        nearest = min(self._known, key=lambda step: step.distance(tokens, squares), default=None)
        distance = inf if nearest is None else nearest.distance(tokens, squares)
        if nearest is not None and (distance <= CLOSE or not self._left):
            passes, step = nearest.time
            return passes * tokens // nearest.tokens, step * tokens // nearest.tokens
        self._left -= 1
        (time,) = self._times.take([lengths])
        self._known.append(KnownStep(tokens, squares, time))
        return time


@dataclass
class Loops:
    """Simulates a loop, and afterwards changed ones, whose trainers know the steps of the first."""

    first: Scenario | None = None
    steps: Sequence[KnownStep] = field(default_factory=list)

    def __call__(self, scenario: Scenario) -> LoopRecord:
        """What happens in the loop of a scenario.

        Raises:
            NoRoomError: the trainer of a changed loop, which is another than that of the first, has no room.
            HybridDesError: as `run_loop`.
        """
        if scenario.rl is None or isinstance(scenario.rl.trainer, MeasuredTrainer):
            return run_loop(scenario)
        if self.first is None:
            noted = NotedTimes(parts_of(scenario).trainer)
            record = run_loop(scenario, trainer=noted)
            self.first, self.steps = scenario, noted.steps
            return record
        if _trainer(scenario) == _trainer(self.first):
            return run_loop(scenario, trainer=FewTimes(scenario, self.steps))
        record = run_loop(scenario, trainer=(few := FewTimes(scenario, [])))
        if not few.fits:
            raise NoRoomError(f"{scenario.name}: the training step does not fit into memory")
        return record


def _trainer(scenario: Scenario) -> Scenario:
    """A scenario without what its training step does not depend on."""
    assert scenario.rl is not None
    packing = None if scenario.data is None else scenario.data.model_copy(update={"lengths": None})
    changes = {"rl": scenario.rl.passes, "data": packing, "steps": 1, "name": "", "description": ""}
    return scenario.model_copy(update=changes)
