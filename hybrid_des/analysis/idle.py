"""Breakdown of every rank's time: busy, or idle by cause.

The step of one rank, from left to right, with the cause of each gap:

    begin ·····  F  ··  B  ···· last compute ▒▒▒▒▒▒ reduced  optimizer  end ········ the slowest rank's end
          (dependency,               (gradient_reduction)                 (end_of_step)
           pipeline_message)
"""

import numpy as np

from hybrid_des.analysis.step_times import StepTimes, total
from hybrid_des.network.purpose import ACTIVATION, PURPOSES, REDUCTION
from hybrid_des.pipeline.plan import Plan
from hybrid_des.timeline import Column, Timeline

EXPOSED = tuple(dict.fromkeys(purpose.cause for purpose in PURPOSES))  # idle for communication
CAUSES = ("dependency", *EXPOSED, "end_of_step")
NEVER = np.iinfo(np.int64).min


def account(plan: Plan, times: StepTimes) -> dict[str, int]:
    """Split the time of all ranks into busy and idle by cause, in picoseconds that sum to ranks × total.

    The gap before an op lasts until its last remote producer finishes (`dependency`), then until the message arrives
    (`pipeline_message`). Time blocked by a rank's own sends is `pipeline_message` too.
    """
    replicas, _, pipeline = times.begin.shape
    previous = np.empty_like(times.end)
    previous[..., 1:] = times.end[..., :-1]
    holders = times.rank_of_op[times.first]
    previous[..., times.first] = times.begin[..., holders]
    gap = times.start - times.asked
    consumer, producer = plan.edges.remote
    done = np.full_like(times.end, NEVER)  # for each op, when its last remote producer finished
    ops, starts = np.unique(consumer, return_index=True)
    if len(ops):
        done[..., ops] = np.maximum.reduceat(times.end[..., producer], starts, axis=-1)
    dependency = np.clip(done, times.asked, times.start) - times.asked
    blocked = total(times.asked - previous) + total(times.sent - times.last_compute())
    parts = {
        "busy": total(times.end - times.start) + times.optimizer,
        "dependency": total(dependency),
        ACTIVATION.cause: total(gap - dependency) + blocked,
        REDUCTION.cause: total(times.reduced - times.sent),
    }
    parts["end_of_step"] = replicas * pipeline * times.total - sum(parts.values())
    return parts


def hidden_messages(plan: Plan, times: StepTimes, flight: Column) -> int:
    """Picoseconds, over all ranks and steps, for which pipeline messages travel while their receiver computes.

    Args:
        plan: the plan.
        times: the times of its ops.
        flight: for each message of `plan.edges.remote`, how long it takes on idle links; those that share links take
            longer, which counts only where the receiver waits.
    """
    consumer, producer = plan.edges.remote
    return total(np.clip(times.asked[..., consumer] - times.end[..., producer], 0, flight))


def hidden_reduction(timeline: Timeline, times: StepTimes) -> int:
    """Picoseconds, over all ranks and steps, of gradient reduction overlapped with remaining compute."""
    rows = timeline.reductions
    place = timeline.pipeline[rows["rank"]], rows["step"], timeline.pipeline_rank[rows["rank"]]
    return total(np.maximum(np.minimum(rows["end"], times.last_compute()[place]) - rows["start"], 0))
