"""Equivalent plans: the same ops, costs, messages and collectives on the same GPUs.

With one pipeline rank many schedules coincide; with one replica neither sharding nor buckets have an effect.
"""

import hashlib
from collections.abc import Iterator

from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import Parts
from hybrid_des.scenario import Scenario
from hybrid_des.workload.costs import StageCosts

_FIELDS = ("forward", "backward", "weight", "message", "kept", "parameters", "weight_share", "experts")


def twin_of(scenario: Scenario, parts: Parts) -> str:
    """A hash that is equal for plans whose simulations are the same."""
    found = hashlib.sha256()
    for line in _lines(scenario, parts):
        found.update(line.encode())
        found.update(b"\n")
    return found.hexdigest()


def _lines(scenario: Scenario, parts: Parts) -> Iterator[str]:
    """Everything that a simulation reads."""
    lowering, costs = parts.lowering, parts.costs
    yield from _orders(parts.plan)
    yield repr((scenario.parallel.layout.strides, scenario.parallel.layout.sizes, scenario.steps, scenario.barrier))
    yield repr((scenario.schedule.microbatch_size, lowering.blocking, repr(scenario.cluster)))
    yield repr((costs.resident, costs.optimizer, scenario.efficiency and scenario.efficiency.network))
    for place, stage in costs.stages.items():
        yield f"{place}: {_figures(stage)}"
        if lowering.layered is not None:
            yield from map(_figures, stage.layers)
    if lowering.layered is not None:
        yield repr((scenario.sharding, lowering.layered.ahead, lowering.layered.beside, lowering.layered.slowing))
    yield repr(scenario.faults)
    yield repr((scenario.slow, scenario.jitter, scenario.seed, scenario.workload and scenario.workload.durations))
    if lowering.axes:
        yield repr(sorted(lowering.axes))
        yield from (repr(layer.collectives) for stage in costs.stages.values() for layer in stage.layers)
    if parts.reductions.processes or lowering.layered is not None:
        yield repr((scenario.gradients.codec, scenario.gradients.options, scenario.parallel.expert))
    if parts.reductions.processes:
        yield repr((parts.reductions.algorithm, lowering.overlap, lowering.sharded, lowering.ahead))
        for processes, group in parts.reductions.processes:
            yield repr((processes.stage, processes.part, tuple(processes.ranks), group.buckets))


def _orders(plan: Plan) -> Iterator[str]:
    yield repr((plan.paths, plan.path_of, plan.fused_time))
    for program in plan.programs:
        yield " ".join("+".join(f"{kind}{m}.{chunk}" for kind, m, chunk in action) for action in program)


def _figures(stage: StageCosts) -> str:
    return repr([getattr(stage, name) for name in _FIELDS])
