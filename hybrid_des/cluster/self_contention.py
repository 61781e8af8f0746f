"""Whether collectives of layers may be replayed: a static analysis of the links that they and all other traffic use.

A replayed collective takes as long as it would alone. That is exact if its members start and end together, share no
link, and no other traffic uses a link of their routes at the same time, which either of two arguments can prove:

    apart       nothing else uses the links of the axis, and all other traffic treats the members of a group alike
    in step     pipeline messages treat all ranks of a pipeline rank alike, so these do the same at the same time, one
                thing after the other; no traffic of another pipeline rank uses the links of the axis

The first covers tensor ranks that have a node to themselves, the second those that share it with replicas whose
gradients are reduced after the pipeline. Otherwise `TensorTraffic.delay` estimates how much longer a step may be.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from hybrid_des.cluster.connections import Connection, links_of
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.symmetry import isomorphic, nonisomorphic_along
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
    # one duration holds for all groups that are connected alike
    alike = (axis for axis in used if len(nonisomorphic_along(fabric, traffic.layout, axis)) == 1)
    axes = {axis for axis in alike if _disjoint(used[axis])}
    if axes == set(used) and _all_in_step(fabric, traffic, used):
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
    of_others = [flows for other, each in traffic.layers.items() if other != axis for flows in each]
    others = [traffic.pipeline, *of_others, traffic.gradients or ()]  # the largest last: any of them may meet the axis
    if traffic.gradients is None or _meet(fabric, set().union(*used[axis]), chain.from_iterable(others)):
        return False
    return _members_alike(fabric, traffic, axis, [*chain.from_iterable(others)])


def _meet(fabric: Fabric, links: set[str], flows: Iterable[Connection]) -> bool:
    """Whether a flow takes one of these links; the rest of them is not followed."""
    return any(not links.isdisjoint(fabric.route(*ends).links) for ends in _ends(flows))


def _ends(flows: Iterable[Connection]) -> Iterator[tuple[int, int]]:
    """The sender and receiver of each flow, once for all that two GPUs have, such as those of several stages."""
    seen: set[tuple[int, int]] = set()
    for sender, receiver, _ in flows:
        ends = sender, receiver
        if ends not in seen:
            seen.add(ends)
            yield ends


def simultaneous(fabric: Fabric, traffic: AllFlows, axis: str) -> bool:
    """Whether messages between stages and of gradients reach all members of a group at the same time."""
    return traffic.gradients is not None and _members_alike(
        fabric, traffic, axis, [*traffic.pipeline, *traffic.gradients]
    )


def _members_alike(fabric: Fabric, traffic: AllFlows, axis: str, flows: Sequence[Connection]) -> bool:
    first = {rank: ranks[0] for ranks in traffic.layout.shared[axis] for rank in ranks}
    images = {flow: flow._replace(sender=first[flow.sender], receiver=first[flow.receiver]) for flow in flows}
    return all(image.sender != image.receiver for image in images.values()) and isomorphic(fabric, images)


def _all_in_step(fabric: Fabric, traffic: AllFlows, used: Mapping[str, Sequence[set[str]]]) -> bool:
    """Whether the members of the groups along all axes are in step."""
    if traffic.overlapped or traffic.gradients is None:
        return False
    of_pipeline = links_of(fabric, traffic.pipeline)
    if not all(of_pipeline.isdisjoint(links) for each in used.values() for links in each):
        return False
    return all(_in_step(fabric, traffic, axis, used[axis]) for axis in used)


def _in_step(fabric: Fabric, traffic: AllFlows, axis: str, used: Sequence[set[str]]) -> bool:
    """The same along one, none of whose links messages between stages use."""
    layout, stride = traffic.layout, traffic.layout.strides["pipeline"]
    pipeline_rank = [layout.coordinate(rank, "pipeline") for rank in range(layout.ranks)]
    mine = {
        link: pipeline_rank[ranks[0]]
        for ranks, links in zip(traffic.layout.shared[axis], used, strict=True)
        for link in links
    }
    of_layers = (flows for each in traffic.layers.values() for flows in each)
    for sender, receiver in _ends(chain(traffic.gradients or (), *of_layers)):
        at = {pipeline_rank[sender], pipeline_rank[receiver]}
        if any({mine[link]} != at for link in fabric.route(sender, receiver).links if link in mine):
            return False
    images = {
        flow: flow._replace(sender=pipeline_rank[flow.sender] * stride, receiver=pipeline_rank[flow.receiver] * stride)
        for flow in traffic.pipeline
    }
    return isomorphic(fabric, images)
