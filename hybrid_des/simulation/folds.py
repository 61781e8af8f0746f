"""Which folds of a scenario's replicas are exact, as far as can be told before its messages are sent.

Replicas are folded on each other if the images of every node are one node, of the same kind, and if every collective
looks the same to all images of its members. Routes are checked as flows open, and orders as messages meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import prod

import numpy as np

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import Refusal
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.folded_transport import FoldedTransport, LineageTransport
from hybrid_des.folding.images import Ranks, array_of, check_images
from hybrid_des.folding.orbits import Fold, FoldedAxis
from hybrid_des.gradients.groups import ReplicaGroup
from hybrid_des.scenario import Scenario, folded
from hybrid_des.scenario.sizes import too_large
from hybrid_des.simulation.memory import nodes_of
from hybrid_des.simulation.planner import Parts

MOST_TRIES = 4  # folds that turn out to be wrong while they are simulated
INNER = ("tensor", "context")  # axes of ranks that share layers


def folds_of(scenario: Scenario, parts: Parts, reasons: list[str]) -> Iterator[Fold]:
    """The folds that look exact, those with the fewest replicas first; why others do not is added to `reasons`.

    Of each, those come first that also fold ranks which share layers.

    Raises:
        FoldRefusal: the scenario asks for a fold that is not exact.
    """
    asked, replicas = scenario.fold, scenario.parallel.data
    if asked == "off" or (asked == "auto" and scenario.parallel.ranks < folded.FROM):
        return
    sizes = [asked] if isinstance(asked, int) else [k for k in range(1, replicas) if replicas % k == 0]
    tried = 0
    for keep in sizes:
        found = None
        if tried == MOST_TRIES:
            break
        try:
            found = _first(scenario, parts, keep)
        except FoldRefusal as refusal:
            if isinstance(asked, int):
                raise FoldRefusal(f"fold: {keep}: {refusal}") from None
            reasons.append(str(refusal))
        if found is not None:
            tried += 1
            if asked == "auto":
                yield from _narrower(scenario, parts, found.turns)
            yield found
    if asked == "auto" and not _perturbed(scenario, parts):
        yield from _narrower(scenario, parts, ())


def _narrower(scenario: Scenario, parts: Parts, turns: Sequence[FoldedAxis]) -> Iterator[Fold]:
    """A fold with tensor and context ranks folded too, where their collectives are replayed and all do the same."""
    layout, traffic = scenario.parallel.layout, parts.traffic
    if traffic.messages or parts.lowering.layered:
        return
    keeps = [
        [k for k in range(1, layout.sizes.get(axis, 1) + 1) if layout.sizes.get(axis, 1) % k == 0] for axis in INNER
    ]
    tried = 0
    for kept in sorted(product(*keeps), key=prod)[:-1]:
        inner = [FoldedAxis(axis, k) for axis, k in zip(INNER, kept, strict=True) if k < layout.sizes.get(axis, 1)]
        fold = Fold(layout, [*turns, *inner])
        with suppress(FoldRefusal):
            check(fold, scenario, parts)
            tried += 1
            yield fold
        if tried == MOST_TRIES:
            return


def refused(scenario: Scenario, fold: Fold, refusal: FoldRefusal, reasons: list[str]) -> None:
    """Note why a fold turned out not to be exact; of ranks that share layers, others will be tried.

    Raises:
        FoldRefusal: the scenario asks for it.
    """
    if any(turn.axis in INNER for turn in fold.turns):
        return
    if isinstance(scenario.fold, int):
        raise FoldRefusal(f"fold: {scenario.fold}: {refusal}") from None
    reasons.append(str(refusal))


def check_size(scenario: Scenario, fold: Fold | None, reasons: Sequence[str]) -> None:
    """Check that a run is not too large, which a scenario that may be folded has been allowed to be.

    Raises:
        Refusal: it is, with the reason why it was not folded, or not more.
    """
    kept = scenario.parallel.data if fold is None else fold.kept("data")
    if found := too_large(scenario, kept):
        raise Refusal("; ".join([found, *(f"replicas differ: {reason}" for reason in reasons[-1:])]))


def folded_transport(scenario: Scenario, parts: Parts, fold: Fold, recorder: Recorder) -> FoldedTransport:
    """The network of a folded run; orders are traced where something depends on them.

    Under `fair` nothing does: messages that meet share a link, whoever came first.
    """
    sharing, receipts = scenario.cluster.sharing, parts.lowering.blocking
    if sharing == "fair" and parts.lowering.layered is None:
        return FoldedTransport(Environment(), parts.fabric, sharing, recorder, receipts, fold=fold)
    return LineageTransport(LineageEnvironment(fold), parts.fabric, sharing, recorder, receipts, fold=fold)


def _first(scenario: Scenario, parts: Parts, keep: int) -> Fold | None:
    """The exact fold that keeps so many replicas; None if that is all of them."""
    layout, replicas = scenario.parallel.layout, scenario.parallel.data
    if replicas % keep:
        raise FoldRefusal(f"{replicas} replicas are not a multiple of it")
    if keep == replicas:
        return None
    if found := _perturbed(scenario, parts):
        raise FoldRefusal(found)
    powers = not (keep & (keep - 1) or replicas & (replicas - 1))
    refusals = []
    for swap in (False, True)[: 1 + powers]:
        fold = Fold(layout, [FoldedAxis("data", keep, swap)])
        try:
            check(fold, scenario, parts)
        except FoldRefusal as refusal:
            refusals.append(refusal)
        else:
            return fold
    raise refusals[0]


def _perturbed(scenario: Scenario, parts: Parts) -> str:
    """What of a scenario is different, or random, on every replica."""
    if parts.training:
        return "with `numerics` every replica trains on samples of its own"
    if scenario.jitter:
        return "with `jitter` every rank has durations of its own"
    if parts.durations is not None:
        return "with `workload.durations` every replica has durations of its own"
    if scenario.cluster.sharing not in ("fifo", "fair"):
        return f"who waits for whom under `sharing: {scenario.cluster.sharing}` is not known"
    for one in scenario.slow:
        kind, value = one.target
        if kind != "stage":
            return f"{kind} {value} is slow"
    return ""


def check(fold: Fold, scenario: Scenario, parts: Parts) -> None:
    """Check placement and collectives.

    Raises:
        FoldRefusal: they tell ranks apart that would be folded on each other.
    """
    nodes = _nodes(scenario, fold.layout.ranks)
    _check_placement(fold, scenario, nodes)
    reductions = parts.reductions
    by_first = {(group.stage, group.part, group.ranks[0]): group.ranks for _, group in reductions.processes}
    for processes, group in reductions.processes:
        if _simulated(fold, group):
            buffers = reductions.buffers_of(group)
            check_images(fold, processes, buffers, reductions.options, nodes=nodes, groups=by_first)
    for axis, groups in parts.traffic.messages.items():
        _check_exchanges(fold, axis, groups)
    layered = parts.lowering.layered
    for ranks in (ranks for groups in layered.traffic.groups for ranks in groups) if layered else ():
        if any(fold.simulated(rank) for rank in ranks):
            members = set(ranks)
            if any(fold.home(rank)[0] not in members for rank in ranks):
                raise FoldRefusal(f"the group of rank {ranks[0]} that shares layers goes to another group")


def _nodes(scenario: Scenario, ranks: int) -> Ranks:
    """The node of each rank."""
    sizes = np.concatenate([np.full(kind.count, kind.gpus_per_node) for kind in scenario.cluster.kinds])
    return np.repeat(np.arange(len(sizes)), sizes)[:ranks]


def _check_placement(fold: Fold, scenario: Scenario, nodes: Ranks) -> None:
    """Ranks on one node must go to one node, and to one of the same kind."""
    kinds = _kinds(scenario)[nodes]
    ranks = np.arange(len(nodes))
    first, on_node = np.searchsorted(nodes, nodes), np.bincount(nodes)[nodes]  # of each rank's node
    for element in fold.generators:
        images = fold.move(ranks, element)
        for rank in np.flatnonzero(nodes[images] != nodes[images[first]])[:1].tolist():
            here, there = int(first[rank]), int(images[first[rank]])
            raise FoldRefusal(f"ranks {here} and {rank} share a node, their images {there} and {images[rank]} do not")
        for rank in np.flatnonzero((kinds[images] != kinds) | (on_node[images] != on_node))[:1].tolist():
            raise FoldRefusal(_unlike(scenario, rank, int(images[rank])))


def _kinds(scenario: Scenario) -> Ranks:
    """For each node, which kind it is; two that differ in their number of nodes only are one."""
    kinds = [kind.model_copy(update={"count": 1}) for kind in scenario.cluster.kinds]
    return np.repeat([kinds.index(kind) for kind in kinds], [kind.count for kind in scenario.cluster.kinds])


def _unlike(scenario: Scenario, rank: int, other: int) -> str:
    """What tells the nodes of two ranks apart."""
    node, another = nodes_of(scenario.cluster, (rank, other))
    if node.speed != another.speed:
        return f"rank {rank} runs at {float(node.speed):g} times the speed, rank {other} at {float(another.speed):g}"
    return f"the nodes of ranks {rank} and {other} differ in their GPUs, their links, or how many ranks they have"


def _simulated(fold: Fold, group: ReplicaGroup) -> bool:
    """Whether some of a group are simulated."""
    ranks = group.ranks
    return any(map(fold.simulated, (ranks[0], ranks[-1]))) or bool(fold.simulated_of(array_of(ranks)).any())


def _check_exchanges(fold: Fold, axis: str, groups: Sequence[Sequence[int]]) -> None:
    """The image of a group whose layers exchange messages must be such a group, in the same order."""
    whole = {tuple(ranks) for ranks in groups}
    for ranks in groups:
        for element in fold.generators:
            if fold.simulated(ranks[0]) and tuple(fold.move(rank, element) for rank in ranks) not in whole:
                raise FoldRefusal(f"the {axis} ranks of rank {ranks[0]} go to several groups")
