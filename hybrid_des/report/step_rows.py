"""The rows of the average step: the parts of `analysis.step_breakdown`, idle time in finer ones, which sum to it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from hybrid_des.analysis.idle import DEPENDENCY, END_OF_STEP, HOST, PHASES
from hybrid_des.analysis.inside_ops import AXES
from hybrid_des.analysis.step_breakdown import BUBBLE, COMPUTING, RECOMPUTING, SLOWER, StepBreakdown
from hybrid_des.analysis.verdict import SHARE_NAMES
from hybrid_des.analysis.waiting import waiting
from hybrid_des.cluster.purposes import ACTIVATION, CONTEXT, PARAMETERS, REDUCTION
from hybrid_des.report.palette import ACTIVITIES, CAUSES, MESSAGE, cause_colour, cause_name
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

INSIDE_HOST = "host inside ops"
MESSAGES = Fraction(1, 100)  # share of the step from which the wait for pipeline messages is shown in parts
USUAL = (ACTIVATION.cause, REDUCTION.cause, END_OF_STEP)  # causes of idle time that are shown even if there is none

COLOURS = {
    **{part + cause_name(cause): cause_colour(cause) for part in ("", MESSAGE) for cause in CAUSES},
    **{f"{axis} collectives": CAUSES[f"{axis}_collective"].colour for axis in AXES},  # which are no idle time
    SHARE_NAMES[RECOMPUTING]: "#7FB8D8",  # a lighter forward
    INSIDE_HOST: "#DDCC77",
}


class Share(NamedTuple):
    """One part of the average step: label, seconds, fraction of the step, and the activity that gives its colour."""

    label: str
    seconds: float
    fraction: float
    activity: str

    @property
    def colour(self) -> str:
        """Its colour on pages."""
        return COLOURS.get(self.label, ACTIVITIES[self.activity].colour)


def step_rows(run: Run, breakdown: StepBreakdown) -> list[Share]:
    """The parts of the average step per rank: computing, collectives inside ops, idle time by cause.

    The bubble is in its phases, the wait for pipeline messages in parts if it is long, and waits for slower replicas
    are those in reductions, then those for the step barrier.
    """
    parts = breakdown.parts
    again = {SHARE_NAMES[RECOMPUTING]: parts[RECOMPUTING]} if parts[RECOMPUTING] else {}
    inside = {f"{axis} collectives": breakdown.inside[axis] for axis in AXES if breakdown.inside[axis]}
    work = {SHARE_NAMES[COMPUTING]: parts[COMPUTING], **again}
    host = {INSIDE_HOST: breakdown.inside[HOST]} if breakdown.inside[HOST] else {}
    drawn = {**dict.fromkeys(work, "F"), **dict.fromkeys(inside, "exchange"), REDUCTION.cause: "reduction"}
    seconds = run.timeline.duration / (PICOSECONDS_PER_SECOND * run.scenario.steps)
    shares = {}
    rows: dict[str, int | Fraction] = {**work, **inside, **host, **idle_parts(run, breakdown)}
    for name, part in rows.items():
        shares[name] = float(Fraction(part) / breakdown.whole) if breakdown.whole else 0.0
    return [Share(cause_name(name), share * seconds, share, drawn.get(name, "idle")) for name, share in shares.items()]


def idle_parts(run: Run, breakdown: StepBreakdown) -> dict[str, Fraction]:
    """Idle time by cause as it is shown, in picoseconds of all simulated ranks and steps."""
    ranks, messages = waiting(run)
    parts = breakdown.parts
    finer = {MESSAGE + name: time for name, time in messages.items()}
    finer = finer if parts["pipeline"] > MESSAGES * breakdown.whole else {}
    idle = {
        **_split(parts[BUBBLE], {phase: ranks[phase] for phase in PHASES}, DEPENDENCY),
        **_split(parts["pipeline"], finer, ACTIVATION.cause),
        REDUCTION.cause: parts["gradients"],
        PARAMETERS.cause: parts["parameters"],
        CONTEXT.cause: parts["context"] - breakdown.inside["context"],
        "slower_replica": Fraction(breakdown.late),
        END_OF_STEP: parts[SLOWER] - breakdown.late,
        HOST: parts[HOST] - breakdown.inside[HOST],
    }
    return {name: part for name, part in idle.items() if part or name in USUAL}


def _split(whole: Fraction, parts: Mapping[str, int], name: str) -> dict[str, Fraction]:
    """A whole by parts that take time, in their shares, or under its own name if none does."""
    timed = {part: time for part, time in parts.items() if time}
    return {part: whole * time / sum(timed.values()) for part, time in timed.items()} or {name: whole}
