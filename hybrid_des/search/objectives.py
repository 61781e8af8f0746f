"""What a search makes as good as possible: an objective turns the time of a step into a cost, the lower the better."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hybrid_des.scenario import Scenario
from hybrid_des.units import format_seconds


@dataclass(frozen=True)
class Objective:
    """One way to compare plans.

    Attributes:
        name: the key of the summary that is compared.
        cost: (scenario, seconds of a step) → what is made small; it never falls while the seconds grow.
        value: the summary's value of a cost.
        shown: a value as text.
        lacking: what a scenario lacks for it; empty if nothing.
    """

    name: str
    cost: Callable[[Scenario, float], float]
    value: Callable[[float], float]
    shown: Callable[[float], str]
    lacking: Callable[[Scenario], str] = lambda scenario: ""


def _seconds_per_token_and_gpu(scenario: Scenario, seconds: float) -> float:
    """GPU-seconds that a token takes; the batch and the number of GPUs may differ from plan to plan."""
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


OBJECTIVES: Mapping[str, Objective] = {
    one.name: one
    for one in (
        Objective("step_time_s", lambda scenario, seconds: seconds, lambda cost: cost, format_seconds),
        Objective("tokens_per_gpu_s", _seconds_per_token_and_gpu, _inverse, lambda v: f"{v:.4g} tokens/s", _no_tokens),
    )
}
