"""Everything that the ranks of a run send, as flows: layer collectives, stage-to-stage messages, and gradients.

The routes of a sample of replicas may represent those of all, so that a hundred thousand need not be examined.
"""

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
from collections.abc import Iterator
from itertools import pairwise, permutations
from typing import TYPE_CHECKING

from hybrid_des.cluster.connections import Connection, around
from hybrid_des.cluster.rings import Ring, channels
from hybrid_des.collectives import codecs, nccl
from hybrid_des.collectives.buffer import Buffer, Channels
from hybrid_des.collectives.registration import Site
from hybrid_des.units import grouped_by

if TYPE_CHECKING:
    from hybrid_des.cluster.fabric import Fabric
    from hybrid_des.layout import Layout
    from hybrid_des.pipeline.plan import Plan
    from hybrid_des.planning.gradients import ReplicaGroup
    from hybrid_des.scenario.definition import Scenario


MOST_PAIRS = 64  # members of the largest group whose collective may use any pair of them


def flows_of(
    scenario: Scenario,
    plan: Plan,
    fabric: Fabric,
    layout: Layout,
    reduced: Sequence[ReplicaGroup],
    *,
    unequal: bool = False,
) -> AllFlows:
    """Collect the flows.

    Args:
        scenario: how gradients are reduced, and whether collectives overlap with the pipeline.
        plan: the pairs of pipeline ranks that exchange messages.
        fabric: the wiring.
        layout: the ranks, those of the scenario or of fewer replicas.
        reduced: the replica groups.
        unequal: whether replicas end at different times, so that gradients of some are sent while others compute.
    """
    ring, count = around_rings(scenario, fabric, reduced), scenario.gradients.channels
    together = scenario.barrier or scenario.steps == 1
    pipeline = list(_of_pipeline(plan, layout))
    known = ring or all(len(group.ranks) <= MOST_PAIRS for group in reduced)
    gradients: list[Connection] = []
    for group in _of_different_ranks(reduced) if known else ():
        what = f"gradients {group.stage} {group.part}"
        if ring:
            rings = channels(fabric, group.ranks, count, tuned=scenario.gradients.algorithm == "nccl")
            gradients += chain.from_iterable(around(one, what) for one in rings)
        else:
            gradients += [Connection(*pair, what) for pair in permutations(group.ranks, 2)]
    return AllFlows(
        layout,
        flows_of_layers(scenario, fabric, layout),
        pipeline=pipeline,
        gradients=gradients if known else None,
        overlapped=scenario.gradients.overlap or scenario.overlap.parameters or not together or unequal,
        pairs=_between_all(scenario, fabric),
    )


def _of_different_ranks(reduced: Sequence[ReplicaGroup]) -> Iterator[ReplicaGroup]:
    """The groups of parts of stages, of those that the same ranks reduce one: the flows of the others are the same."""
    by_part = grouped_by(reduced, lambda group: (group.stage, group.part))
    different = {tuple(tuple(group.ranks) for group in of_part): of_part for of_part in by_part.values()}
    return chain.from_iterable(different.values())


def flows_of_layers(scenario: Scenario, fabric: Fabric, layout: Layout) -> dict[str, list[list[Connection]]]:
    """Axis → the flows of each group of ranks that share layers along it."""
    once = scenario.experts.dispatcher == "per-node" and scenario.experts.channels is None
    pairs, of_library = _between_all(scenario, fabric), scenario.layer_collectives == "nccl"
    passed_on = of_library and scenario.parallel.context_method == "ring"
    counts = {"context": 1} if passed_on else {}  # by sends and receives, on no channels
    return {
        axis: [
            list(
                _of_exchange(fabric, axis, ranks)
                if axis == "expert" and once
                else (Connection(*pair, axis) for pair in permutations(ranks, 2))
                if axis in pairs
                else _of_rings(axis, channels(fabric, ranks, counts.get(axis), tuned=of_library))
            )
            for ranks in each
        ]
        for axis, each in layout.shared.items()
    }


def _between_all(scenario: Scenario, fabric: Fabric) -> set[str]:
    """The axes along which any two members of a group may send to each other: trees of all-reduces are not followed."""
    parallel, axes = scenario.parallel, {"expert"}
    if parallel.context_method == "all-to-all":
        axes.add("context")
    if scenario.layer_collectives == "nccl" and not parallel.sequence:
        tensor = parallel.layout.shared.get("tensor", ())
        if fabric.linked or any(map(fabric.apart, tensor)):
            axes.add("tensor")
    return axes


def around_rings(scenario: Scenario, fabric: Fabric, reduced: Sequence[ReplicaGroup]) -> bool:
    """Whether all gradients go around rings."""
    gradients = scenario.gradients
    if gradients.algorithm != "nccl" or scenario.sharding == "zero-1":
        return gradients.algorithm in ("ring", "nccl")
    codec = codecs.find(gradients.codec).build()
    buckets: dict[tuple[int, ...], set[int]] = {}  # of all stages that the same ranks reduce
    for group in reduced:
        buckets.setdefault(tuple(group.ranks), set()).update(bucket.elements for bucket in group.buckets)
    for ranks, sizes in buckets.items():
        wiring = nccl.tuned(Site(fabric, ranks, ()), Channels(channels=gradients.channels))
        each = (wiring.choice("all-reduce", Buffer(elements, codec).bytes) for elements in sizes)
        if any(choice.algorithm != "ring" for choice in each):
            return False
    return True


def _of_pipeline(plan: Plan, layout: Layout) -> Iterator[Connection]:
    stride = layout.strides["pipeline"]
    steps = {(a, b) for path in plan.paths for (a, _), (b, _) in pairwise(path) if a != b}
    for start in (rank for rank in range(layout.ranks) if not layout.coordinate(rank, "pipeline")):
        for a, b in sorted(steps):
            yield Connection(start + a * stride, start + b * stride, "activation")
            yield Connection(start + b * stride, start + a * stride, "gradient")


def _of_exchange(fabric: Fabric, axis: str, ranks: Sequence[int]) -> Iterator[Connection]:
    """The flows of exchanges once per node: within nodes, and between ranks at the same place of theirs."""
    nodes = list(grouped_by(ranks, fabric.node_of.__getitem__).values())
    if len(set(map(len, nodes))) > 1:
        yield from (Connection(*pair, axis) for pair in permutations(ranks, 2))
        return
    for together in (*nodes, *zip(*nodes, strict=True)):
        yield from (Connection(*pair, axis) for pair in permutations(together, 2))


def _of_rings(axis: str, rings: Sequence[Ring]) -> Iterator[Connection]:
    for number, members in enumerate(rings):
        yield from around(members, f"{axis} {number}")


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
