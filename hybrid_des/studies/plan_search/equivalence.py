"""Equivalent plans: the same ops, costs, messages and collectives on the same GPUs.

With one pipeline rank many schedules coincide; with one replica neither sharding nor buckets have an effect.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import Block, Program
from hybrid_des.scenario.definition import LABELS, Scenario

# sections that a simulation reads through its parts alone
PLANNED = {*CostBasis._fields, "schedule", "gradients", "batch", "tensor_traffic"} - {"cluster"}


def fingerprint(scenario: Scenario, parts: Parts, programs: Sequence[Program]) -> str:
    """A hash that is equal for plans whose simulations are the same: equal programs in equal surroundings."""
    read = (*_surroundings(scenario, parts), *_programs(programs))
    return hashlib.sha256("\n".join(map(repr, read)).encode()).hexdigest()


def _programs(programs: Sequence[Program]) -> Iterator[object]:
    """The calls of every stream, with the number of the block of each, and all blocks."""
    numbers: dict[Block, int] = {}
    texts: dict[str, int] = {}
    every = (one for program in programs for one in program.distinct)
    for stream, calls in (item for program in every for item in program.streams.items()):
        for block in {call.block: None for call in calls if call.block not in numbers}:
            numbers[block] = texts.setdefault(repr(block), len(texts))
        yield stream, [(numbers[call.block], call.number, *chain(*call.ops)) for call in calls]
    yield list(texts)


def _surroundings(scenario: Scenario, parts: Parts) -> Iterator[object]:
    """Everything else that a simulation reads."""
    layout, gradients, traffic = scenario.parallel.layout, scenario.gradients, parts.traffic
    yield [(name, section) for name, section in scenario if name not in PLANNED | LABELS]
    yield layout.strides, layout.sizes, scenario.schedule.microbatch_size, parts.costs, parts.slowdown
    yield scenario.link_shares
    yield parts.meeting, parts.replayed, sorted(traffic.messages), sorted(traffic.streams)
    if parts.durations is not None:
        yield scenario.workload
    if scenario.numerics is not None or gradients.every > 1:
        yield gradients
    if parts.reductions.processes or parts.meeting is not None:
        yield gradients.codec, gradients.options, scenario.parallel.expert, scenario.parallel.of_expert
    if parts.reductions.processes:
        yield parts.reductions.algorithm
        for processes, group in parts.reductions.processes:
            yield processes.stage, processes.part, tuple(processes.ranks), group.buckets
