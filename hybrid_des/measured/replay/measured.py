"""A measured run, op by op: what was run, in which order, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import PlanError, Refusal, UsageError
from hybrid_des.interchange.profiles.durations import Durations, Sizes, durations_of, sizes_of
from hybrid_des.measured.imports.common_clock import LONGEST, spread_of
from hybrid_des.options import required_keys
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

USUAL = ("1f1b", "interleaved-1f1b", "gpipe")  # tried first; without starts of ops, the first or second is assumed


SEARCHES = ("zb-auto",)  # schedules that are found by a search, not recognized


SLOW = 1.1  # S from which the straggler study considers a job slow


Lengths = NDArray[np.int64]  # picoseconds by step and replica


@dataclass(frozen=True)
class MeasuredRun:
    """A measured run.

    Attributes:
        sizes: replicas, pipeline ranks, chunks and micro-batches.
        durations: duration of every op.
        plan: the order of ops.
        schedule: its name; None if no schedule has this order.
        assumed: whether the schedule is a guess, as the trace has no starts of ops.
        measured: seconds from first to last compute of each step, by its number; None without starts.
    """

    sizes: Sizes
    durations: Durations
    plan: Plan
    schedule: str | None
    assumed: bool
    measured: pd.Series[float] | None

    @property
    def paired(self) -> bool:
        """Whether ranks run pairs of a forward and a backward as one."""
        return any(len(action) > 1 for program in self.plan.programs for action in program)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the schedule by which it has this order."""
        known = schedules.find(self.schedule).keys if self.schedule is not None else ()
        return {"fused": False} if "fused" in known and not self.paired else {}


def measured_run(table: pd.DataFrame, source: str, schedule: str | None = None) -> MeasuredRun:
    """The measured run in a table of `read_table`; `schedule` names its schedule, else its order tells.

    Raises:
        UsageError: the table is none of durations, has gaps, or has an order that cannot be run.
    """
    if "stage" not in table:
        raise UsageError(f"{source}: no column stage; replica and stage say what runs where")
    sizes = sizes_of(table, source)
    durations = durations_of(table, sizes, source)
    name, plan = _order(table, sizes, source, schedule)
    durations.check(plan, sizes.replica, len(durations.steps))
    assumed = schedule is None and "start_s" not in table
    return _with_pairs_as_run(MeasuredRun(sizes, durations, plan, name, assumed, _measured(table)), table)


def _with_pairs_as_run(run: MeasuredRun, table: pd.DataFrame) -> MeasuredRun:
    """The run as it is, or with single ops where one on another rank began before the fused pair that it needs ended.

    PyTorch computes the two ops of a pair one after the other, and sends what both give after the second
    (_add_send_recv in torch/distributed/pipelining/schedules.py). By less than `LONGEST` clocks may differ.
    """
    if not run.paired or "start_s" not in table:
        return run
    single = Plan.of(_separate(run.plan), run.plan.paths, run.plan.path_of)
    early = [spread_of(plan, run.sizes, run.durations, table) for plan in (run.plan, single)]
    longest = LONGEST * float(table[table.kind == "F"].seconds.median())
    return replace(run, plan=single) if early[0] - early[1] > longest else run


def _measured(table: pd.DataFrame) -> pd.Series[float] | None:
    if "start_s" not in table:
        return None
    starts = table.start_s.astype("float64")
    bounds = table.assign(start=starts, end=starts + table.seconds).groupby("step").agg({"start": "min", "end": "max"})
    return bounds.end - bounds.start


def _order(table: pd.DataFrame, sizes: Sizes, source: str, schedule: str | None) -> tuple[str | None, Plan]:
    """The name and the plan of the order of ops."""
    if schedule is not None:
        return schedule, _plan(schedule, sizes, table)
    if "start_s" not in table:
        name = USUAL[0] if sizes.chunk == 1 else USUAL[1]
        return name, _plan(name, sizes, table)
    programs, times, fits = _programs(table, sizes), _times(table), list[tuple[str, Plan]]()
    for name in [*USUAL, *(name for name in schedules.names() if name not in (*USUAL, *SEARCHES))]:
        try:
            plan = _plan(name, sizes, table)
        except Refusal:
            continue
        if (order := _separate(plan)) == programs:
            return name, plan
        if not fits and _in_time(order, times):
            fits.append((name, plan))
    if fits:  # ops of no length begin at one time, in an order that the table does not say
        return fits[0]
    plan = Plan.of(programs, [loop(sizes.stage, sizes.chunk)], [0] * sizes.microbatch)
    try:
        plan.check()
    except PlanError as error:
        raise UsageError(f"{source}: its order cannot be run: {str(error).splitlines()[0]}") from None
    return None, plan


def _programs(table: pd.DataFrame, sizes: Sizes) -> list[list[Op]]:
    """The ops of each pipeline rank in the order of their starts, in the first step of the first replica.

    Of ops that begin at one time all but the last have no length; those keep the order of the table.
    """
    first = _first(table).sort_values(["start_s", "seconds"], kind="stable")
    ops = first[["kind", "microbatch", "chunk"]]
    return [
        [Op(*op) for op in ops[first.stage == stage].itertuples(index=False, name=None)] for stage in range(sizes.stage)
    ]


def _first(table: pd.DataFrame) -> pd.DataFrame:
    rows: pd.DataFrame = table[(table.step == table.step.min()) & (table.replica == 0)]
    return rows


def _times(table: pd.DataFrame) -> list[dict[Op, tuple[float, float]]]:
    """Per pipeline rank, the start and the duration of each op in the first step of the first replica."""
    times: dict[int, dict[Op, tuple[float, float]]] = {}
    columns = ["stage", "kind", "microbatch", "chunk", "start_s", "seconds"]
    for stage, kind, microbatch, chunk, start, seconds in _first(table)[columns].itertuples(index=False, name=None):
        times.setdefault(stage, {})[Op(kind, microbatch, chunk)] = start, seconds
    return [times.get(stage, {}) for stage in range(max(times, default=-1) + 1)]


def _in_time(order: Sequence[Sequence[Op]], times: Sequence[Mapping[Op, tuple[float, float]]]) -> bool:
    """Whether ranks did these ops, and none of them before the one that precedes it here."""
    if [{*ops} for ops in order] != [{*of_rank} for of_rank in times]:
        return False
    return all(
        of_rank[before] <= of_rank[after]
        for ops, of_rank in zip(order, times, strict=True)
        for before, after in pairwise(ops)
    )


def _plan(name: str, sizes: Sizes, table: pd.DataFrame) -> Plan:
    """The plan of a schedule with its default options and the mean durations of the table.

    Raises:
        Refusal: it does not support these sizes, or needs options.
        UsageError: there is no such schedule.
    """
    entry = schedules.find(name)
    if required_keys(entry.options):
        raise Refusal(f"{name} needs options")
    if (entry.facts["chunks"] or (sizes.chunk if entry.facts["many_chunks"] else 1)) != sizes.chunk:
        raise Refusal(f"{name} has another number of chunks")
    means = table.groupby("kind").seconds.mean() * PICOSECONDS_PER_SECOND * sizes.chunk
    forward, backward = (round(float(means.get(kind, 0))) for kind in "FB")
    weight = round(float(means.get("W", backward // 2)))
    inputs = round(float(means.get("I", backward - backward // 2)))
    request = PlanRequest(
        pipeline=sizes.stage,
        microbatches=sizes.microbatch,
        chunks=sizes.chunk,
        forward=(forward,) * sizes.stage,
        input=(inputs,) * sizes.stage,
        weight=(weight,) * sizes.stage,
    )
    plan: Plan = entry.build(request, *entry.arguments())
    return plan


def _separate(plan: Plan) -> list[list[Op]]:
    """The ops of each pipeline rank in order, those of fused pairs one after the other."""
    return [[op for action in program for op in action] for program in plan.programs]
