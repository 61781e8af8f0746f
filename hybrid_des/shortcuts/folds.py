"""Which folds of a scenario's replicas are exact, as far as can be told before its messages are sent.

Replicas are folded on each other if the images of every node are one node, of the same kind, and if every collective
looks the same to all images of its members. Routes are checked as flows open, and orders as messages meet: a fold that
looks exact may turn out not to be while it is simulated; then others are tried.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import Any, TypeVar

import numpy as np

from hybrid_des.cluster.self_contention import Groups
from hybrid_des.collectives.token_exchange import TokenExchange
from hybrid_des.cost_model.collective_times import ELEMENT
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.folding.images import RankArray, check_images, check_nodes
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import Fold, FoldedAxis, folds_along, folds_by_digits
from hybrid_des.layout import Layout
from hybrid_des.planning.given import GivenPrograms
from hybrid_des.planning.gradients import Reductions
from hybrid_des.planning.planner import Parts
from hybrid_des.scenario import sizes
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.communicators import layer_group
from hybrid_des.simulation.speeds import DurationOverride
from hybrid_des.units import grouped_by

MOST_TRIES = 4  # folds that are simulated and turn out not to be exact
Outcome = TypeVar("Outcome")
INNER = ("tensor", "context")  # axes of ranks that share layers


@dataclass(frozen=True)
class Replicas:
    """The replicas of a scenario, whose behaviour a fold must preserve.

    Attributes:
        scenario, parts: what is simulated.
        retime: other durations of ops.
        fold_from: the number of ranks from which `fold: auto` folds.
    """

    scenario: Scenario
    parts: Parts
    retime: DurationOverride | None = None
    fold_from: int = sizes.FOLDED_FROM

    @property
    def differ(self) -> str:
        """Why replicas differ or vary at random; empty if they do not."""
        scenario, parts = self.scenario, self.parts
        sharing, programs = scenario.cluster.service, parts.programs
        reasons = {
            "with `numerics` every replica trains on its own samples": parts.training,
            "with `data` every replica has its own documents": parts.costs.lanes is not None,
            "with `workload.durations` every replica has its own durations": parts.durations is not None,
            "programs that are given may depend on their rank": (
                isinstance(programs, GivenPrograms) and len(programs.programs) > 1
            ),
            "copies of experts, or experts that move, differ from rank to rank": parts.copied,
            "with `jitter` every rank has its own durations": scenario.jitter,
            f"the order of waiting under `sharing: {sharing}` is not known": sharing
            not in ("fifo", "fair", "uncontended"),
            "`background` shares links with some replicas only": scenario.background,
        }
        reasons |= {f"{one.target[0]} {one.target[1]} is slow": one.target[0] != "stage" for one in scenario.slow}
        return next((reason for reason, holds in reasons.items() if holds), "")

    @cached_property
    def alike(self) -> RankArray | None:
        """A number per rank, the same for ranks whose changed durations are equal; None if none are changed."""
        if self.retime is None:
            return None
        numbers: dict[object, int] = {}
        keys = map(self.retime.alike, range(self.scenario.parallel.ranks))
        return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64)


def folds_of(replicas: Replicas, reasons: list[str]) -> Iterator[Fold]:
    """The folds that look exact, fewest replicas first; the reasons why others do not are appended to `reasons`.

    For each number of replicas, folds that also fold ranks sharing layers are first.

    Raises:
        FoldRefusal: the scenario asks for a fold that is not exact.
    """
    asked, parallel = replicas.scenario.fold, replicas.scenario.parallel
    if asked == "off" or (asked == "auto" and parallel.ranks < replicas.fold_from):
        return
    kept = [asked] if isinstance(asked, int) else [k for k in range(1, parallel.data) if parallel.data % k == 0]
    tried = 0
    for keep in kept:
        fold = None
        if tried == MOST_TRIES:
            break
        try:
            fold = _first(replicas, keep)
        except FoldRefusal as refusal:
            if isinstance(asked, int):
                raise FoldRefusal(f"fold: {keep}: {refusal}") from None
            reasons.append(str(refusal))
        if fold is not None:
            tried += 1
            if asked == "auto":
                yield from _inner_folds(replicas, fold.folded_axes)
            yield fold
    if asked == "auto" and not replicas.differ:
        yield from _inner_folds(replicas, ())


def folds_of_job(replicas: Replicas) -> Iterator[Fold]:
    """All folds that look exact, whatever the scenario asks for, fewest replicas first."""
    parallel = replicas.scenario.parallel
    for keep in (keep for keep in range(1, parallel.data) if parallel.data % keep == 0):
        for fold in _folds_that_keep(parallel.layout, keep, replicas):
            with suppress(FoldRefusal):
                check(fold, replicas)
                yield from _inner_folds(replicas, fold.folded_axes)
                yield fold
    yield from _inner_folds(replicas, ())


def _inner_folds(replicas: Replicas, folded_axes: Sequence[FoldedAxis]) -> Iterator[Fold]:
    """Folds that also fold tensor and context ranks, if their collectives are replayed and all behave alike."""
    layout = replicas.scenario.parallel.layout
    if replicas.parts.traffic.messages or replicas.parts.meeting is not None:
        return
    keeps = [
        [k for k in range(1, layout.sizes.get(axis, 1) + 1) if layout.sizes.get(axis, 1) % k == 0] for axis in INNER
    ]
    tried = 0
    for kept in sorted(product(*keeps), key=prod)[:-1]:
        inner = [FoldedAxis(axis, k) for axis, k in zip(INNER, kept, strict=True) if k < layout.sizes.get(axis, 1)]
        fold = Fold(layout, [*folded_axes, *inner])
        with suppress(FoldRefusal):
            check(fold, replicas)
            tried += 1
            yield fold
        if tried == MOST_TRIES:
            return


def _first(replicas: Replicas, keep: int) -> Fold | None:
    """The exact fold that keeps `keep` replicas; None if that is all of them."""
    layout, every = replicas.scenario.parallel.layout, replicas.scenario.parallel.data
    if every % keep:
        raise FoldRefusal(f"{every} replicas are not a multiple of {keep}")
    if keep == every:
        return None
    if reason := replicas.differ:
        raise FoldRefusal(reason)
    refusals = []
    for fold in _folds_that_keep(layout, keep, replicas):
        try:
            check(fold, replicas)
        except FoldRefusal as refusal:
            refusals.append(str(refusal))  # not itself: its frames hold an array entry per rank
        else:
            return fold
    raise FoldRefusal(refusals[0])


def _folds_that_keep(layout: Layout, keep: int, replicas: Replicas) -> Iterator[Fold]:
    """The folds that keep `keep` replicas, exact or not."""
    by_digits = (folds_by_digits(layout, "data", keep, blocks) for blocks in _blocks(replicas))
    return chain(folds_along(layout, "data", keep), *by_digits)


def _blocks(replicas: Replicas) -> list[set[int]]:
    """The numbers of neighbouring replicas on one node, or that share experts, or both, in groups that learn apart."""
    scenario, nodes = replicas.scenario, replicas.parts.fabric.node_of
    layout, apart = scenario.parallel.layout, scenario.parallel.data // scenario.outer_groups
    line = layout.line(0, "data")
    on_node = next((place for place, rank in enumerate(line) if nodes[rank] != nodes[0]), len(line))
    sharing = layout.expert // layout.sizes.get("context", 1)
    each = [{on_node}] if sharing in (1, on_node) else [{on_node}, {sharing}, {on_node, sharing}]
    return [blocks | {apart} for blocks in each]  # without effect if all learn together


def check(fold: Fold, replicas: Replicas) -> None:
    """Check placement and collectives.

    Raises:
        FoldRefusal: they differ between ranks that would be folded on each other.
    """
    nodes = _nodes(replicas.scenario, fold.layout.ranks)
    _check_placement(fold, replicas.scenario, nodes)
    if (alike := replicas.alike) is not None:  # the durations of ops are changed
        for rank in np.flatnonzero(alike != alike[fold.representatives])[:1].tolist():
            raise FoldRefusal(f"ops of rank {rank} take other times than those of rank {fold.representatives[rank]}")
    _check_reductions(fold, replicas.parts, nodes)
    of_traces = {(group.processes.stage, group.processes.part, group.processes.ranks[0]): group.processes
                 for group in replicas.parts.given}  # fmt: skip
    for given in (group for group in replicas.parts.given if not group.replayed):
        buffers = [given.buffer(call) for call in given.calls]
        check_images(fold, [(given.processes, buffers)], given.options, nodes=nodes, groups=of_traces)
    for axis, groups in replicas.parts.traffic.messages.items():
        _check_exchanges(fold, replicas, nodes, axis, groups)
    for ranks in (ranks for groups in replicas.parts.meeting or () for ranks in groups):
        if any(fold.simulated(rank) for rank in ranks):
            members = set(ranks)
            if any(fold.representative(rank)[0] not in members for rank in ranks):
                raise FoldRefusal(f"the group of rank {ranks[0]} that shares layers maps to another group")


def _check_reductions(fold: Fold, parts: Parts, nodes: RankArray) -> None:
    """Every group must do the same as its images; looked at once for all runs of the same parts."""
    known: dict[Any, str] = parts.remembered.setdefault("folds", {})
    asked = tuple(fold.folded_axes), nodes.tobytes()
    if asked not in known:
        known[asked] = _difference(fold, parts.reductions, nodes)
    if known[asked]:
        raise FoldRefusal(known[asked])


def _difference(fold: Fold, reductions: Reductions, nodes: RankArray) -> str:
    """How a group differs from its images, in words; empty if none does.

    The images of a group reduce the same part of the same stage. Stages whose groups have the same members, channels
    and sizes of buckets are alike, as most of a pipeline rank's are: one of them is looked at.
    """
    alike = set[tuple[Any, ...]]()
    try:
        for of_stage in grouped_by(reductions.processes, lambda made: (made[1].stage, made[1].part)).values():
            by_first = {(group.stage, group.part, group.ranks[0]): processes for processes, group in of_stage}
            shared = {id(group.buckets): group for _, group in of_stage}  # by identity: comparing thousands takes long
            buffers = {buckets: reductions.buffers_of(group) for buckets, group in shared.items()}
            sizes = {buckets: tuple(buffer.elements for buffer in of_size) for buckets, of_size in buffers.items()}
            looks = tuple((id(processes.ranks), id(processes.channels), id(processes.tuned), sizes[id(group.buckets)])
                          for processes, group in of_stage)  # fmt: skip
            if looks in alike:
                continue
            alike.add(looks)
            every = [(processes, buffers[id(group.buckets)]) for processes, group in of_stage]
            check_images(fold, every, reductions.options, nodes=nodes, groups=by_first)  # images of others may turn
    except FoldRefusal as refusal:
        return str(refusal)
    return ""


def _nodes(scenario: Scenario, ranks: int) -> RankArray:
    """The node of each rank."""
    cluster = scenario.cluster
    sizes = np.concatenate([np.full(kind.count, kind.gpus_per_node) for kind in cluster.kinds])
    of_gpus = np.repeat(np.arange(len(sizes)), sizes)
    in_order = cluster.placement == range(cluster.gpus)
    return of_gpus[:ranks] if in_order else of_gpus[list(cluster.placement[:ranks])]


def _check_placement(fold: Fold, scenario: Scenario, nodes: RankArray) -> None:
    """RankArray on one node must map to one node, of the same kind."""
    kinds = _kinds(scenario)[nodes]
    ranks, on_node = np.arange(len(nodes)), np.bincount(nodes)[nodes]  # of each rank's node
    for element in fold.generators:
        check_nodes(fold, nodes, element)
        images = fold.move(ranks, element)
        for rank in np.flatnonzero((kinds[images] != kinds) | (on_node[images] != on_node))[:1].tolist():
            raise FoldRefusal(_unlike(scenario, rank, int(images[rank])))


def _kinds(scenario: Scenario) -> RankArray:
    """The index of each node's kind; kinds that differ only in their number of nodes count as one."""
    kinds = [kind.model_copy(update={"count": 1}) for kind in scenario.cluster.kinds]
    return np.repeat([kinds.index(kind) for kind in kinds], [kind.count for kind in scenario.cluster.kinds])


def _unlike(scenario: Scenario, rank: int, other: int) -> str:
    """The difference between the nodes of two ranks."""
    node, another = scenario.cluster.nodes_of((rank, other))
    if node.speed != another.speed:
        return f"rank {rank} runs at {float(node.speed):g} times the speed, rank {other} at {float(another.speed):g}"
    return f"the nodes of ranks {rank} and {other} differ in their GPUs, their links, or their number of ranks"


def _check_exchanges(fold: Fold, replicas: Replicas, nodes: RankArray, axis: str, groups: Groups) -> None:
    """The image of a group whose layers exchange messages must be one of these groups, in the same order.

    The members may be rotated if all of them are on one node and every one does the same there, wherever it sits.
    """
    served = layer_group(replicas.parts, axis, groups[0]).servers
    whole, evenly = {tuple(ranks) for ranks in groups}, False
    starts = {ranks[0]: tuple(ranks) for ranks in groups}
    for ranks in groups:
        for element in fold.generators:
            moved = tuple(fold.move(rank, element) for rank in ranks)
            if moved in whole:
                continue
            first = moved.index(min(moved))
            rotated = moved[first:] + moved[:first]
            if starts.get(rotated[0]) != rotated or len(set(nodes[list(ranks)].tolist())) > 1:
                raise FoldRefusal(f"the {axis} ranks of rank {ranks[0]} map to several groups")
            if served:
                raise FoldRefusal(f"the {axis} ranks of rank {ranks[0]} rotate around the switch that reduces for them")
            evenly = evenly or _exchange_evenly(replicas, axis, len(ranks))
            if not evenly:
                raise FoldRefusal(f"the {axis} ranks of rank {ranks[0]} send different amounts")


def _exchange_evenly(replicas: Replicas, axis: str, members: int) -> bool:
    """Whether all layers along an axis exchange equal parts between all members, each with the next one first."""
    exchanges = [
        one
        for costs in {id(costs): costs for costs in (replicas.parts.costs, *replicas.parts.further)}.values()
        for stage in costs.stages.values()
        for layer in stage.layers
        for way in layer.collectives
        for one in way
        if one.axis == axis
    ]
    return all(_evenly(one, members) for one in exchanges)


def _evenly(layer_collective: LayerCollective, members: int) -> bool:
    """Whether a collective on one node sends as much from each member to each other."""
    if layer_collective.algorithm in ("all-to-all", "nccl-all-to-all"):
        return layer_collective.size % (ELEMENT * members) == 0
    if layer_collective.algorithm in ("per-node-dispatch", "per-node-combine") and isinstance(
        layer_collective.how, TokenExchange
    ):
        routing = layer_collective.how.routing
        return len({routing.hit(routing.held(place, members)) for place in range(members)}) == 1
    return False
