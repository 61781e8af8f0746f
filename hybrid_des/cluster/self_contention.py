"""Whether collectives of layers may be replayed: a static analysis of the links that they and all other traffic use.

A replayed collective takes as long as it would alone. That is exact if its members start and end together, share no
link, and no other traffic uses a link of their routes at the same time, which either of two arguments can prove:

    apart       nothing else uses the links of the axis, and all other traffic treats the members of a group alike
    in step     pipeline messages treat all ranks of a pipeline rank alike, so these do the same at the same time, one
                thing after the other; no traffic of another pipeline rank uses the links of the axis

The first covers tensor ranks that have a node to themselves, the second those that share it with replicas whose
gradients are reduced after the pipeline. Otherwise `TensorTraffic.delay` estimates how much longer a step may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hybrid_des.cluster.connections import Connection, links_of
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.symmetry import isomorphic, nonisomorphic
from hybrid_des.layout import Layout

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class AllFlows:
    """All messages that ranks send, as flows.

    Attributes:
        layout: the ranks.
        layers: axis → the flows of each group of ranks along it that share layers.
        pipeline: the flows between stages.
        gradients: the flows of replica groups, parameter gathers included; None if not known.
        overlapped: whether gradients or parameters are sent while the pipeline runs.
        pairs: axes whose collectives send between any two members.
    """

    layout: Layout
    layers: Mapping[str, Sequence[Sequence[Connection]]]
    pipeline: Sequence[Connection]
    gradients: Sequence[Connection] | None
    overlapped: bool
    pairs: Collection[str]


def self_contending(fabric: Fabric, traffic: AllFlows) -> set[str]:
    """The axes with groups whose own rings share some link, where the order of requests decides their duration."""
    return {
        axis
        for axis, each in traffic.layers.items()
        for flows in each
        if axis not in traffic.pairs and not _disjoint(links_of(fabric, [flow]) for flow in flows)
    }


def replay_safe_axes(fabric: Fabric, traffic: AllFlows) -> set[str]:
    """The axes whose collectives are proven to take as long in a run as alone."""
    used = {axis: [links_of(fabric, flows) for flows in each] for axis, each in traffic.layers.items()}
    shared = traffic.layout.shared  # one duration holds for all groups that are connected alike
    axes = {axis for axis in used if len(nonisomorphic(fabric, shared[axis])) == 1 and _disjoint(used[axis])}
    if axes == set(used) and all(_in_step(fabric, traffic, axis, used) for axis in used):
        return axes
    return {axis for axis in axes if _apart(fabric, traffic, axis, used)}


def _disjoint(sets: Iterable[set[str]]) -> bool:
    """Whether no link is in two sets."""
    seen: set[str] = set()
    for links in sets:
        if not seen.isdisjoint(links):
            return False
        seen |= links
    return True


def _apart(fabric: Fabric, traffic: AllFlows, axis: str, used: Mapping[str, Sequence[set[str]]]) -> bool:
    others = [*traffic.pipeline, *(traffic.gradients or ())]
    others += [flow for other, each in traffic.layers.items() if other != axis for flows in each for flow in flows]
    if traffic.gradients is None or not set().union(*used[axis]).isdisjoint(links_of(fabric, others)):
        return False
    return _members_alike(fabric, traffic, axis, others)


def simultaneous(fabric: Fabric, traffic: AllFlows, axis: str) -> bool:
    """Whether messages between stages and of gradients reach all members of a group at the same time."""
    return traffic.gradients is not None and _members_alike(
        fabric, traffic, axis, [*traffic.pipeline, *traffic.gradients]
    )


def _members_alike(fabric: Fabric, traffic: AllFlows, axis: str, flows: Sequence[Connection]) -> bool:
    first = {rank: ranks[0] for ranks in traffic.layout.shared[axis] for rank in ranks}
    images = {flow: flow._replace(sender=first[flow.sender], receiver=first[flow.receiver]) for flow in flows}
    return all(image.sender != image.receiver for image in images.values()) and isomorphic(fabric, images)


def _in_step(fabric: Fabric, traffic: AllFlows, axis: str, used: Mapping[str, Sequence[set[str]]]) -> bool:
    if traffic.overlapped or traffic.gradients is None:
        return False
    layout, stride = traffic.layout, traffic.layout.strides["pipeline"]
    pipeline_rank = [layout.coordinate(rank, "pipeline") for rank in range(layout.ranks)]
    mine = {
        link: pipeline_rank[ranks[0]]
        for ranks, links in zip(traffic.layout.shared[axis], used[axis], strict=True)
        for link in links
    }
    if not links_of(fabric, traffic.pipeline).isdisjoint(mine):
        return False
    others = [*traffic.gradients, *(flow for each in traffic.layers.values() for flows in each for flow in flows)]
    for sender, receiver in {(flow.sender, flow.receiver) for flow in others}:  # once for all stages that they hold
        at = {pipeline_rank[sender], pipeline_rank[receiver]}
        if any({mine[link]} != at for link in fabric.route(sender, receiver).links if link in mine):
            return False
    images = {
        flow: flow._replace(sender=pipeline_rank[flow.sender] * stride, receiver=pipeline_rank[flow.receiver] * stride)
        for flow in traffic.pipeline
    }
    return isomorphic(fabric, images)
