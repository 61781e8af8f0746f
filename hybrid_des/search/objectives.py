"""Objectives of a search: each turns the time of a step into a cost, the lower the better."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hybrid_des.scenario import Scenario
from hybrid_des.units import format_seconds


@dataclass(frozen=True)
class Objective:
    """One way to compare plans.

    Attributes:
        name: its name in `search.objective` and in the summary.
        cost: (scenario, seconds of a step) → the cost to minimize; it never decreases with the seconds.
        value: cost → the figure that is shown under `key`.
        shown: value → its text.
        lacking: what a scenario lacks for it; empty if nothing.
        key: the name of the value in tables and files.
        axis: its axis label in plots.
        weeks: whether the seconds are wall time per useful step, over weeks with failures.
    """

    name: str
    cost: Callable[[Scenario, float], float]
    value: Callable[[float], float]
    shown: Callable[[float], str]
    lacking: Callable[[Scenario], str] = lambda scenario: ""
    key: str = ""
    axis: str = ""
    weeks: bool = False


def _seconds_per_token_and_gpu(scenario: Scenario, seconds: float) -> float:
    """GPU-seconds per token; the batch and the number of GPUs may differ from plan to plan."""
    assert scenario.model is not None  # see `_no_tokens`
    schedule, parallel = scenario.schedule, scenario.parallel
    samples = schedule.microbatches * schedule.microbatch_size * parallel.data
    return seconds * parallel.ranks / (samples * scenario.model.network.tokens)


def _no_tokens(scenario: Scenario) -> str:
    if scenario.model is None or scenario.model.network.sample != "sequence":
        return "needs a `model` of token sequences"
    return ""


def _inverse(cost: float) -> float:
    return 1 / cost if cost else 0.0


def _no_faults(scenario: Scenario) -> str:
    return "" if scenario.faults is not None else "needs `faults`"


def _seconds(scenario: Scenario, seconds: float) -> float:
    return seconds


OBJECTIVES: Mapping[str, Objective] = {
    one.name: one
    for one in (
        Objective("step_time_s", _seconds, lambda cost: cost, format_seconds, key="step_time_s", axis="step time (s)"),
        Objective(
            "tokens_per_gpu_s",
            _seconds_per_token_and_gpu,
            _inverse,
            lambda value: f"{value:.4g} tokens/s",
            _no_tokens,
            key="tokens_per_gpu_s",
            axis="tokens per GPU and second",
        ),
        Objective(
            "goodput",
            _seconds,
            lambda cost: cost,
            lambda value: f"{format_seconds(value)} per useful step",
            _no_faults,
            key="wall_per_useful_step_s",
            axis="wall time per useful step (s)",
            weeks=True,
        ),
    )
}
