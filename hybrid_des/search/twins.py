"""Equivalent plans: the same ops, costs, messages and collectives on the same GPUs.

With one pipeline rank many schedules coincide; with one replica neither sharding nor buckets have an effect.
"""

import hashlib
from collections.abc import Iterator

from hybrid_des.planning.planner import Parts
from hybrid_des.scenario import Scenario
from hybrid_des.workload.basis import CostBasis

# sections that a simulation reads through its parts alone, and those that it does not read
PLANNED = {*CostBasis._fields, "schedule", "gradients"} - {"cluster"}
UNREAD = {"name", "description", "batch", "fold", "record", "on_oom", "tensor_traffic"}


def twin_of(scenario: Scenario, parts: Parts) -> str:
    """A hash that is equal for plans whose simulations are the same."""
    return hashlib.sha256("\n".join(map(repr, _read(scenario, parts))).encode()).hexdigest()


def _read(scenario: Scenario, parts: Parts) -> Iterator[object]:
    """Everything that a simulation reads."""
    layout, lowering, plan = scenario.parallel.layout, parts.lowering, parts.plan
    yield [(name, section) for name, section in scenario if name not in PLANNED | UNREAD]
    yield (
        layout.strides,
        layout.sizes,
        scenario.schedule.microbatch_size,
        scenario.workload and scenario.workload.durations,
    )
    yield scenario.efficiency and scenario.efficiency.network
    yield (
        plan.paths,
        plan.path_of,
        plan.fused_time,
        plan.programs,
        parts.costs,
        lowering.blocking,
        sorted(lowering.axes),
    )
    if lowering.layered is not None:
        yield scenario.sharding, lowering.layered.ahead, lowering.layered.beside, lowering.layered.slowing
    if parts.reductions.processes or lowering.layered is not None:
        yield scenario.gradients.codec, scenario.gradients.options, scenario.parallel.expert
    if parts.reductions.processes:
        yield parts.reductions.algorithm, lowering.overlap, lowering.sharded, lowering.ahead
        for processes, group in parts.reductions.processes:
            yield processes.stage, processes.part, tuple(processes.ranks), group.buckets
