"""What a model adds to a summary: FLOP, their share of the peak, throughput, communication and memory by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from hybrid_des.analysis.step_times import StepTimes, total
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.purposes import ACTIVATION, OF_LAYERS, PURPOSES
from hybrid_des.cluster.rate import idle_time
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.memory import memory_parts, worst_peak
from hybrid_des.simulation.run import Run
from hybrid_des.simulation.timeline import FORWARDS, Column
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.models.layer import Attention, Model


def plain_number(value: Fraction) -> int | float:
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
    for position, times in _forwards(run).items():
        for traffic in run.costs.stages[position].traffic:
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
        **{f"bytes_{axis}": plain_number(Fraction(getattr(run, f"bytes_{axis}"), steps)) for axis in used},
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
