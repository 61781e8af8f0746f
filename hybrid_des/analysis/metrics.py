"""The summary of a run: step time, bubble, idle time by cause, traffic and memory.

Sums are exact, in whole picoseconds, and converted to seconds at the end, so that busy and idle sum to the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.bill import bill, bill_per_day
from hybrid_des.analysis.documents import document_figures
from hybrid_des.analysis.expert_use import expert_use
from hybrid_des.analysis.idle import EXPOSED, account, hidden_gathers, hidden_reduction, inside_waits
from hybrid_des.analysis.inside_ops import OF_UPDATE, inside_ops
from hybrid_des.analysis.stack_steps import figures_of_stack
from hybrid_des.analysis.step_breakdown import StepBreakdown, step_breakdown
from hybrid_des.analysis.step_times import StepTimes, step_times, total
from hybrid_des.analysis.table import empty_table, table
from hybrid_des.cluster.purposes import PARAMETERS, PURPOSES, REDUCTION
from hybrid_des.cost_model.model_version import MODEL_VERSION
from hybrid_des.planning.program_table import Column, Columns
from hybrid_des.shortcuts.expansion import expanded
from hybrid_des.simulation.memory_remedies import fits
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
from hybrid_des.analysis.model_figures import model_figures, plain_number


class RunAnalysis:
    """A run and its derived tables, each computed on first use; the input of reports and files.

    Attributes:
        run: the rows and totals of the simulation.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The summary, by its public keys; seconds and bytes."""
        return {**summary(self.run, self.breakdown), **expert_use(self.run)}

    @cached_property
    def inside(self) -> Mapping[str, Column]:
        """For each op row, picoseconds of collectives by axis and of the host inside it."""
        return inside_ops(self.run)

    @cached_property
    def breakdown(self) -> StepBreakdown:
        """What the mean GPU does in a step."""
        return step_breakdown(self.run)

    def table(self, all_replicas: bool = False) -> pd.DataFrame:
        """The timeline, optionally with the rows of replicas that were not simulated because others do the same."""
        run = self.run
        if not all_replicas or run.fold is None or run.fabric is None or run.scenario.record == "none":
            return self.timeline
        return table(expanded(run.timeline, run.fold, run.fabric))

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row per op, and one per message and link it passes, in seconds."""
        return empty_table() if self.run.scenario.record == "none" else table(self.run.timeline)


def summary(run: Run, breakdown: StepBreakdown | None = None) -> dict[str, Any]:
    """The summary of a run by its public keys: values that are one number, or one per pipeline rank.

    Times are seconds and sizes bytes, averaged per step. All values are finite: ratios to zero time are 0. `breakdown`
    is that of the run, if it is known.
    """
    scenario, timeline = run.scenario, run.timeline
    times = step_times(timeline)
    replicas, steps, pipeline = times.begin.shape
    ranks, simulated = scenario.parallel.ranks, replicas * pipeline
    parts = account(timeline, times)
    step_time, spans = _seconds(times.total, steps), _pipeline(times, timeline.waits)
    seconds = _consistent(step_time, {name: _seconds(value, simulated * steps) for name, value in parts.items()})
    busy, reduced = seconds.pop("busy"), _communication(timeline, times, seconds, simulated * steps)
    shown = [one for one in PURPOSES if one.usual or getattr(run, one.counter) or one.key in reduced]
    counters = dict.fromkeys(purpose.counter for purpose in shown)
    breakdown = breakdown or step_breakdown(run, times)
    share, computing = Fraction(parts["busy"], breakdown.whole or 1), breakdown.efficiency
    exposed = sum(parts.get(cause, 0) for cause in EXPOSED)
    inside = {name: _seconds(spent, simulated * steps) for name, spent in breakdown.inside.items()}
    optimizer = {"time_s": _seconds(times.optimizer, simulated * steps), "collectives_s": inside[OF_UPDATE]}
    return {
        "version": scenario.version,
        "model_version": MODEL_VERSION,
        "name": scenario.name,
        "ranks": ranks,
        "ranks_simulated": simulated,
        "step_time_s": step_time,
        **spans,
        "busy_s": busy,
        "idle_s": seconds,
        "exposed_communication_ratio": _ratio(exposed, simulated * times.total),
        **{f"{name.removesuffix('s')}_communication_s": each for name, each in reduced.items()},
        **({} if run.slowed is None else {"slowed_s": _seconds(run.slowed, simulated * steps)}),
        "algorithm": run.algorithm,
        "channels": run.channels,
        **({"choices": dict(run.choices)} if run.choices else {}),
        "step_shares": {name: float(part) for name, part in breakdown.shares.items()},
        "speedup": float(computing * ranks),
        "efficiency": float(computing),
        "busy_ratio": float(share),
        "microbatches_per_s": timeline.programs.microbatches * scenario.parallel.data / step_time if step_time else 0,
        **{key: plain_number(Fraction(getattr(run, key), steps)) for key in ("messages", *counters, "bytes_scales")},
        **({"bytes_switched": plain_number(Fraction(run.bytes_switched, steps))} if run.bytes_switched else {}),
        **_memory(run),
        **({"data": document_figures(scenario)} if scenario.model and scenario.data else {}),
        **(model_figures(run, times, step_time, seconds, reduced, inside) if scenario.model else {}),
        **({"optimizer": optimizer} if scenario.model else {}),
        **figures_of_stack(run, step_time, spans["pipeline_time_s"]),
        **_bill(run, Fraction(times.total, steps * PICOSECONDS_PER_SECOND), share),
        **(run.numerics or {}),
        **({} if run.outer is None else {"outer": run.outer.facts()}),
        "wall_s": run.wall_s,
        "events": run.events,
        **_shortcuts(run),
    }


def _communication(
    timeline: Timeline, times: StepTimes, idle: dict[str, float], count: int
) -> dict[str, dict[str, float]]:
    """Exposed and hidden seconds of gradients and, if they are gathered, parameters; `idle` learns of the latter."""
    figures = {
        "gradients": {"exposed": idle[REDUCTION.cause], "hidden": _seconds(hidden_reduction(timeline, times), count)}
    }
    if len(timeline.gathers["rank"]):
        exposed = idle.setdefault(PARAMETERS.cause, 0.0)
        figures["parameters"] = {"exposed": exposed, "hidden": _seconds(hidden_gathers(timeline), count)}
    return figures


def _shortcuts(run: Run) -> dict[str, Any]:
    """What the simulation left out since it changes no figure, and what it could not leave out, with why."""
    refused = [{"left_out": attempt, "why": why} for attempt, why in run.refused]
    return {"shortcuts": {"left_out": run.left_out, "refused": refused}} if run.left_out or refused else {}


def _bill(run: Run, step: Fraction, share: Fraction) -> dict[str, Any]:
    """The bill of the whole training, or of a day if its length is not given."""
    if run.scenario.train is not None:
        return {"bill": bill(run.scenario, step, share)}
    step = step if run.outer is None else Fraction(run.outer.step) / PICOSECONDS_PER_SECOND
    per_day = bill_per_day(run.scenario, step, share)
    return {"bill_per_day": per_day} if per_day else {}


def _pipeline(times: StepTimes, waits: Columns) -> dict[str, float]:
    """Duration of the pipeline, and the bubble ratio."""
    replicas, steps, pipeline = times.begin.shape
    longest = _mean_longest(times.end.max(axis=2) - times.start.min(axis=2))
    spans = times.end[..., times.last] - times.start[..., times.first]  # replica × step × rank
    compute = Fraction(total(times.end - times.start) - total(inside_waits(waits)), steps)
    return {
        "pipeline_time_s": _seconds(longest, 1),
        "span_s": _seconds(_mean_longest(spans.transpose(0, 2, 1).reshape(-1, spans.shape[1])), 1),
        "bubble_ratio": _ratio(replicas * pipeline * longest - compute, replicas * pipeline * longest),
    }


def _mean_longest(spans: Column) -> Fraction:
    """The longest span per step, averaged over steps; the last axis of `spans` is the step."""
    longest = spans.max(axis=0).tolist()
    return Fraction(sum(longest), len(longest))


def _memory(run: Run) -> dict[str, Any]:
    """Peaks per pipeline rank, maximum over replicas, and whether any exceeds the GPU's memory."""
    timeline = run.timeline
    activations: list[Fraction] = [Fraction(0)] * timeline.programs.pipeline
    held = [0] * timeline.programs.pipeline
    for rank, most, size in zip(run.ranks, run.peak_activations, run.peak_memory, strict=True):
        pipeline_rank = timeline.layout.coordinate(rank, "pipeline")
        activations[pipeline_rank] = max(activations[pipeline_rank], Fraction(most))
        held[pipeline_rank] = max(held[pipeline_rank], size)
    return {
        "peak_activations": [plain_number(value) for value in activations],
        "peak_memory_bytes": held,
        "out_of_memory": not fits(run),
    }


def _consistent(whole: float, parts: dict[str, float]) -> dict[str, float]:
    """Round parts to the last digit of the whole, so that their floating-point sum is exact in any order.

    The largest idle time absorbs the rounding errors or, if all are too small for that, the busy time.
    """
    digit = math.ulp(whole)
    largest = max((name for name in parts if name != "busy"), key=parts.__getitem__)
    taker = largest if parts[largest] > whole / 1000 else "busy"
    others = {name: round(value / digit) * digit for name, value in parts.items() if name != taker}
    return {**parts, **others, taker: whole - sum(others.values())}


def _seconds(picoseconds: int | Fraction, count: int) -> float:
    return float(Fraction(picoseconds) / (count * PICOSECONDS_PER_SECOND))


def _ratio(part: int | Fraction, whole: int | Fraction) -> float:
    return float(Fraction(part) / Fraction(whole)) if whole else 0.0
