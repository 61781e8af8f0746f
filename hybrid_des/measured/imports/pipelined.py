"""Profiles that say when every forward and backward of a pipeline ran, imported as a scenario with a schedule.

The scenario takes the recorded durations, `timing: auto`: with another schedule, pipeline, number of chunks,
micro-batches or replicas it takes means instead. Messages take the latency that starts show, unless links are given;
so do the pauses between ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.durations import FACTOR
from hybrid_des.interchange.profiles.op_table import DURATIONS, OpTable, ops_of
from hybrid_des.interchange.profiles.recognition import WHAT, Profile
from hybrid_des.measured.imports.common_clock import spread_of
from hybrid_des.measured.imports.imported import Imported, Unusual
from hybrid_des.measured.imports.overheads import Overheads, Recording, overheads_of
from hybrid_des.measured.replay.measured import MeasuredRun, measured_run
from hybrid_des.measured.replay.replaying import Replayed
from hybrid_des.pipeline.order_csv import write_order
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.program_table import OP_KINDS, Column, Columns
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

GIB = 2**30
PLACE = ["replica", "stage", "chunk", "kind"]


@dataclass(frozen=True)
class PipelineProfile:
    """A profile of a pipeline.

    Attributes:
        profile: its format and files.
        ops: what they hold.
        others: other runs of the same model on the same ranks, which help to tell the host's time from work.
        schedule: its name, if it is given; default: that of the order of starts.
    """

    profile: Profile
    ops: OpTable
    others: Sequence[OpTable] = ()
    schedule: str | None = None

    @classmethod
    def of(cls, profile: Profile, others: Sequence[Profile] = (), schedule: str | None = None) -> PipelineProfile:
        """Read its files, and those of other runs.

        Raises:
            UsageError: they are broken, do not say when each op ran, or other runs have other pipeline ranks.
        """
        pipelined = cls(profile, ops_of(profile), [ops_of(one) for one in others], schedule)
        for recording in pipelined.recordings[1:]:
            if recording.run.sizes.stage != (ranks := pipelined.trace.sizes.stage):
                source = recording.run.durations.source
                raise UsageError(
                    f"{source}: {recording.run.sizes.stage} pipeline ranks; {pipelined.ops.source} has {ranks}"
                )
        return pipelined

    @property
    def table(self) -> pd.DataFrame:
        """One row per op, as in `interchange.profiles.durations.read_table`."""
        return self.ops.rows

    @cached_property
    def trace(self) -> MeasuredRun:
        """The measured run."""
        return measured_run(self.table, self.ops.source, self.schedule)

    @cached_property
    def recordings(self) -> Sequence[Recording]:
        """This run, and the others."""
        others = (Recording(measured_run(one.rows, one.source), one.rows) for one in self.others)
        return [Recording(self.trace, self.table), *others]

    @cached_property
    def overheads(self) -> Overheads:
        """Host time and latency, as far as the recordings tell."""
        return overheads_of(self.recordings, one_clock=not self.clocks.get("spread_s"))

    @cached_property
    def values(self) -> dict[str, Any]:
        """The scenario as in a file."""
        trace, sizes = self.trace, self.trace.sizes
        schedule: dict[str, Any] = {"microbatches": sizes.microbatch}
        if trace.schedule is None:
            schedule = {"file": "order.csv", **schedule}
        else:
            chunks = {"chunks": sizes.chunk} if sizes.chunk > 1 else {}
            schedule = {"kind": trace.schedule, **schedule, **chunks, **trace.options}
        workload: dict[str, Any] = {"durations": "durations.csv", "timing": "auto"}
        if self.overheads.workload:
            workload["overhead"] = self.overheads.workload
        if self.in_flight is not None:
            workload["memory"] = {"activation": round(self.in_flight[0] * GIB)}
        return {
            "name": self.ops.name,
            "description": f"Imported from {WHAT[self.profile.format]}: {self.ops.source}",
            "cluster": {
                "gpus_per_node": sizes.replica * sizes.stage,
                "nvlink": {"bandwidth": "inf", "latency": self.overheads.latency or 0},
            },
            "parallel": {"pipeline": sizes.stage, "data": sizes.replica},
            "schedule": schedule,
            "workload": workload,
            "steps": len(trace.durations.steps),
        }  # fmt: skip

    @cached_property
    def in_flight(self) -> tuple[float, float] | None:
        """GiB that each rank reserves per micro-batch in flight, and besides: the line through all ranks."""
        if self.ops.memory is None or len(self.ops.memory) != self.trace.plan.pipeline:
            return None
        held = [float(one) for one in self.replayed.run.peak_activations[: len(self.ops.memory)]]
        if len(set(held)) < 2:
            return None
        slope, rest = np.polyfit(held, self.ops.memory, 1)
        return (float(slope), float(rest)) if slope > 0 else None

    @cached_property
    def replayed(self) -> Replayed:
        """The simulation with the recorded durations."""
        return self._replay(self.trace)

    def _replay(self, trace: MeasuredRun) -> Replayed:
        return Replayed.of(trace, self.ops.name, pauses=self.overheads)

    def imported(self) -> Imported:
        """What the import found, and the files to write."""
        steps = self.replayed.steps
        files: dict[str, Any] = {"durations.csv": self.table[[name for name in DURATIONS if name in self.table]]}
        if self.trace.schedule is None:
            files["order.csv"] = write_order(self.trace.plan)
        memory: dict[str, Any] = {} if self.ops.memory is None else {"memory_gib": list(self.ops.memory)}
        if self.in_flight is not None:
            memory["memory_per_microbatch_gib"] = self.in_flight[0]
        return Imported(
            profile=self.profile,
            values=self.values,
            files=files,
            measured=steps.measured_s.tolist() if "measured_s" in steps else None,
            simulated=steps.simulated_s.tolist(),
            linked=100.0,
            schedule=self.trace.schedule or ("assumed" if self.trace.assumed else "its own order"),
            unusual=self.unusual,
            unknown=[*self.unknown],
            clocks=self.clocks,
            facts={
                "replicas": self.trace.sizes.replica, "pipeline": self.trace.sizes.stage,
                "chunks": self.trace.sizes.chunk, "microbatches": self.trace.sizes.microbatch,
                "schedule_assumed": self.trace.assumed,
                "steps": list(self.trace.durations.steps), "skipped_steps": list(self.ops.skipped),
                "overhead": self.overheads._asdict(), **memory,
            },
            shown=self._shown,
            stragglers=self.replayed,
        )  # fmt: skip

    @cached_property
    def unusual(self) -> list[Unusual]:
        """Ops that took longer than twice the median of their kind there, the longest first."""
        table = self.table.assign(usual=self.table.groupby(PLACE).seconds.transform("median"))
        rows = table[(table.seconds > FACTOR * table.usual) & (table.usual > 0)]
        rows = rows.sort_values("seconds", ascending=False, kind="stable")
        return [
            Unusual(
                f"{one['kind']}{one['microbatch']}", one["stage"], one["step"], one["seconds"], one["usual"],
                {"replica": one["replica"], "chunk": one["chunk"], "kind": one["kind"],
                 "microbatch": one["microbatch"]},
            )
            for one in rows.to_dict("records")
        ]  # fmt: skip

    @property
    def unknown(self) -> Iterator[str]:
        """What the profile does not say."""
        yield from self.ops.inferred
        yield (
            "transfers of messages and their sizes: links take "
            + ("the latency that starts show" if self.overheads.latency else "no time")
            + " until cluster and activation are given"
        )
        if self.overheads.forward is None:
            yield (
                "host time within ops: other numbers of chunks divide it like work; --overheads-from a run with other "
                "chunks tells it"
            )
        if "start_s" not in self.table:
            yield "the measured step and the order of ops: the table has no starts"
        yield "the GPU, and what bounds its kernels: ops take as long on another cluster.gpu, which is for memory only"
        yield "the optimizer and the reduction of gradients: only forwards and backwards were recorded"
        if self.trace.schedule is None:
            yield "the schedule: none of those known has this order; order.csv holds it"
        if (apart := self.clocks) and apart["apart"]:
            yield f"a common clock: an op began {apart['spread_s']:.3g} s before the op it needs had ended"

    @cached_property
    def clocks(self) -> dict[str, Any]:
        """How far the clocks of ranks differ at least: the most by which an op begins before one it needs has ended.

        Without starts nothing is known. Clocks that differ by more than the longest op are apart: spans across ranks
        then mean little.
        """
        if "start_s" not in self.table:
            return {}
        worst = spread_of(self.trace.plan, self.trace.sizes, self.trace.durations, self.table)
        return {"spread_s": worst, "apart": worst > float(self.table.seconds.max())}

    def _shown(self) -> tuple[RunAnalysis, RunAnalysis]:
        """The measured and the simulated run of the step with the median length."""
        trace, steps = self.trace, self.replayed.steps
        spans = steps.measured_s if "measured_s" in steps else steps.simulated_s
        middle = int(spans.argsort(kind="stable").iloc[len(spans) // 2])
        durations = replace(
            trace.durations,
            steps=trace.durations.steps[middle : middle + 1],
            times={kind: times[middle : middle + 1] for kind, times in trace.durations.times.items()},
        )
        simulated = self._replay(replace(trace, durations=durations)).run
        rows = self.table[self.table.step == trace.durations.steps[middle]]
        return RunAnalysis(as_measured(simulated, rows) if "start_s" in rows else simulated), RunAnalysis(simulated)


def as_measured(simulated: Run, rows: pd.DataFrame) -> Run:
    """A simulated run of one step with the measured starts and ends of its ops in place of its own."""
    timeline = simulated.timeline
    table = timeline.op_rows()
    zero = float(rows.start_s.min())
    at = {
        (one["replica"], one["stage"], one["chunk"], "B" if one["kind"] == "I" else one["kind"], one["microbatch"]): one
        for one in rows.to_dict("records")
    }
    pairs = _pairs(simulated.parts.plan)
    start, end = timeline.ops["start"].copy(), timeline.ops["end"].copy()
    names = ("replica", "pipeline_rank", "chunk", "kind", "microbatch", "index")
    for row, (replica, rank, chunk, kind, microbatch, index) in enumerate(
        zip(*(table[name].tolist() for name in names), strict=True)
    ):
        name = OP_KINDS[kind] if index != OPTIMIZER else ""
        ops = pairs.get((rank, chunk, microbatch)) if name == "FB" else [(chunk, name, microbatch)]
        measured = [at.get((replica, rank, *op)) for op in ops or []]
        first, last = (measured[0], measured[-1]) if measured else (None, None)
        if first is not None and last is not None:
            start[row] = round((first["start_s"] - zero) * PICOSECONDS_PER_SECOND)
            end[row] = round((last["start_s"] - zero + last["seconds"]) * PICOSECONDS_PER_SECOND)
    return with_recorded(simulated, start, end)


def _pairs(plan: Plan) -> dict[tuple[int, int, int], list[tuple[int, str, int]]]:
    """Chunk, kind and micro-batch of both ops of a fused pair, by rank, and chunk and micro-batch of its forward."""
    pairs: dict[tuple[int, int, int], list[tuple[int, str, int]]] = {}
    for rank, program in enumerate(plan.programs):
        for action in program:
            forward = next((op for op in action if op.kind == "F"), None)
            if len(action) > 1 and forward is not None:
                kinds = ["B" if op.kind == "I" else op.kind for op in action]  # as the rows of a timeline
                pairs[rank, forward.chunk, forward.microbatch] = [
                    (op.chunk, kind, op.microbatch) for op, kind in zip(action, kinds, strict=True)
                ]
    return pairs


def with_recorded(simulated: Run, start: Column, end: Column) -> Run:
    """A simulated run of one step with other starts and ends of its ops, and no messages."""
    timeline = simulated.timeline
    asked = _free_before(timeline.ops["rank"], start, end)
    ops = {**timeline.ops, "asked": asked, "start": start, "end": end, "released": np.full_like(start, -1)}
    return replace(simulated, timeline=replace(timeline, ops=ops, steps=_steps(timeline.steps, ops), messages=None))


def _free_before(rank: Column, start: Column, end: Column) -> Column:
    """When the rank of each op had ended the op before it; 0 for its first."""
    order = np.lexsort((start, rank))
    before = np.where(np.diff(rank[order], prepend=-1) == 0, np.roll(end[order], 1), 0)
    free = np.empty_like(start)
    free[order] = np.minimum(before, start[order])
    return free


def _steps(steps: Columns, ops: Columns) -> Columns:
    """The rows of a step that ends with its last op."""
    last = np.zeros(int(steps["rank"].max()) + 1, dtype=np.int64)
    np.maximum.at(last, ops["rank"], ops["end"])
    sent = last[steps["rank"]]
    return {**steps, "begin": np.zeros_like(sent), "sent": sent, "reduced": sent, "end": np.full_like(sent, sent.max())}
