"""Replays of measured runs, op by op, compared with the measured steps.

Layout and micro-batches of a run follow from its rows, its schedule from their order. A replay simulates it with its
own durations, and may have the pauses that starts show, between ops of a rank and from rank to rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.notebook_view import as_html
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.op_table import read_ops
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.scenario.shipped import located
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
from hybrid_des.measured.imports.common_clock import spread_of
from hybrid_des.measured.imports.overheads import NO_PAUSES, Overheads, Recording, overheads_of
from hybrid_des.measured.replay.measured import MeasuredRun, measured_run
from hybrid_des.measured.replay.stragglers import Stragglers


@dataclass(frozen=True, repr=False)
class Replayed(Stragglers):
    """A replayed run.

    Attributes:
        run: its simulation: all steps.
        pauses: between the ops of a rank, and from an op to one on another rank that needs it, in that simulation.
    """

    run: Run
    pauses: Overheads = NO_PAUSES

    @classmethod
    def of(cls, trace: MeasuredRun, name: str, *, pauses: Overheads = NO_PAUSES) -> Replayed:
        """Simulate a measured run with its own durations, and pauses between ops and from rank to rank."""
        scenario = scenario_of_trace(trace, name, pauses.between or 0, pauses.latency or 0)
        return cls(trace, run(scenario, parts=parts_of(scenario, trace.plan, durations=trace.durations)), pauses)

    def __repr__(self) -> str:
        sizes, steps = self.trace.sizes, len(self.trace.durations.steps)
        shape = f"{steps} steps of {sizes.stage} stages × {sizes.replica} replicas"
        return f"<Replayed {self.run.scenario.name}: {shape}, slowdown {self.what_if.slowdown:.3f}>"

    def _repr_html_(self) -> str:
        """How well it is met, and who was slow, for notebooks."""
        slowest = self.classes.sort_values("removed", ascending=False)
        return as_html(repr(self)[1:-1], {"Steps": self.steps, "Who was slow": slowest})

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step: `step`, `simulated_s`, and if starts are known `measured_s` and `error_percent`."""
        import pandas as pd

        ops, numbers = self.run.timeline.ops, self.trace.durations.steps
        ends, starts = np.zeros(len(numbers), np.int64), np.full(len(numbers), 2**62)
        np.maximum.at(ends, ops["step"], ops["end"])
        np.minimum.at(starts, ops["step"], ops["start"])
        table = pd.DataFrame({"step": numbers, "simulated_s": (ends - starts) / PICOSECONDS_PER_SECOND})
        if self.trace.measured is None:
            return table
        table["measured_s"] = self.trace.measured.loc[table.step].to_numpy()
        return table.assign(error_percent=100 * (table.simulated_s / table.measured_s - 1))

    def files(self) -> dict[str, Any]:
        """Its tables, and the picture of steps and stragglers, by the names of files."""
        from hybrid_des.measured.replay.heat_map import heat_map

        return {"steps.csv": self.steps, **super().files(), "stragglers": heat_map(self, self.steps)}


def replay(path: str | Path, schedule: str | None = None, *, pauses: bool = False) -> Replayed:
    """Simulate a measured run with its own durations.

    Args:
        path: a CSV or Parquet table (see `hybrid_des.interchange.profiles.durations`), or a folder of event dumps.
        schedule: the name of its schedule; by default the one with the measured order of ops.
        pauses: whether ranks pause between ops, and from rank to rank, as starts show (as by `import_profile`); without
            pauses, steps are predicted too short.

    Raises:
        UsageError: the file cannot be read, is not such a table, or has gaps.
        Refusal: the schedule does not support these sizes.

    Example:
        >>> from hybrid_des import replay
        >>> replayed = replay("scenarios/durations/a100_8x_slow_gpu.csv")
        >>> replayed
        <Replayed a100_8x_slow_gpu: 2 steps of 4 stages × 2 replicas, slowdown 1.209>
        >>> replayed.steps.round(3)
           step  simulated_s  measured_s  error_percent
        0     0        1.812       1.814         -0.099
        1     1        1.830       1.832         -0.098
        >>> replayed.classes.query("what == 'worker'").nlargest(1, "removed")[["replica", "stage", "slowdown"]].round(2)
            replica  stage  slowdown
        12        1      2      1.23
    """
    ops = read_ops(located(path))
    trace = measured_run(ops.rows, ops.source, schedule)
    return Replayed.of(trace, Path(path).stem, pauses=_pauses(trace, ops.rows) if pauses else NO_PAUSES)


def _pauses(trace: MeasuredRun, table: pd.DataFrame) -> Overheads:
    """Those that the starts of a run show; none between ranks whose clocks differ.

    Raises:
        UsageError: there are no starts.
    """
    if "start_s" not in table:
        raise UsageError(f"{trace.durations.source}: no starts of ops, which tell the pauses between them")
    spread = spread_of(trace.plan, trace.sizes, trace.durations, table)
    return overheads_of([Recording(trace, table)], one_clock=not spread)


def scenario_of_trace(trace: MeasuredRun, name: str, between: float = 0, latency: float = 0) -> Scenario:
    """The scenario of a measured run: its layout and micro-batches, and links that take no time but their latency."""
    sizes = trace.sizes
    return scenario_from(
        {
            "name": name,
            "cluster": {
                "gpus_per_node": sizes.replica * sizes.stage, "nvlink": {"bandwidth": "inf", "latency": latency},
            },
            "parallel": {"pipeline": sizes.stage, "data": sizes.replica},
            "schedule": {"kind": "1f1b", "microbatches": sizes.microbatch},  # its plan is given
            "workload": {"forward": 0, "backward": 0, "overhead": {"between": between}},
            "steps": len(trace.durations.steps),
            "record": "compute",
        }
    )  # fmt: skip
