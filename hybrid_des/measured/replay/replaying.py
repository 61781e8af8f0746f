"""Measured runs, op by op: what was run; its replay, compared with measured steps; and who was slow.

Layout and micro-batches of a run follow from its rows, its schedule from their order. A replay simulates it with its
own durations. The law is that of `analysis.counterfactual.attribution`. The ideal time of an op is the mean of its kind
over replicas, stages, micro-batches and steps; S_C = T(only C as measured)/T_ideal of a class C. T is the mean over
steps of first to last compute. Only computation counts there: messages take no time. The simulation that is compared
with measured steps may have the pauses that starts show, between ops of a rank and from rank to rank.

Without them, a step is the longest path through its plan, in each replica by itself. It is computed here for all
steps and replicas at once, and equals the result of the simulation (`tests/studies/replay`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.counterfactual.attribution import Loss, culprit
from hybrid_des.analysis.notebook_view import as_html
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.durations import Times
from hybrid_des.interchange.profiles.op_table import read_ops
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.scenario.shipped import located
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND, grouped_by

if TYPE_CHECKING:
    import pandas as pd
from hybrid_des.measured.imports.common_clock import spread_of
from hybrid_des.measured.imports.overheads import NO_PAUSES, Overheads, Recording, overheads_of
from hybrid_des.measured.replay.measured import SLOW, Lengths, MeasuredRun, measured_run


def lengths(plan: Plan, times: Mapping[str, Times]) -> Lengths:
    """First to last compute of every step and replica; `times` as in `Durations.complete`, by kind."""
    edges = plan.edges
    bounds = np.searchsorted(edges.consumer, np.arange(edges.first[-1] + 1))
    ends: dict[int, Any] = {}  # of an action, by step and replica
    for number in edges.order():
        rank = int(edges.rank[number])
        ops = plan.programs[rank][number - edges.first[rank]]
        start = ends.get(number - 1, 0) if number > edges.first[rank] else 0
        for needed in edges.producer[bounds[number] : bounds[number + 1]].tolist():
            start = np.maximum(start, ends[needed])
        ends[number] = start + sum(times[op.kind][:, :, rank, op.chunk, op.microbatch] for op in ops)
    slowest: Lengths = np.maximum.reduce([ends[last - 1] for last in edges.first[1:]])
    return slowest


@dataclass(frozen=True)
class Ideals:
    """The counterfactuals of one measured run.

    Attributes:
        plan: the order of ops.
        times: picoseconds by kind, as in `Durations.complete`.
    """

    plan: Plan
    times: Mapping[str, Times]

    @cached_property
    def ideal(self) -> Mapping[str, Times]:
        """All ops of a kind at the mean of those in the plan."""
        times = dict(self.times)
        for name, ops in grouped_by(self.plan.ops(), lambda entry: entry[1].kind).items():
            ranks, chunks, microbatches = np.array([(rank, op.chunk, op.microbatch) for rank, op in ops]).T
            mean = times[name][:, :, ranks, chunks, microbatches].mean()
            times[name] = np.full_like(times[name], round(float(mean)))
        return times

    @cached_property
    def measured(self) -> Lengths:
        """Every step and replica with the measured durations."""
        return lengths(self.plan, self.times)

    @cached_property
    def ideal_length(self) -> Lengths:
        """The same with ideal durations."""
        return lengths(self.plan, self.ideal)

    @cached_property
    def loss(self) -> Loss:
        """The time of a step, and of the ideal one."""
        return Loss(seconds(self.measured), seconds(self.ideal_length))

    @property
    def slowdown(self) -> float:
        """S: the time of a step over that of the ideal one."""
        return self.loss.slowdown

    def of(self, replica: int | None = None, stage: int | None = None, kind: str | None = None) -> tuple[float, float]:
        """S_C and removed(C) of a replica, of a pipeline rank in all replicas or in one, or of a kind of op.

        The kinds are F, the forwards, and B, the backwards as wholes and in parts.
        """
        only, without = self.measured, self.ideal_length
        if stage is not None:
            only, without = self._of_stages[stage]
        elif kind is not None:
            only, without = self._exchanged("F" if kind == "F" else "BIW", slice(None))
        if replica is not None:  # replicas do not depend on each other
            others = np.arange(only.shape[1]) != replica
            only, without = np.where(others, self.ideal_length, only), np.where(others, self.measured, without)
        return seconds(only) / self.loss.ideal, self.loss.removed(seconds(without))

    @cached_property
    def _of_stages(self) -> list[tuple[Lengths, Lengths]]:
        return [self._exchanged("FBIW", stage) for stage in range(self.plan.pipeline)]

    def _exchanged(self, kinds: str, stages: int | slice) -> tuple[Lengths, Lengths]:
        """Every step and replica with the measured durations of some ops only, and with ideal durations of these."""

        def mixed(most: Mapping[str, Times], other: Mapping[str, Times]) -> Lengths:
            times = {kind: most[kind].copy() for kind in most}
            for kind in times.keys() & set(kinds):
                times[kind][:, :, stages] = other[kind][:, :, stages]
            return lengths(self.plan, times)

        return mixed(self.ideal, self.times), mixed(self.times, self.ideal)


def seconds(lengths: Lengths) -> float:
    """Mean over steps of the slowest replica."""
    return float(lengths.max(axis=1).mean()) / PICOSECONDS_PER_SECOND


@dataclass(frozen=True, repr=False)
class Replayed:
    """A replayed run.

    Attributes:
        trace: the measured run.
        run: its simulation: all steps.
        pauses: between the ops of a rank, and from an op to one on another rank that needs it, in that simulation.
    """

    trace: MeasuredRun
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
    def what_if(self) -> Ideals:
        """The counterfactuals."""
        return Ideals(self.trace.plan, self.trace.durations.complete)

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

    @cached_property
    def classes(self) -> pd.DataFrame:
        """Who was slow: one row per stage, replica, worker (a stage of a replica) and kind of op.

        Columns are `what`, `replica`, `stage`, `kind`, `slowdown` (S of this class alone) and `removed` (share of the
        loss that would vanish if it were ideal).
        """
        import pandas as pd

        replicas, stages = range(self.trace.sizes.replica), range(self.trace.sizes.stage)
        classes: list[tuple[str, int | None, int | None, str | None]] = [
            *(("stage", None, stage, None) for stage in stages),
            *(("replica", replica, None, None) for replica in replicas),
            *(("worker", replica, stage, None) for replica, stage in product(replicas, stages)),
            *(("kind", None, None, kind) for kind in "FB"),
        ]
        rows = [(*one, *self.what_if.of(*one[1:])) for one in classes]
        table = pd.DataFrame(rows, columns=["what", "replica", "stage", "kind", "slowdown", "removed"])
        return table.astype({"replica": "Int64", "stage": "Int64"})

    def slowest(self, what: str) -> dict[str, Any]:
        """The class of a kind that removes most of the loss if it is ideal."""
        rows: list[dict[Any, Any]] = self.classes[self.classes.what == what].to_dict("records")
        return max(rows, key=lambda row: row["removed"])

    def culprit(self) -> dict[str, Any] | None:
        """The worker, else the stage or replica, behind most of the loss; None if there is none, or little is lost.

        The only stage or replica of a run is no culprit, since there is no other to compare it with.
        """
        sizes = self.trace.sizes
        if self.what_if.slowdown < SLOW or sizes.stage * sizes.replica == 1:
            return None
        classes = {"worker": True, "stage": sizes.stage > 1, "replica": sizes.replica > 1}
        worst = [self.slowest(what) for what, several in classes.items() if several]
        return culprit([(one, one["removed"]) for one in worst])


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
