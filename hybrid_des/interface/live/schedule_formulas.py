"""A simulated schedule beside its published formula, and why they differ where they do."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.schedules import UniformSizes
from hybrid_des.result import Result
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

NO_TIMES = "no formula: ranks differ in time"
NO_FORMULA = "no formula that gives a number"
ELSEWHERE = "the formula does not hold for these sizes (see its conditions)"
SPAN = (
    "the formula counts the longest time from a rank's first op to its last ({span} here). Ranks start and end one "
    "after another, and the step ends with the last of them. Without a barrier between steps, as with the optimizer "
    "post-validation of the zero-bubble paper (arXiv 2401.10241), a rank starts its next step as soon as it is done: "
    "over many steps (steps: 10, barrier: false) the bubble approaches the formula"
)
UNEXPLAINED = "differs from the formula; the reason is not known"


class ScheduleRow(NamedTuple):
    """A row of the table below the schedules.

    Attributes:
        name: of the schedule.
        step_s: simulated, in seconds.
        bubble: simulated share of the step.
        by_formula: the bubble by the formula, as a share of the time that it gives; None where it does not hold.
        formula: its text, in p, m, v and T = F+I+W.
        memory: peak activations by their formula, in micro-batches.
        weights: copies of the weights that a rank holds.
        source: the paper or code.
        remark: why the two bubbles differ, or why there is no formula; empty if they agree.
    """

    name: str
    step_s: float
    bubble: float
    by_formula: float | None
    formula: str
    memory: str
    weights: int
    source: str
    remark: str


def row_of(done: Run, times: Mapping[str, float | None]) -> ScheduleRow:
    """The row of one run.

    Args:
        done: of one step on free links.
        times: `forward`, `backward` (whole) and `weight` of all ranks, in seconds; None for one per rank.
    """
    summary, name = Result(done).summary, str(done.scenario.schedule.kind)
    facts, sizes = schedules.find(name).facts, _sizes(done, times)
    expected = facts["formula"](sizes) if sizes is not None and facts["formula"] is not None else None
    bubble, by_formula = summary["step_shares"]["bubble"], None
    if sizes is not None and expected:
        by_formula = float(1 - sizes.m * sizes.total / expected)
    return ScheduleRow(
        name, summary["step_time_s"], bubble, by_formula, str(facts["time"]), str(facts["memory"]),
        len(done.plan.paths), str(facts["source"]), _remark(facts, sizes, expected, done),
    )  # fmt: skip


def _sizes(done: Run, times: Mapping[str, float | None]) -> UniformSizes | None:
    """The sizes for a formula, with times in picoseconds as simulated; None if they differ between ranks."""
    forward, backward, weight = (
        None if (seconds := times[key]) is None else Fraction(round(seconds * PICOSECONDS_PER_SECOND))
        for key in ("forward", "backward", "weight")
    )
    if forward is None or backward is None:
        return None
    weight = backward / 2 if weight is None else weight
    schedule = done.scenario.schedule
    chunks = done.plan.stages // done.plan.pipeline
    return UniformSizes(done.plan.pipeline, schedule.microbatches, chunks, forward, backward - weight, weight)


def _remark(facts: Mapping[str, Any], sizes: UniformSizes | None, expected: Fraction | None, done: Run) -> str:
    if facts["formula"] is None:
        return NO_FORMULA
    if sizes is None:
        return NO_TIMES
    if expected is None:
        return ELSEWHERE
    if facts["span"] and longest_span(done) == expected != done.timeline.duration:
        return SPAN.format(span=f"{float(expected / PICOSECONDS_PER_SECOND):g} s")
    return "" if done.timeline.duration == expected else UNEXPLAINED


def longest_span(done: Run) -> int:
    """The longest time from a rank's first op to its last, in picoseconds."""
    ops = done.timeline.ops
    ranks = ops["rank"]
    return max(int(ops["end"][ranks == rank].max() - ops["start"][ranks == rank].min()) for rank in set(ranks.tolist()))
