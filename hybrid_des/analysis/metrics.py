"""The summary of a run: step time, bubble, idle time by cause, traffic and memory.

Sums are exact, in whole picoseconds, and converted to seconds at the end, so that busy and idle sum to the step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.experience import experience, facts
from hybrid_des.analysis.idle import EXPOSED, account, hidden_gathers, hidden_reduction, inside_waits
from hybrid_des.analysis.table import empty_table, table
from hybrid_des.analysis.times import StepTimes, step_times, total
from hybrid_des.folding.symmetry import expanded
from hybrid_des.models import Attention, Model
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.mailbox import ACTIVATION, OF_LAYERS, PARAMETERS, PURPOSES, REDUCTION
from hybrid_des.network.rate import idle_time
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.memory import memory_parts, worst_peak
from hybrid_des.simulation.run import Run
from hybrid_des.timeline import FORWARDS, Column, Columns, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd


_COUNTERS = tuple(dict.fromkeys(purpose.counter for purpose in PURPOSES if purpose.usual))


class Findings:
    """A run and its derived tables, each computed on first use; the input of reports and files.

    Attributes:
        run: the rows and totals of the simulation.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The summary, by its public keys; seconds and bytes."""
        return summary(self.run)

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


def summary(run: Run) -> dict[str, Any]:
    """The summary of a run by its public keys: values that are one number, or one per pipeline rank.

    Times are seconds and sizes bytes, averaged per step. All values are finite: ratios to zero time are 0.
    """
    scenario, timeline = run.scenario, run.timeline
    times = step_times(timeline)
    replicas, steps, pipeline = times.begin.shape
    ranks, simulated = scenario.parallel.ranks, replicas * pipeline
    parts = account(timeline, times)
    step_time = _seconds(times.total, steps)
    seconds = _consistent(step_time, {name: _seconds(value, simulated * steps) for name, value in parts.items()})
    busy, reduced = seconds.pop("busy"), _communication(timeline, times, seconds, simulated * steps)
    counters = (*_COUNTERS, PARAMETERS.counter) if "parameters" in reduced else _COUNTERS
    share = Fraction(parts["busy"], simulated * times.total) if times.total else Fraction(0)
    exposed = sum(parts.get(cause, 0) for cause in EXPOSED)
    return {
        "version": scenario.version,
        "name": scenario.name,
        "ranks": ranks,
        "ranks_simulated": simulated,
        "step_time_s": step_time,
        **_pipeline(times, timeline.waits),
        "busy_s": busy,
        "idle_s": seconds,
        "exposed_communication_ratio": _ratio(exposed, simulated * times.total),
        **{f"{name.removesuffix('s')}_communication_s": each for name, each in reduced.items()},
        **({} if run.slowed is None else {"slowed_s": _seconds(run.slowed, simulated * steps)}),
        "algorithm": run.algorithm,
        "channels": run.channels,
        **({"choices": dict(run.choices)} if run.choices else {}),
        "speedup": float(share * ranks),
        "efficiency": float(share),
        "microbatches_per_s": timeline.programs.microbatches * scenario.parallel.data / step_time if step_time else 0,
        **{key: _plain(Fraction(getattr(run, key), steps)) for key in ("messages", *counters, "bytes_scales")},
        **({"bytes_switched": _plain(Fraction(run.bytes_switched, steps))} if run.bytes_switched else {}),
        **_memory(run),
        **(model_figures(run, times, step_time, seconds, reduced) if scenario.model else {}),
        **({"experience": facts(found, step_time)} if (found := experience(scenario)) else {}),
        **(run.numerics or {}),
        **({} if run.outer is None else {"outer": run.outer.facts()}),
        "wall_s": run.wall_s,
        "events": run.events,
    }


def _communication(
    timeline: Timeline, times: StepTimes, idle: dict[str, float], count: int
) -> dict[str, dict[str, float]]:
    """Exposed and hidden seconds of gradients and, if they are gathered, parameters; `idle` learns of the latter."""
    found = {
        "gradients": {"exposed": idle[REDUCTION.cause], "hidden": _seconds(hidden_reduction(timeline, times), count)}
    }
    if len(timeline.gathers["rank"]):
        exposed = idle.setdefault(PARAMETERS.cause, 0.0)
        found["parameters"] = {"exposed": exposed, "hidden": _seconds(hidden_gathers(timeline), count)}
    return found


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
        place = timeline.layout.coordinate(rank, "pipeline")
        activations[place] = max(activations[place], Fraction(most))
        held[place] = max(held[place], size)
    return {
        "peak_activations": [_plain(value) for value in activations],
        "peak_memory_bytes": held,
        "out_of_memory": not worst_peak(run.ranks, run.peak_memory, run.scenario.cluster.gpus_of(run.ranks)).fits,
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


def _plain(value: Fraction) -> int | float:
    """An integer as an int, so that JSON shows 2 instead of 2.0."""
    return int(value) if value.denominator == 1 else float(value)


# What a model adds: FLOP, their share of the peak, throughput, communication and memory by part.
#
#     model FLOP       3 × the forward of all samples: the backward takes twice as many; no recomputation
#     hardware FLOP    the same, plus the part of the forward that `recompute` repeats
#     MFU, HFU         model or hardware FLOP / (step time · GPUs · dense peak of the precision)
#
# 2 FLOP per multiply-add of a product; none for look-ups and memory-bound operations. Causal flash attention counts the
# half of the scores that it computes. MFU: Chowdhery et al., arXiv 2204.02311, appendix B; HFU: Korthikanti et al.,
# arXiv 2205.05198, section 6.2.


AXES = ("tensor", "context", "expert")


def model_figures(
    run: Run, times: StepTimes, step_time: float, idle: Mapping[str, float], reduced: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """The keys of the summary that a model adds.

    Args:
        run: a run of a scenario with a model.
        times: its times.
        step_time: seconds per step.
        idle: idle seconds per rank and step by cause.
        reduced: exposed and hidden seconds of gradients and, where they are sharded, of parameters.
    """
    scenario = run.scenario
    assert scenario.model is not None
    model, schedule = scenario.model.network, scenario.schedule
    samples = schedule.microbatches * schedule.microbatch_size * scenario.parallel.data
    flop = 3 * samples * model.flop
    hardware = flop + samples * int(recomputed_flop(model, scenario.recompute) * _repeated(run, model))
    peak = step_time * scenario.parallel.ranks * peak_of(scenario)
    rate = samples / step_time if step_time else 0.0
    return {
        "model_parameters": model.parameters,
        "flop_per_step": flop,
        "hardware_flop_per_step": hardware,
        "mfu": flop / peak if peak else 0.0,
        "hfu": hardware / peak if peak else 0.0,
        **_throughput("samples", rate, scenario.parallel.ranks),
        **(_throughput("tokens", rate * model.tokens, scenario.parallel.ranks) if model.sample == "sequence" else {}),
        "communication_s": {
            **_inside_ops(run),
            "pipeline": {"exposed": idle[ACTIVATION.cause], "hidden": _hidden_messages(run, times)},
            **{what: dict(seconds) for what, seconds in reduced.items()},
        },
        **_imbalance(run),
        **_tensor_traffic(run),
        "memory_parts_bytes": _memory_parts(run),
    }


def _repeated(run: Run, model: Model) -> Fraction:
    """The share of blocks that `recompute` applies to."""
    if run.scenario.recompute_layers is None:
        return Fraction(1)
    layers = [layer for stage in run.costs.stages.values() for layer in stage.layers]
    blocks = Fraction(sum(layer.is_block for layer in model.layers), len(model.layers))
    return sum(layer.again > 0 for layer in layers) / (blocks * len(layers))


def peak_of(scenario: Scenario) -> float:
    """Dense FLOP/s of a GPU in the scenario's precision."""
    return scenario.cluster.kinds[0].gpu.peak_in(scenario.precision)


def recomputed_flop(model: Model, recompute: str | tuple[str, ...]) -> int:
    """FLOP per sample of the forward that the backward repeats."""
    blocks = [layer for layer in model.layers if layer.is_block]
    if isinstance(recompute, tuple):
        named = [
            (layer, {name for module in layer.modules if module.name in recompute for name in module.operations})
            for layer in blocks
        ]
        again = [one.flop for layer, names in named for one in layer.operations if one.name in names]
    else:
        kinds = {"none": (), "selective": (Attention,), "full": (object,)}[recompute]
        again = [one.flop for layer in blocks for one in layer.operations if isinstance(one, kinds)]
    return int(model.tokens * sum(again, Fraction(0)))


def _throughput(what: str, rate: float, gpus: int) -> dict[str, float]:
    return {f"{what}_per_s": rate, f"{what}_per_gpu_s": rate / gpus}


def _inside_ops(run: Run) -> dict[str, dict[str, float]]:
    """Seconds per step and rank of the collectives that ops wait for, mean over ranks: as replayed, or as recorded."""
    exposed, hidden = Counter[str](), Counter[str]()
    for place, times in _forwards(run).items():
        for traffic in run.costs.stages[place].traffic:
            exposed[traffic.axis] += times * traffic.exposed
            hidden[traffic.axis] += times * traffic.hidden
    ranks = dict.fromkeys(AXES, run.timeline.programs.pipeline)
    rows = run.timeline.exchanges
    for axis in {*run.traffic.messages, *run.traffic.streams}:
        mine = rows["purpose"] == PURPOSES.index(OF_LAYERS[axis])
        exposed[axis] = total(rows["end"][mine] - rows["free"][mine])
        hidden[axis] = total(rows["free"][mine] - rows["start"][mine])
        ranks[axis] = len(run.ranks) * run.scenario.steps
    return {
        axis: {
            "exposed": exposed[axis] / (ranks[axis] * PICOSECONDS_PER_SECOND),
            "hidden": hidden[axis] / (ranks[axis] * PICOSECONDS_PER_SECOND),
        }
        for axis in AXES
    }


def _forwards(run: Run) -> Counter[tuple[int, int]]:
    """How many forwards there are of each chunk of each pipeline rank."""
    ops = run.timeline.programs.ops
    mine = np.isin(ops["kind"], FORWARDS)
    return Counter(zip(ops["rank"][mine].tolist(), ops["chunk"][mine].tolist(), strict=True))


def _imbalance(run: Run) -> dict[str, float]:
    """Seconds per step and rank that unequally wanted experts cost, mean over ranks; nothing where all are equal."""
    experts = run.scenario.experts
    if not (experts.loads or experts.concentration):
        return {}
    whole = sum(times * run.costs.stages[place].imbalance for place, times in _forwards(run).items())
    return {"expert_imbalance_s": whole / (run.timeline.programs.pipeline * PICOSECONDS_PER_SECOND)}


def _tensor_traffic(run: Run) -> dict[str, Any]:
    """How collectives inside ops were simulated, the bytes of each axis, and the delay that other traffic could add."""
    traffic, steps = run.traffic, run.scenario.steps
    used = [axis for axis in AXES if axis in traffic.messages or axis in traffic.replayed]
    if not used:
        return {}
    return {
        **{f"bytes_{axis}": _plain(Fraction(getattr(run, f"bytes_{axis}"), steps)) for axis in used},
        "tensor_traffic": {axis: "messages" if axis in traffic.messages else "replay" for axis in used},
        "tensor_traffic_delay_s": run.tensor_delay / PICOSECONDS_PER_SECOND,
    }


def _hidden_messages(run: Run, times: StepTimes) -> float:
    """Seconds per step and rank for which pipeline messages travel while their receiver computes."""
    if run.fabric is None:
        return 0.0
    replicas, steps, pipeline = times.begin.shape
    sent = run.timeline.programs.messages
    travel = times.asked[..., sent["consumer"]] - times.end[..., sent["producer"]]
    hidden = total(np.clip(travel, 0, _flights(run, run.fabric)))  # longer on shared links, if the receiver waits
    ranks: int = replicas * steps * pipeline
    return hidden / (ranks * PICOSECONDS_PER_SECOND)


def _flights(run: Run, fabric: Fabric) -> Column:
    """How long each message between ops takes on idle links, in picoseconds, in the first replica."""
    programs, layout = run.timeline.programs, run.scenario.parallel.layout
    sent, rank = programs.messages, programs.ops["rank"]
    each = np.stack([rank[sent["producer"]], rank[sent["consumer"]], sent["bytes"]])
    kinds, which = np.unique(each, axis=1, return_inverse=True)
    takes = [
        idle_time(fabric, layout.rank(pipeline=sender), layout.rank(pipeline=receiver), size)
        for sender, receiver, size in kinds.T.tolist()
    ]
    return np.array(takes, dtype=np.int64)[which.reshape(-1)]


def _memory_parts(run: Run) -> dict[str, int]:
    """Peak memory by part, of the rank that exceeds its memory most or has the least left."""
    layout = run.scenario.parallel.layout
    worst = worst_peak(run.ranks, run.peak_memory, run.scenario.cluster.gpus_of(run.ranks))
    return memory_parts(run.costs, layout.coordinate(worst.rank, "pipeline"), worst.held)
