"""The parts of the average step per rank: busy, and idle by what ranks wait for."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hybrid_des.analysis.idle import DEPENDENCY, STEADY, slower_replica_share
from hybrid_des.analysis.model_figures import AXES
from hybrid_des.analysis.waiting import waiting
from hybrid_des.network.purpose import ACTIVATION, REDUCTION
from hybrid_des.simulation.run import Run

CAUSES = {
    "busy": "busy",
    "dependency": "pipeline dependency",
    "pipeline_message": "waiting for a pipeline message",
    "gradient_reduction": "gradient reduction",
    "slower_replica": "waiting for a slower replica",
    "end_of_step": "step barrier",
}
MESSAGES = 0.01  # share of the step from which the wait for pipeline messages is shown in parts


class Share(NamedTuple):
    """One part of the average step: label, seconds, fraction of the step, and the activity that gives its colour."""

    label: str
    seconds: float
    fraction: float
    activity: str


def shares_of(facts: Mapping[str, Any], run: Run) -> list[Share]:
    """The parts of the step."""
    step, busy = facts["step_time_s"], facts["busy_s"]
    axes = facts.get("communication_s", {})
    inside = {f"{axis} collectives": axes[axis]["exposed"] for axis in AXES if axis in axes and axes[axis]["exposed"]}
    work = {"computation" if inside else "busy": busy - sum(inside.values())}
    activities = {**dict.fromkeys(work, "F"), **dict.fromkeys((*inside, REDUCTION.cause), "reduction")}
    return [
        Share(CAUSES.get(name, name.replace("_", " ")), seconds, seconds / step if step else 0.0,
              activities.get(name, "idle"))
        for name, seconds in {**work, **inside, **_idle(facts["idle_s"], step, run)}.items()
    ]  # fmt: skip


def _idle(idle: Mapping[str, float], step: float, run: Run) -> dict[str, float]:
    """Idle time by cause: warm-up, drain, parts of waits for messages, and waits for a slower replica separately."""
    dependency, messages = waiting(run)
    named = {DEPENDENCY if name == STEADY else name: time for name, time in dependency.items()}
    finer = {DEPENDENCY: named}
    if idle[ACTIVATION.cause] > MESSAGES * step:
        finer[ACTIVATION.cause] = {f"pipeline message: {name}": time for name, time in messages.items()}
    parts: dict[str, float] = {}
    for cause, seconds in idle.items():
        split = {name: time for name, time in finer.get(cause, {}).items() if time}
        parts |= {name: seconds * time / sum(split.values()) for name, time in split.items()} or {cause: seconds}
    waited = parts[REDUCTION.cause] * slower_replica_share(run.timeline)
    if not waited:
        return parts
    parts[REDUCTION.cause] -= waited
    last = parts.pop("end_of_step")
    return {**parts, "slower_replica": waited, "end_of_step": last}
