"""What a step is spent on and mainly lost to, in sentences, from the shares of `step_breakdown`.

    tensor-parallel communication: 27 % of the step. It exchanges activations among 8 GPUs.

The main loss is the largest share that is not useful computing, if it is at least a tenth. What holds the step up, a
slow node or an uneven stage, is named if it costs a tenth by itself, or if nothing does: as the reason of a wait, and
beside any other loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from hybrid_des.analysis.counterfactual.attribution import Straggler
from hybrid_des.analysis.idle import HOST
from hybrid_des.analysis.step_breakdown import BUBBLE, COMPUTING, RECOMPUTING, SLOWER
from hybrid_des.scenario.definition import Scenario

LARGE = Fraction(95, 1000)  # of the step, from which a loss is named: a tenth as `percent` shows it
SHOWN = Fraction(1, 100)  # of the step, from which a share is listed

WAITS = ("pipeline", "gradients", "parameters", BUBBLE, SLOWER)  # shares in which GPUs wait for others

SHARE_NAMES = {  # of `step_breakdown`, in sentences
    COMPUTING: "computing", RECOMPUTING: "recomputing activations",
    "tensor": "tensor-parallel communication", "context": "context-parallel communication",
    "expert": "expert-parallel communication", "pipeline": "pipeline messages", "gradients": "gradient reduction",
    "parameters": "parameter gathers", BUBBLE: "pipeline bubble", SLOWER: "waiting for slower GPUs",
    HOST: "waiting for the host",
}  # fmt: skip

OF_TRACES = {  # whose collectives say what they do, but not for which axis
    "gradients": "all-reduces and reduce-scatters", "parameters": "all-gathers and broadcasts",
    "expert": "all-to-alls", "pipeline": "sends and receives",
}  # fmt: skip


def share_name(name: str, traced: bool = False) -> str:
    """A share of the step in a sentence; `traced`: of recorded programs."""
    return (OF_TRACES if traced else {}).get(name) or SHARE_NAMES[name]


def shares_text(shares: Mapping[str, Fraction], traced: bool = False) -> str:
    """The shares of the step from one percent on: computing, then the largest first."""
    losses = sorted((name for name in shares if name != COMPUTING), key=lambda name: -shares[name])
    shown = [COMPUTING, *(name for name in losses if shares[name] >= SHOWN)]
    return ", ".join(f"{share_name(name, traced)} {percent(shares[name])}" for name in shown)


def main_loss(shares: Mapping[str, Fraction]) -> str | None:
    """The largest share that is not useful computing; None if it is below a tenth of the step."""
    largest = max((name for name in shares if name != COMPUTING), key=lambda name: shares[name])
    return largest if shares[largest] >= LARGE else None


def verdict(
    scenario: Scenario, shares: Mapping[str, Fraction], culprit: Straggler | None = None, cost: float = 0.0
) -> str:
    """What costs the most, and why.

    Args:
        scenario: of the run.
        shares: what the mean GPU does in a step.
        culprit: what holds the step up.
        cost: the share of the step that would be saved without it.
    """
    loss = main_loss(shares)
    if loss is None:
        others = any(share >= SHOWN for name, share in shares.items() if name != COMPUTING)
        said = f"computing is {percent(shares[COMPUTING])}{'; nothing else costs a tenth' if others else ''}"
        return f"{said}. {_held_up(culprit, cost)}" if culprit else said
    held_up = _held_up(culprit, cost) if culprit and cost >= LARGE else ""
    reason = "" if held_up and loss in WAITS else _reason(loss, scenario)
    said = f"{share_name(loss, scenario.traced)}: {percent(shares[loss])} of the step"
    return ". ".join([said, " ".join(filter(None, [reason, held_up]))]).removesuffix(". ")


def _held_up(culprit: Straggler, cost: float) -> str:
    """What holds the step up, as a sentence."""
    works = "" if culprit.slow is None else f"computes {culprit.slow:.2f}× the mean and "
    return f"The step is held up by {culprit.name}, which {works}costs {percent(cost)} of it."


def _reason(loss: str, scenario: Scenario) -> str:
    """Where a loss comes from, as a sentence; empty where the shares of recorded programs do not tell."""
    if scenario.traced:
        return ""
    parallel, schedule = scenario.parallel, scenario.schedule
    copies = " or copy data" if scenario.offload.activations or scenario.offload.optimizer else ""
    again = "the forward" if scenario.recompute == "full" else "parts of the forward"
    return {
        RECOMPUTING: f"The backward repeats {again}.",
        "tensor": f"It exchanges activations among {parallel.tensor} GPUs.",
        "context": f"It exchanges keys and values among {parallel.context} GPUs.",
        "expert": f"It sends tokens to experts on {parallel.expert} GPUs and back.",
        "pipeline": "They bring activations and gradients from stage to stage.",
        "gradients": f"Gradients are summed over {parallel.data * parallel.context} GPUs while nothing else runs.",
        "parameters": "Parameters are gathered from other GPUs while nothing else runs.",
        BUBBLE: f"There are {schedule.microbatches} micro-batches for {parallel.pipeline} pipeline ranks.",
        SLOWER: "Replicas wait for the slowest one.",
        HOST: f"GPUs wait for the host to launch kernels{copies}.",
    }[loss]


def percent(share: Fraction | float) -> str:
    """A share in whole percent."""
    return f"{float(share) * 100:.0f} %"
