"""What a model adds to a summary: FLOP, their share of the peak, throughput, communication and memory by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.bill import samples_per_step
from hybrid_des.analysis.step_times import StepTimes, total
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.purposes import ACTIVATION, OF_LAYERS, PARAMETERS, PURPOSES
from hybrid_des.cluster.rate import idle_time
from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.cost_model.stages import visits
from hybrid_des.planning.program_table import Column
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.memory import memory_parts
from hybrid_des.simulation.outcome import Run, fullest
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.models.layer import Model
from hybrid_des.workload.models.operations import Attention, Operation


def plain_number(value: Fraction) -> int | float:
    """An integer as an int, so that JSON shows 2 instead of 2.0."""
    return int(value) if value.denominator == 1 else float(value)


# What a model adds: FLOP, their share of the peak, throughput, communication and memory by part.
#
#     model FLOP       3 × the forward of all samples: the backward takes twice as many; no recomputation. Of frozen
#                      weights there is no gradient, which takes as many as their forward
#     hardware FLOP    the same, plus the part of the forward that `recompute` repeats
#     MFU, HFU         model or hardware FLOP / (step time · GPUs · dense peak of the precision)
#
# 2 FLOP per multiply-add of a product; none for look-ups and memory-bound operations. Causal flash attention counts the
# half of the scores that it computes. MFU: Chowdhery et al., arXiv 2204.02311, appendix B; HFU: Korthikanti et al.,
# arXiv 2205.05198, section 6.2.
AXES = ("tensor", "context", "expert")


def model_figures(
    run: Run,
    times: StepTimes,
    step_time: float,
    idle: Mapping[str, float],
    reduced: Mapping[str, Mapping[str, float]],
    inside: Mapping[str, float],
) -> dict[str, Any]:
    """The keys of the summary that a model adds.

    Args:
        run: a run of a scenario with a model.
        times: its times.
        step_time: seconds per step.
        idle: idle seconds per rank and step by cause.
        inside: seconds per rank and step by axis that ops wait for collectives inside them.
        reduced: exposed and hidden seconds of gradients and, where they are sharded, of parameters.
    """
    scenario = run.scenario
    assert scenario.model is not None
    model, done = scenario.model.network, _done_in(scenario)
    flop, hardware = flop_of(run)
    peak = step_time * scenario.parallel.ranks * peak_of(scenario)
    rate, tokens = (amount / step_time if step_time else 0.0 for amount in (done.samples, done.tokens))
    return {
        "model_parameters": model.parameters,
        "flop_per_step": flop,
        "hardware_flop_per_step": hardware,
        "mfu": flop / peak if peak else 0.0,
        "hfu": hardware / peak if peak else 0.0,
        **_throughput("samples", rate, scenario.parallel.ranks),
        **(_throughput("tokens", tokens, scenario.parallel.ranks) if model.sample == "sequence" else {}),
        "communication_s": {
            **_inside_ops(run, inside),
            "pipeline": {"exposed": idle[ACTIVATION.cause], "hidden": _hidden_messages(run, times)},
            **{what: dict(seconds) for what, seconds in {**reduced, **_copied(idle, reduced)}.items()},
        },
        **_imbalance(run),
        **_tensor_traffic(run),
        "memory_parts_bytes": _memory_parts(run),
    }


def _copied(idle: Mapping[str, float], reduced: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Exposed seconds of copies of experts, and of experts that move, where no parameters are gathered."""
    waited = idle.get(PARAMETERS.cause)
    return {PARAMETERS.name: {"exposed": waited, "hidden": 0.0}} if waited and PARAMETERS.name not in reduced else {}


def flop_of(run: Run) -> tuple[int, int]:
    """FLOP of a step of a model, and those that the hardware does, which `recompute` adds to."""
    assert run.scenario.model is not None
    done = _done_in(run.scenario)
    flop = 3 * done.flop - done.skipped
    return flop, flop + int(done.recomputed * _repeated(run, run.scenario.model.network))


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


class StepWork(NamedTuple):
    """What a step does, on average: samples (with `data`, documents), tokens, and FLOP of the forward.

    Of these FLOP, `recomputed` are repeated, and `skipped` are those of gradients that frozen weights do not have.
    """

    samples: float
    tokens: float
    flop: int
    recomputed: int
    skipped: int


def _done_in(scenario: Scenario) -> StepWork:
    """What a step of a scenario does; padding counts for nothing."""
    assert scenario.model is not None
    model = scenario.model.network
    again, packed = recomputed(model, scenario.recompute), packed_steps(scenario)
    if scenario.operators.loss_again:
        plain = [layer for layer in model.layers if not (layer.is_block and scenario.recompute == "full")]
        again += [one for layer in plain for one in layer.operations if one.name == "logits"]
    if packed is None:
        samples = samples_per_step(scenario)
        each, less = (
            int(model.tokens * sum((one.flop for one in some), Fraction(0))) for some in (again, model.skipped)
        )
        return StepWork(samples, samples * model.tokens, samples * model.flop, samples * each, samples * less)
    steps, all_of = len(packed.steps), [one for layer in model.layers for one in layer.operations]
    documents = Counter(length for step in packed.steps for length in step.lengths)
    of_all = [model.flop_of(some, documents) // steps for some in (all_of, again, model.skipped)]
    return StepWork(sum(len(step.lengths) for step in packed.steps) / steps, packed.tokens / steps, *of_all)


def recomputed(model: Model, recompute: str | tuple[str, ...]) -> list[Operation]:
    """The operations whose forward the backward repeats."""
    blocks = [layer for layer in model.layers if layer.is_block]
    if isinstance(recompute, tuple):
        named = [
            (layer, {name for module in layer.modules if module.name in recompute for name in module.operations})
            for layer in blocks
        ]
        return [one for layer, names in named for one in layer.operations if one.name in names]
    kinds = {"none": (), "selective": (Attention,), "full": (object,)}[recompute]
    return [one for layer in blocks for one in layer.operations if isinstance(one, kinds)]


def _throughput(what: str, rate: float, gpus: int) -> dict[str, float]:
    return {f"{what}_per_s": rate, f"{what}_per_gpu_s": rate / gpus}


def _inside_ops(run: Run, inside: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Seconds per step and rank of collectives inside ops: exposed, and hidden, as costed or recorded."""
    hidden = Counter[str]()
    every = run.costs_of_steps
    for visit in (visit for costs in every for visit in visits(run.plan, costs)):
        for traffic in visit.costs.traffic:
            hidden[traffic.axis] += visit.times * traffic.hidden
    ranks = dict.fromkeys(AXES, run.timeline.programs.pipeline * _counted(run) * len(every))
    rows = run.timeline.exchanges
    for axis in run.traffic.recorded:
        mine = rows["purpose"] == PURPOSES.index(OF_LAYERS[axis])
        hidden[axis] = total(rows["free"][mine] - rows["start"][mine])
        ranks[axis] = len(run.ranks) * run.scenario.steps
    return {
        axis: {"exposed": inside[axis], "hidden": hidden[axis] / (ranks[axis] * PICOSECONDS_PER_SECOND)}
        for axis in AXES
    }


def _counted(run: Run) -> int:
    """The number of lanes and steps whose forwards are counted one by one."""
    lanes = run.costs.lanes
    return 1 if lanes is None else lanes.count * lanes.steps


def _imbalance(run: Run) -> dict[str, float]:
    """Seconds per step and rank that unequally wanted experts cost, mean over ranks; nothing where all are equal."""
    experts, every = run.scenario.experts, run.costs_of_steps
    if not (experts.sources or experts.capacity_factor is not None):
        return {}
    whole = sum(visit.times * visit.costs.imbalance for costs in every for visit in visits(run.plan, costs))
    ranks = run.timeline.programs.pipeline * _counted(run) * len(every)
    return {"expert_imbalance_s": whole / (ranks * PICOSECONDS_PER_SECOND)}


def _tensor_traffic(run: Run) -> dict[str, Any]:
    """How collectives inside ops were simulated, the bytes of each axis, and the delay that other traffic could add."""
    traffic, steps = run.traffic, run.scenario.steps
    bytes_of = {axis: getattr(run, f"bytes_{axis}") for axis in AXES}  # also of lanes that share documents for a while
    used = [axis for axis in AXES if axis in traffic.messages or axis in traffic.replayed or bytes_of[axis]]
    if not used:
        return {}
    return {
        **{f"bytes_{axis}": plain_number(Fraction(bytes_of[axis], steps)) for axis in used},
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
    worst = fullest(run)
    return memory_parts(run.costs, layout.coordinate(worst.rank, "pipeline"), worst.held, layout.lane(worst.rank))
