"""Progress of a run, and its partial results when its budget of real time is spent."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf
from typing import Any, Protocol

import numpy as np

from hybrid_des.cost_model.model_version import MODEL_VERSION
from hybrid_des.errors import SimulationError
from hybrid_des.simulation.gpu import Gpu
from hybrid_des.simulation.jobs import Job
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds, format_share

SHOWN_EVERY_S = 0.25


STUCK_S = 2.0  # without a finished op, after which the share of ops does not predict the time left


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run.

    Attributes:
        share: fraction of the ops that have finished.
        events: number simulated so far.
        elapsed_s: real seconds so far.
        still_s: real seconds since the last op finished.
    """

    share: float
    events: int
    elapsed_s: float
    still_s: float

    @property
    def left_s(self) -> float | None:
        """Real seconds left if the other ops take as long; None if that is unknown."""
        known = self.share > 0 and self.still_s < STUCK_S
        return self.elapsed_s * (1 / self.share - 1) if known else None


Show = Callable[[RunProgress], None]


class BudgetSpentError(Exception):
    """The budget of real time of a run is spent."""


class TooManyEventsError(SimulationError):
    """A run takes more events than it may."""


class TooLateError(SimulationError):
    """A run has not ended by the simulated time by which it had to."""


class UnfinishedError(SimulationError):
    """A run was ended by its budget, in real seconds."""

    exit_code = 3

    def __init__(self, job: Job, *, budget_s: float, wall_s: float) -> None:
        """Keep the run as it is."""
        self._job, self._budget_s, self._wall_s = job, budget_s, wall_s
        self._share = len(job.recorder.ops) / job.ops
        spent = f"the budget of {format_seconds(budget_s)} is spent"
        super().__init__(
            f"{job.scenario.name}: not complete: {spent}, {format_share(self._share)} of the ops have finished"
        )

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Partial results of the run, by public key: shares, seconds, bytes."""
        scenario, _, recorder, transport, gpus, *_ = self._job
        ops, steps = recorder.ops.table(), recorder.steps.table()
        pipeline_rank = scenario.parallel.layout.along("pipeline")
        ranks = np.array([gpu.rank for gpu in gpus])
        held = [0] * scenario.parallel.pipeline
        for gpu in gpus:
            held[pipeline_rank[gpu.rank]] = max(held[pipeline_rank[gpu.rank]], gpu.memory.peak_bytes)
        busy = np.bincount(pipeline_rank[ops["rank"]], (ops["end"] - ops["start"]).astype(float), len(held))
        mean = busy / np.bincount(pipeline_rank[ranks], minlength=len(held)) / PICOSECONDS_PER_SECOND
        return {
            "version": scenario.version,
            "model_version": MODEL_VERSION,
            "name": scenario.name,
            "stopped": "budget",
            "budget_s": self._budget_s,
            "share_of_ops": self._share,
            "steps_done": int((np.bincount(steps["step"], minlength=1) == len(gpus)).sum()),
            "simulated_s": transport.env.now / PICOSECONDS_PER_SECOND,
            "ranks": scenario.parallel.ranks,
            "ranks_simulated": len(gpus),
            "busy_s": mean.tolist(),
            "peak_memory_bytes": held,
            "messages": transport.sent()["messages"],
            "wall_s": self._wall_s,
            "events": transport.env.events,
        }


class LeastTime(Protocol):
    """What a run still takes at least."""

    def watched(self, gpus: Iterable[Gpu]) -> Sequence[Gpu]:
        """The GPUs that tell."""

    def ends_by(self, now: int, gpus: Sequence[Gpu]) -> int:
        """The picosecond before which a run does not end that goes on from where these GPUs are now."""


class Watch:
    """Observes a run from the outside, between events.

    Args:
        budget_s: real seconds that it may take from now on.
        show: called periodically with the progress of the run.
        most_events: of the run.
        latest: picoseconds of simulated time before which it must end.
        least: what it still takes at least, if that is known.
    """

    def __init__(
        self,
        budget_s: float = inf,
        show: Show | None = None,
        most_events: float = inf,
        latest: float | Fraction = inf,
        least: LeastTime | None = None,
    ) -> None:
        self.budget_s, self._most_events, self.latest, self._least = budget_s, most_events, latest, least
        self._show = show
        self._started = time.perf_counter()
        self._shown = 0.0
        self._ops, self._since = 0, 0.0  # finished ops at the last look, and when that number last changed

    def look(self, ops: int, of_ops: int, events: int) -> None:
        """Look at a run in which `ops` ops have finished.

        Raises:
            BudgetSpentError: its budget is spent.
            TooManyEventsError: it has taken more events than it may.
        """
        if events > self._most_events:
            raise TooManyEventsError(f"more than {self._most_events:,.0f} events")
        elapsed = time.perf_counter() - self._started
        if elapsed > self.budget_s:
            raise BudgetSpentError
        if self._show is None or elapsed < self._shown + SHOWN_EVERY_S:
            return
        self._shown = elapsed
        if ops > self._ops:
            self._ops, self._since = ops, elapsed
        self._show(RunProgress(ops / of_ops if of_ops else 1.0, events, elapsed, elapsed - self._since))

    def watched(self, gpus: Iterable[Gpu]) -> Sequence[Gpu]:
        """The GPUs that tell when a run ends at the earliest."""
        return () if self._least is None else self._least.watched(gpus)

    def ends_by(self, now: int, gpus: Sequence[Gpu]) -> int:
        """The picosecond before which a run that goes on does not end, from where its GPUs are."""
        return now if self._least is None else self._least.ends_by(now, gpus)

    def unfinished(self, job: Job) -> UnfinishedError:
        """The error that ends a run now."""
        return UnfinishedError(job, budget_s=self.budget_s, wall_s=time.perf_counter() - self._started)
