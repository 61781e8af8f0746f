"""What a step is spent on and mainly lost to, in sentences, from the shares of `step_breakdown`.

    27 % of the step goes to tensor-parallel communication: every layer exchanges activations among 8 GPUs.

The main loss is the largest share that is not useful computing, if it is at least a tenth. What delays the step, a slow
node or an uneven stage, is named if it costs a tenth by itself, or if nothing does: as the reason of a wait, and beside
any other loss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from hybrid_des.analysis.idle import HOST
from hybrid_des.analysis.step_breakdown import BUBBLE, COMPUTING, RECOMPUTING, SLOWER
from hybrid_des.scenario.definition import Scenario
from hybrid_des.units import format_share

if TYPE_CHECKING:
    from hybrid_des.analysis.counterfactual.attribution import Straggler

LARGE = Fraction(95, 1000)  # of the step, from which a loss is named: a tenth in whole percent
SHOWN = Fraction(1, 100)  # of the step, from which a share is listed
LONGER = 1.005  # times the mean compute time, from which a rank is said to compute for longer
NO_TENTH = "; nothing else takes a tenth of it"

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


SPENT = {  # on what the time of a GPU goes, after "of the step"
    "tensor": "in", "context": "in", "expert": "in", "pipeline": "waiting for", "gradients": "waiting for",
    "parameters": "waiting for", BUBBLE: "in the",
}  # fmt: skip


def share_name(name: str, traced: bool = False) -> str:
    """A share of the step in a sentence; `traced`: of recorded programs."""
    return (OF_TRACES if traced else {}).get(name) or SHARE_NAMES[name]


def shares_text(shares: Mapping[str, Fraction], traced: bool = False) -> str:
    """The shares of the average GPU's step from one percent on, as a sentence: computing, then the largest first."""
    losses = sorted((name for name in shares if name != COMPUTING), key=lambda name: -shares[name])
    shown = [COMPUTING, *(name for name in losses if shares[name] >= SHOWN)]
    spent = (" ".join(filter(None, [SPENT.get(name, ""), share_name(name, traced)])) for name in shown)
    first, *others = (f"{format_share(shares[name], 0)} {text}" for name, text in zip(shown, spent, strict=True))
    listed = listing([first.replace(" %", " % of the step", 1), *others])
    return f"GPUs spend {listed}."


def listing(parts: Sequence[str]) -> str:
    """Parts of a sentence: "a, b and c"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


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
        culprit: what delays the step.
        cost: the share of the step that would be saved without it.
    """
    loss = main_loss(shares)
    if loss is None:
        others = any(share >= SHOWN for name, share in shares.items() if name != COMPUTING)
        said = f"{format_share(shares[COMPUTING], 0)} of the step is computing{NO_TENTH if others else ''}."
        return f"{said} {delay_text(culprit, cost)}" if culprit else said
    delay = delay_text(culprit, cost) if culprit and cost >= LARGE else ""
    reason = "" if delay and loss in WAITS else _reason(loss, scenario)
    the = "the " if loss == BUBBLE else ""
    said = f"{format_share(shares[loss], 0)} of the step goes to {the}{share_name(loss, scenario.traced)}"
    return " ".join(filter(None, [f"{said}{f': {reason}' if reason else ''}.", delay]))


def delay_text(culprit: Straggler, cost: float) -> str:
    """What delays the step, as a sentence."""
    name, alone = named(culprit.name), culprit.together == 1
    if culprit.slow is not None and culprit.slow >= LONGER:
        what = f"{'computes' if alone else 'compute'} for {times(culprit.slow)} as long as the average rank"
    else:
        what = "is slow" if alone else "are slow"
    return f"{name[0].upper()}{name[1:]} {what}, which costs {format_share(cost, 0)} of the step."


def times(factor: float) -> str:
    """A factor with two decimal places, or four if it is close to one."""
    return f"{factor:.2f}×" if factor >= LONGER else f"{factor:.4f}×"


def named(components: str) -> str:
    """Components of the cluster, such as "gpu 3", in a sentence: "GPU 3"."""
    return re.sub(r"\b(gpu|nic) ", lambda kind: kind[0].upper(), components)


def _reason(loss: str, scenario: Scenario) -> str:
    """Where a loss comes from; empty where the shares of recorded programs do not tell."""
    if scenario.traced:
        return ""
    parallel, schedule = scenario.parallel, scenario.schedule
    copies = " or to copy data" if any(vars(scenario.offload).values()) else ""
    again = "the whole forward pass" if scenario.recompute == "full" else "parts of the forward pass"
    return {
        RECOMPUTING: f"to save memory, the backward pass repeats {again}",
        "tensor": f"every layer exchanges activations among {parallel.tensor} GPUs",
        "context": f"attention exchanges keys and values among {parallel.context} GPUs",
        "expert": f"tokens are sent to experts on {parallel.expert} GPUs and back",
        "pipeline": "activations and gradients travel from one pipeline stage to the next",
        "gradients": f"gradients are summed over {parallel.data * parallel.context} GPUs while nothing else runs",
        "parameters": "parameters are gathered from other GPUs while nothing else runs",
        BUBBLE: f"GPUs wait for each other while {schedule.microbatches} micro-batches pass through "
        f"{parallel.pipeline} pipeline ranks",
        SLOWER: "replicas wait for the slowest one",
        HOST: f"GPUs wait for the CPU to launch kernels{copies}",
    }[loss]
