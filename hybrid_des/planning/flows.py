"""Everything that the ranks of a run send, as flows: layer collectives, stage-to-stage messages, and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, permutations
from typing import TYPE_CHECKING

from hybrid_des.network.contention import AllFlows
from hybrid_des.network.rings import channels
from hybrid_des.network.symmetry import Connection, around

if TYPE_CHECKING:
    from hybrid_des.gradients.groups import ReplicaGroup
    from hybrid_des.layout import Layout
    from hybrid_des.network.fabric import Fabric
    from hybrid_des.pipeline.plan import Plan
    from hybrid_des.scenario import Scenario

MOST_PAIRS = 64  # members of the largest group whose collective may use any pair of them


def flows_of(
    scenario: Scenario, plan: Plan, fabric: Fabric, layout: Layout, reduced: Sequence[ReplicaGroup]
) -> AllFlows:
    """Collect the flows.

    Args:
        scenario: how gradients are reduced, and whether collectives overlap with the pipeline.
        plan: the pairs of pipeline ranks that exchange messages.
        fabric: the wiring.
        layout: the ranks, those of the scenario or of fewer replicas.
        reduced: the replica groups.
    """
    ring, count = scenario.gradients.algorithm == "ring", scenario.gradients.channels
    together = scenario.barrier or scenario.steps == 1
    pairs = {"expert"} | ({"context"} if scenario.parallel.context_method == "all-to-all" else set())
    pipeline = list(_of_pipeline(plan, layout))
    known = ring or all(len(group.ranks) <= MOST_PAIRS for group in reduced)
    gradients: list[Connection] = []
    for group in reduced if known else ():
        what = f"gradients {group.stage} {group.part}"
        if ring:
            gradients += chain.from_iterable(around(one, what) for one in channels(fabric, group.ranks, count))
        else:
            gradients += [Connection(*pair, what) for pair in permutations(group.ranks, 2)]
    layers = {
        axis: [list(_of_group(fabric, axis, ranks, ring=axis not in pairs)) for ranks in each]
        for axis, each in layout.shared.items()
    }
    return AllFlows(
        layout,
        layers,
        pipeline=pipeline,
        gradients=gradients if known else None,
        beside=scenario.gradients.overlap or scenario.overlap.parameters or not together,
        pairs=pairs,
    )


def _of_pipeline(plan: Plan, layout: Layout) -> Iterator[Connection]:
    stride = layout.strides["pipeline"]
    steps = {(a, b) for path in plan.paths for (a, _), (b, _) in pairwise(path) if a != b}
    for start in (rank for rank in range(layout.ranks) if not layout.coordinate(rank, "pipeline")):
        for a, b in sorted(steps):
            yield Connection(start + a * stride, start + b * stride, "activation")
            yield Connection(start + b * stride, start + a * stride, "gradient")


def _of_group(fabric: Fabric, axis: str, ranks: Sequence[int], *, ring: bool) -> Iterator[Connection]:
    if not ring:
        yield from (Connection(*pair, axis) for pair in permutations(ranks, 2))
        return
    for number, members in enumerate(channels(fabric, ranks)):
        yield from around(members, f"{axis} {number}")
