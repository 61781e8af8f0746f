"""A sample of replicas whose routes represent all of them, so that a hundred thousand need not be examined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from hybrid_des.cluster.connections import links_of
from hybrid_des.cluster.self_contention import AllFlows

if TYPE_CHECKING:
    from hybrid_des.cluster.fabric import Fabric
    from hybrid_des.layout import Layout
    from hybrid_des.pipeline.plan import Plan
    from hybrid_des.planning.gradients import ReplicaGroup
    from hybrid_des.scenario.definition import Scenario

from hybrid_des.planning.flows import around_rings, flows_of

PERIODS = 3  # so that the neighbours of a block in the ring are two different blocks


def representative_replicas(
    scenario: Scenario, plan: Plan, fabric: Fabric, reduced: Sequence[ReplicaGroup], *, unequal: bool = False
) -> AllFlows | None:
    """The flows of few replicas, which share links as those of all do; None if no such sample is known.

    If consecutive replicas fill equal, periodic blocks of GPUs and gradients go around rings in that order, every block
    sends to and receives from its neighbours like every other, so that three periods represent any number.
    """
    layout, blocks = scenario.parallel.layout, fabric.blocks
    replicas, stride = layout.sizes["data"], layout.strides["data"]
    in_order = scenario.parallel.context == 1 or layout.strides["context"] < stride
    around = len(plan.paths) == 1 and not scenario.parallel.layout.apart and around_rings(scenario, fabric, reduced)
    if blocks is None or not (in_order and around) or replicas * stride % blocks.size:
        return None
    period = next(k for k in range(1, replicas + 1) if replicas % k == 0 and k * stride % blocks.size == 0)
    if PERIODS * period >= replicas:
        return None
    few = replace(layout, sizes={**layout.sizes, "data": PERIODS * period})
    groups = [_among(few, layout, group) for group in reduced]
    traffic = flows_of(scenario, plan, fabric, few, groups, unequal=unequal)
    of_layers = (flow for each in traffic.layers.values() for flows in each for flow in flows)
    links = links_of(fabric, chain(traffic.pipeline, traffic.gradients or (), of_layers))
    return None if any(blocks.of(link) is None for link in links) else traffic


def _among(few: Layout, layout: Layout, group: ReplicaGroup) -> ReplicaGroup:
    """The group of the same stage among few replicas."""
    ranks = few.group(few.rank(**layout.coordinates(group.ranks[0])), "context", "data")
    return replace(group, ranks=ranks, chunks=group.chunks[: len(ranks)])
