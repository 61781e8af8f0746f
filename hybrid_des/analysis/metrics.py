"""What a run amounts to: step time, bubble, and where every idle picosecond of every rank went.

A rank's step, from left to right, with the name of each gap:

    begin ·····  F  ··  B  ···· last compute ▒▒▒▒▒▒ reduced  optimizer  end ········ the slowest rank's end
          (dependency,               (gradient_reduction)                 (end_of_step)
           pipeline_message)

Everything is summed in whole picoseconds and becomes seconds at the end, so busy and idle add up to the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybrid_des.pipeline.plan import Plan
    from hybrid_des.simulation.run import Run

CAUSES = ("dependency", "pipeline_message", "gradient_reduction", "end_of_step")
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Times:
    """The times of a run in picoseconds, laid out for whole-array work: replica × step × something.

    Attributes:
        asked, start, end: replica × step × op, the ops of pipeline rank 0 first, each in its program's order.
        begin, sent, reduced, done: replica × step × pipeline rank; when a rank began the step, was free after its last
            op, had its gradients reduced, and was through.
        optimizer: picoseconds of optimizer time of all ranks and steps.
        rank_of_op: the pipeline rank of each op.
        first, last: for each pipeline rank with a program, where its ops begin and end on the op axis.
    """

    asked: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    begin: NDArray[np.int64]
    sent: NDArray[np.int64]
    reduced: NDArray[np.int64]
    done: NDArray[np.int64]
    optimizer: int
    rank_of_op: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @property
    def total(self) -> int:
        """The whole run, from the first rank's first step to the last rank's last action."""
        return int(self.done.max()) - int(self.begin.min())


def summary(run: Run) -> dict[str, Any]:
    """Everything about a run that is one number, or one a pipeline rank, with the names of the contract.

    Times are seconds and sizes bytes, per step and averaged over steps. Nothing is NaN or infinite: a ratio over
    zero time is 0.
    """
    scenario = run.scenario
    times = arrange(run)
    replicas, steps, pipeline = times.begin.shape
    ranks, simulated = scenario.parallel.ranks, replicas * pipeline
    parts = account(run, times)
    compute = _total(times.end - times.start)
    step_time = _seconds(times.total, steps)
    pipeline_time = _mean_longest(times.end.max(axis=2) - times.start.min(axis=2))
    seconds = _add_up(step_time, {name: _seconds(value, simulated * steps) for name, value in parts.items()})
    busy = seconds.pop("busy")
    share = Fraction(parts["busy"], simulated * times.total) if times.total else Fraction(0)
    exposed = parts["pipeline_message"] + parts["gradient_reduction"]
    return {
        "version": scenario.version,
        "name": scenario.name,
        "ranks": ranks,
        "ranks_simulated": simulated,
        "step_time_s": step_time,
        "pipeline_time_s": _seconds(pipeline_time, 1),
        "span_s": _seconds(_mean_longest(_spans(times)), 1),
        "bubble_ratio": _ratio(simulated * pipeline_time - Fraction(compute, steps), simulated * pipeline_time),
        "busy_s": busy,
        "idle_s": seconds,
        "exposed_communication_ratio": _ratio(exposed, simulated * times.total),
        "gradient_communication_s": {
            "exposed": seconds["gradient_reduction"],
            "hidden": _seconds(_hidden(run, times), simulated * steps),
        },
        "algorithm": run.algorithm,
        "speedup": float(share * ranks),
        "efficiency": float(share),
        "microbatches_per_s": run.plan.microbatches * replicas / step_time if step_time else 0,
        "messages": _per_step(run.messages, steps),
        "bytes_pipeline": _per_step(run.bytes_pipeline, steps),
        "bytes_gradients": _per_step(run.bytes_gradients, steps),
        "bytes_scales": _per_step(run.bytes_scales, steps),
        **_memory(run),
        **(run.numerics or {}),
        "wall_s": run.wall_s,
        "events": run.events,
    }


def arrange(run: Run) -> Times:
    """Lay out a run's rows as arrays, replica × step × op and replica × step × pipeline rank."""
    replica, pipeline_rank = places(run)
    ops, steps = run.trace.ops.table(), run.trace.steps.table()
    sizes = np.array([len(program) for program in run.plan.programs], dtype=np.int64)
    lasts = np.cumsum(sizes)
    rank, step = steps["rank"], steps["step"]
    order = np.lexsort((pipeline_rank[rank], step, replica[rank]))
    shape = (int(replica[rank].max()) + 1, int(step.max()) + 1, run.plan.pipeline)
    begin, sent, reduced, done = (steps[name][order].reshape(shape) for name in ("begin", "sent", "reduced", "end"))
    optimizer = ops["index"] == OPTIMIZER
    rows = np.flatnonzero(~optimizer)
    rank = ops["rank"][rows]
    order = rows[np.lexsort((ops["index"][rows], pipeline_rank[rank], ops["step"][rows], replica[rank]))]
    asked, start, end = (ops[name][order].reshape(*shape[:2], int(lasts[-1])) for name in ("asked", "start", "end"))
    return Times(
        asked,
        start,
        end,
        begin,
        sent,
        reduced,
        done,
        optimizer=_total((ops["end"] - ops["start"])[optimizer]),
        rank_of_op=np.repeat(np.arange(run.plan.pipeline), sizes),
        first=(lasts - sizes)[sizes > 0],
        last=lasts[sizes > 0] - 1,
    )


def account(run: Run, times: Times) -> dict[str, int]:
    """Split all ranks' time into busy and the causes of idling, in picoseconds that add up to ranks × total.

    The gap before an op lasts until its latest producer on another rank is done (`dependency`) and then until the
    message is there (`pipeline_message`). Where a rank is held up by its own sends, that is `pipeline_message` too.
    """
    replicas, _, pipeline = times.begin.shape
    previous = np.empty_like(times.end)
    previous[..., 1:] = times.end[..., :-1]
    holders = times.rank_of_op[times.first]
    previous[..., times.first] = times.begin[..., holders]
    ready = _producers_done(run.plan, times)
    gap = times.start - times.asked
    dependency = np.clip(ready, times.asked, times.start) - times.asked
    last = _last_compute(times)
    parts = {
        "busy": _total(times.end - times.start) + times.optimizer,
        "dependency": _total(dependency),
        "pipeline_message": _total(gap - dependency) + _total(times.asked - previous) + _total(times.sent - last),
        "gradient_reduction": _total(times.reduced - times.sent),
    }
    parts["end_of_step"] = replicas * pipeline * times.total - sum(parts.values())
    return parts


def _last_compute(times: Times) -> NDArray[np.int64]:
    """When each rank's last op of a step ended, replica × step × pipeline rank; its begin where it has none."""
    last = times.begin.copy()
    last[..., times.rank_of_op[times.first]] = times.end[..., times.last]
    return last


def _hidden(run: Run, times: Times) -> int:
    """Picoseconds, over all ranks and steps, in which a rank reduced gradients and had compute left to do."""
    rows = run.trace.reductions.table()
    replica, pipeline_rank = (place[rows["rank"]] for place in places(run))
    last = _last_compute(times)[replica, rows["step"], pipeline_rank]
    return _total(np.maximum(np.minimum(rows["end"], last) - rows["start"], 0))


def places(run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The replica and the pipeline rank of every global rank; −1 for those beyond, who only serve."""
    layout = run.scenario.parallel.layout
    beyond = max((channel.sender + 1 - layout.ranks for channel in run.trace.channels), default=0)
    replica, pipeline_rank = (
        np.pad(layout.along(axis), (0, max(beyond, 0)), constant_values=-1) for axis in ("data", "pipeline")
    )
    return replica, pipeline_rank


def _producers_done(plan: Plan, times: Times) -> NDArray[np.int64]:
    """For each op, when its last remote producer finished; `NEVER` if it has none."""
    edges = plan.edges
    consumer, producer = edges.consumer[edges.remote], edges.producer[edges.remote]
    done = np.full_like(times.end, NEVER)
    ops, starts = np.unique(consumer, return_index=True)
    if len(ops):
        done[..., ops] = np.maximum.reduceat(times.end[..., producer], starts, axis=-1)
    return done


def _spans(times: Times) -> NDArray[np.int64]:
    """Each rank's own first compute start to last compute end in each step: (replica × rank) × step."""
    spans = times.end[..., times.last] - times.start[..., times.first]
    return np.moveaxis(spans, 2, 1).reshape(-1, spans.shape[1])


def _mean_longest(spans: NDArray[np.int64]) -> Fraction:
    """The longest of each step, averaged over steps; `spans` is something × step."""
    longest = spans.max(axis=0).tolist()
    return Fraction(sum(longest), len(longest))


def _memory(run: Run) -> dict[str, Any]:
    """Peaks of each pipeline rank, the worst replica's, and whether any passes the GPU's memory."""
    _, pipeline_rank = places(run)
    activations: list[Fraction] = [Fraction(0)] * run.plan.pipeline
    held = [0] * run.plan.pipeline
    for place, most, size in zip(pipeline_rank.tolist(), run.peak_activations, run.peak_memory, strict=False):
        activations[place] = max(activations[place], Fraction(most))
        held[place] = max(held[place], size)
    return {
        "peak_activations": [_plain(value) for value in activations],
        "peak_memory_bytes": held,
        "out_of_memory": any(
            size > node.gpu.memory for size, node in zip(run.peak_memory, run.scenario.cluster.each_gpu(), strict=False)
        ),
    }


def _add_up(whole: float, parts: dict[str, float]) -> dict[str, float]:
    """Put seconds on the grid of the whole's last digit, where sums below the whole are exact in any order.

    The largest cause of idling takes what is left; where causes are too small to take it unseen, busy does.
    """
    digit = math.ulp(whole)
    largest = max(CAUSES, key=parts.__getitem__)
    taker = largest if parts[largest] > whole / 1000 else "busy"
    others = {name: round(value / digit) * digit for name, value in parts.items() if name != taker}
    return {**parts, **others, taker: whole - sum(others.values())}


def _total(times: NDArray[np.int64]) -> int:
    """Add up exactly: one step's sums fit in 64 bits, those of a long run on many ranks need not."""
    return sum(np.atleast_1d(times.sum(axis=-1)).ravel().tolist())


def _seconds(picoseconds: int | Fraction, count: int) -> float:
    return float(Fraction(picoseconds) / (count * PICOSECONDS_PER_SECOND))


def _ratio(part: int | Fraction, whole: int | Fraction) -> float:
    return float(Fraction(part) / Fraction(whole)) if whole else 0.0


def _per_step(value: int, steps: int) -> int | float:
    return _plain(Fraction(value, steps))


def _plain(value: Fraction) -> int | float:
    """A whole number as an int, so that JSON says 2 and not 2.0."""
    return int(value) if value.denominator == 1 else float(value)
