"""Measured runs, op by op: what was run; its replay, compared with measured steps; and who was slow.

Layout and micro-batches of a run follow from its rows, its schedule from their order. A replay simulates it with its
own durations. The law is that of `analysis.counterfactual.attribution`. The ideal time of an op is the mean of its kind
over replicas, stages, micro-batches and steps; S_C = T(only C as measured)/T_ideal of a class C. T is the mean over
steps of first to last compute. Messages take no time: only computation is replayed.

Without messages, a step is the longest path through its plan, in each replica by itself. It is computed here for all
steps and replicas at once, and equals the result of the simulation (`tests/stragglers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.counterfactual.attribution import Loss, culprit
from hybrid_des.errors import PlanError, Refusal, UsageError
from hybrid_des.interchange.profiles.op_table import read_ops
from hybrid_des.options import required_keys
from hybrid_des.pipeline import Op, Plan, PlanRequest, loop, schedules
from hybrid_des.planning.planner import parts_of
from hybrid_des.report.plots.style import LINES, legend, new_figure, plain
from hybrid_des.scenario import Scenario, scenario_from
from hybrid_des.simulation.run import Run, run
from hybrid_des.units import PICOSECONDS_PER_SECOND, grouped_by
from hybrid_des.workload.durations import Durations, Sizes, Times, durations_of, sizes_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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


def read_trace(path: Path, schedule: str | None = None) -> MeasuredRun:
    """Read a measured run; `schedule` names its schedule, which is otherwise inferred from its order.

    Raises:
        UsageError: the file is not a table of durations, has gaps, or has an order that cannot be run.
    """
    ops = read_ops(path)
    return measured_run(ops.rows, ops.source, schedule)


def measured_run(table: pd.DataFrame, source: str, schedule: str | None = None) -> MeasuredRun:
    """The measured run in a table of `read_table`, with the errors of `read_trace`."""
    if "stage" not in table:
        raise UsageError(f"{source}: no column stage; replica and stage say what runs where")
    sizes = sizes_of(table, source)
    durations = durations_of(table, sizes, source)
    name, plan = _order(table, sizes, source, schedule)
    durations.check(plan, sizes.replica, len(durations.steps))
    assumed = schedule is None and "start_s" not in table
    return MeasuredRun(sizes, durations, plan, name, assumed, _measured(table))


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
    found: pd.DataFrame = table[(table.step == table.step.min()) & (table.replica == 0)]
    return found


def _times(table: pd.DataFrame) -> list[dict[Op, tuple[float, float]]]:
    """Per pipeline rank, the start and the duration of each op in the first step of the first replica."""
    found: dict[int, dict[Op, tuple[float, float]]] = {}
    columns = ["stage", "kind", "microbatch", "chunk", "start_s", "seconds"]
    for stage, kind, microbatch, chunk, start, seconds in _first(table)[columns].itertuples(index=False, name=None):
        found.setdefault(stage, {})[Op(kind, microbatch, chunk)] = start, seconds
    return [found.get(stage, {}) for stage in range(max(found, default=-1) + 1)]


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
    """The plan of a schedule with its default options and the mean durations of the table, which has no fused pairs.

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
    plan = entry.build(request, *entry.arguments())
    return Plan.of(_separate(plan), plan.paths, plan.path_of)


def _separate(plan: Plan) -> list[list[Op]]:
    """The ops of each pipeline rank in order, those of fused pairs one after the other."""
    return [[op for action in program for op in action] for program in plan.programs]


# The replay.


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
        found = dict(self.times)
        for name, ops in grouped_by(self.plan.ops(), lambda one: one[1].kind).items():
            ranks, chunks, microbatches = np.array([(rank, op.chunk, op.microbatch) for rank, op in ops]).T
            mean = found[name][:, :, ranks, chunks, microbatches].mean()
            found[name] = np.full_like(found[name], round(float(mean)))
        return found

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

        def mixed(most: Mapping[str, Times], one: Mapping[str, Times]) -> Lengths:
            times = {kind: most[kind].copy() for kind in most}
            for kind in times.keys() & set(kinds):
                times[kind][:, :, stages] = one[kind][:, :, stages]
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
        run: its simulation: all steps, with messages that take no time.
    """

    trace: MeasuredRun
    run: Run

    @classmethod
    def of(
        cls, trace: MeasuredRun, name: str, *, between: float | None = None, latency: float | None = None
    ) -> Replayed:
        """Simulate a measured run with its own durations, and seconds between ops and from rank to rank, if given."""
        scenario = scenario_of_trace(trace, name, between or 0, latency or 0)
        return cls(trace, run(scenario, parts=parts_of(scenario, trace.plan, durations=trace.durations)))

    def __repr__(self) -> str:
        sizes, steps = self.trace.sizes, len(self.trace.durations.steps)
        shape = f"{steps} steps of {sizes.stage} stages × {sizes.replica} replicas"
        return f"<Replayed {self.run.scenario.name}: {shape}, slowdown {self.what_if.slowdown:.3f}>"

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
        found = [self.slowest(what) for what, several in classes.items() if several]
        return culprit([(one, one["removed"]) for one in found])


def replay(path: str | Path, schedule: str | None = None) -> Replayed:
    """Simulate a measured run with its own durations.

    Args:
        path: a CSV or Parquet table (see `hybrid_des.workload.durations`), or a folder of event dumps.
        schedule: the name of its schedule; by default the one with the measured order of ops.

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
    return Replayed.of(read_trace(Path(path), schedule), Path(path).stem)


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


# The picture of a replay: measured and simulated steps, and the slowdown of every stage of every replica.


MOST_CELLS = 400  # up to which cells show numbers


def heat_map(replayed: Replayed) -> Figure:
    """Draw first to last compute step by step, and S of each worker alone, replica × stage."""
    figure = new_figure((11.0, 4.2))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    steps, places = replayed.steps, np.arange(len(replayed.steps))
    if "measured_s" in steps:
        left.plot(places, steps.measured_s, color=LINES[0], marker="o", markersize=3, label="measured")
    left.plot(places, steps.simulated_s, color=LINES[1], linestyle="--", label="simulated")
    left.axhline(replayed.what_if.ideal_length.max() / 1e12, color="0.5", linewidth=1, label="all ops at the mean")
    left.set_ylim(bottom=0)
    left.set_xlabel("measured step")
    left.set_ylabel("first to last compute (s)")
    legend(plain(left), loc="lower left", bbox_to_anchor=(0.0, 0.0))
    workers = replayed.classes[replayed.classes.what == "worker"]
    grid = workers.pivot(index="replica", columns="stage", values="slowdown").to_numpy(dtype=float)
    image = right.imshow(grid, cmap="YlOrRd", vmin=1, vmax=max(float(grid.max()), 1.1), aspect="auto")
    for (row, column), value in np.ndenumerate(grid) if grid.size <= MOST_CELLS else ():
        dark = value > (1 + image.get_clim()[1]) / 2
        right.text(
            column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
        )
    right.set_xlabel("stage")
    right.set_ylabel("replica")
    right.set_xticks(range(grid.shape[1]))
    right.set_yticks(range(grid.shape[0]))
    right.set_title("slowdown by this worker alone", loc="left", fontsize=9)
    return figure
