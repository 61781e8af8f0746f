"""All-reduces of engines whose tensor ranks are on several nodes: NCCL's, as messages on the links.

Within a node engines have kernels of their own, whose latency is in the formula of a decode step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.rl import Rollout, engine_gpus
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.models.amounts import ELEMENT


def tensor_nodes(scenario: Scenario, rollout: Rollout) -> int:
    """Nodes of the tensor ranks of a replica; the most, where replicas differ."""
    return _nodes(scenario, _widest(scenario, rollout))


def all_reduce_across_nodes(scenario: Scenario, rollout: Rollout) -> Callable[[int], float] | None:
    """Seconds of an all-reduce of so many bytes over a replica's tensor ranks; None if they are on one node.

    It has the links to itself: replicas on whole nodes share none. Where replicas differ, it is that of the one on the
    most nodes.
    """
    gpus = _widest(scenario, rollout)
    if _nodes(scenario, gpus) == 1:
        return None
    fabric = fabric_of(scenario.placed(range(scenario.cluster.gpus)))
    return cache(
        lambda size: collective_ps(fabric, "nccl", gpus, size, scenario.cluster.service) / PICOSECONDS_PER_SECOND
    )


def collective_ps(fabric: Fabric, name: str, gpus: Sequence[int], size: int, sharing: str) -> int:
    """Picoseconds of a collective on so many bytes of 16-bit elements, alone on the links."""
    codec, elements = codecs.find("fp16").build(), -(-size // ELEMENT)
    return measure(fabric, name, [gpus], lambda *_: Buffer(elements, codec), sharing=sharing).duration


def _widest(scenario: Scenario, rollout: Rollout) -> tuple[int, ...]:
    """GPUs of tensor ranks that are on the most nodes."""
    gpus, size = engine_gpus(rollout, scenario.cluster, scenario.parallel.ranks), rollout.tensor
    return max((gpus[first : first + size] for first in range(0, len(gpus), size)), key=partial(_nodes, scenario))


def _nodes(scenario: Scenario, gpus: Sequence[int]) -> int:
    node_of = scenario.cluster.spec.node_of
    return len({node_of[gpu] for gpu in gpus})
