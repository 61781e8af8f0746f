"""Replay of a measured run: simulated with its own durations, compared with measured steps, and asked who was slow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.counterfactual.attribution import culprit
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario import Scenario, scenario_from
from hybrid_des.simulation.run import Run, run
from hybrid_des.stragglers.ideals import Ideals
from hybrid_des.stragglers.measured_run import MeasuredRun, read_trace
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

SLOW = 1.1  # S from which the straggler study considers a job slow


@dataclass(frozen=True)
class Replayed:
    """A replayed run.

    Attributes:
        trace: the measured run.
        run: its simulation: all steps, with messages that take no time.
    """

    trace: MeasuredRun
    run: Run

    @cached_property
    def what_if(self) -> Ideals:
        """The counterfactuals."""
        return Ideals(self.trace.plan, self.trace.durations.complete)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step: `step`, `simulated_s`, and if starts are known `measured_s` and `error_percent`."""
        import pandas as pd

        ops = self.run.timeline.ops
        ends, starts = (
            np.zeros(len(self.trace.durations.steps), np.int64),
            np.full(len(self.trace.durations.steps), 2**62),
        )
        np.maximum.at(ends, ops["step"], ops["end"])
        np.minimum.at(starts, ops["step"], ops["start"])
        table = pd.DataFrame(
            {"step": self.trace.durations.steps, "simulated_s": (ends - starts) / PICOSECONDS_PER_SECOND}
        )
        if self.trace.measured is None:
            return table
        table["measured_s"] = self.trace.measured.loc[table.step].to_numpy()
        return table.assign(error_percent=100 * (table.simulated_s / table.measured_s - 1))

    @cached_property
    def classes(self) -> pd.DataFrame:
        """Who was slow: one row per stage, replica, worker (a stage of a replica) and kind of op.

        Columns are `what`, `replica`, `stage`, `kind`, `slowdown` (S of this class alone) and `removed` (share of the
        loss that would vanish if it were ideal).
        """
        import pandas as pd

        sizes, ask = self.trace.sizes, self.what_if
        rows: list[tuple[Any, ...]] = []
        rows += [("stage", None, s, None, *ask.of_stage(s)) for s in range(sizes.stage)]
        rows += [("replica", d, None, None, *ask.of_replica(d)) for d in range(sizes.replica)]
        both = [(d, s) for d in range(sizes.replica) for s in range(sizes.stage)]
        rows += [("worker", d, s, None, *ask.of_worker(d, s)) for d, s in both]
        rows += [("kind", None, None, kind, *ask.of_kind(kind)) for kind in "FB"]
        table = pd.DataFrame(rows, columns=["what", "replica", "stage", "kind", "slowdown", "removed"])
        return table.astype({"replica": "Int64", "stage": "Int64"})

    def slowest(self, what: str) -> dict[str, Any]:
        """The class of a kind that removes most of the loss if it is ideal."""
        rows: list[dict[Any, Any]] = self.classes[self.classes.what == what].to_dict("records")
        return max(rows, key=lambda row: row["removed"])

    def culprit(self) -> dict[str, Any] | None:
        """The worker, else the stage or replica, behind most of the loss; None if there is none, or little is lost."""
        if self.what_if.slowdown < SLOW:
            return None
        found = [self.slowest(what) for what in ("worker", "stage", "replica")]
        return culprit([(one, one["removed"]) for one in found])


def replay(path: str | Path, schedule: str | None = None) -> Replayed:
    """Simulate a measured run with its own durations.

    Args:
        path: a CSV or Parquet table, see `hybrid_des.workload.durations`.
        schedule: the name of its schedule; by default the one with the measured order of ops.

    Raises:
        UsageError: the file cannot be read, is not such a table, or has gaps.
        Refusal: the schedule does not support these sizes.
    """
    trace = read_trace(Path(path), schedule)
    scenario = scenario_of_trace(trace, Path(path).stem)
    return Replayed(trace, run(scenario, parts=parts_of(scenario, trace.plan, durations=trace.durations)))


def scenario_of_trace(trace: MeasuredRun, name: str) -> Scenario:
    """The scenario of a measured run: its layout and micro-batches, and links that take no time."""
    sizes = trace.sizes
    return scenario_from(
        {
            "name": name,
            "cluster": {"gpus_per_node": sizes.replica * sizes.stage, "nvlink": {"bandwidth": "inf", "latency": 0}},
            "parallel": {"pipeline": sizes.stage, "data": sizes.replica},
            "schedule": {"kind": "1f1b", "microbatches": sizes.microbatch},  # its plan is given
            "workload": {"forward": 0, "backward": 0},
            "steps": len(trace.durations.steps),
            "record": "compute",
        }
    )
