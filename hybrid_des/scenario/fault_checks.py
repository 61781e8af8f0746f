"""Consistency checks of `faults`, in itself and with the machine; one check per function, on a whole `Scenario`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybrid_des.options import decimal
from hybrid_des.scenario.faults import LEAF, NEVER, OPTIMAL, Checkpoint, FailureClass, Faults
from hybrid_des.scenario.machine import NodeKind
from hybrid_des.scenario.problem import Problem
from hybrid_des.scenario.strict_yaml import KeyPath

FAULTS = "faults"
RATES = ("mtbf", "count", "weibull", "times")
WIDE = ("switch", "power")  # each serves several nodes
READ_BY = {"cost": ("sync",), "blocking": ("async", "memory"), "write": ("async", "memory"), "persist": ("memory",)}


def job_nodes(scenario: Any) -> list[NodeKind]:
    """The kind of each node that has ranks, in order."""
    nodes: list[NodeKind] = []
    left = scenario.parallel.ranks
    for kind in scenario.cluster.kinds:
        used = min(kind.count, -(-left // kind.gpus_per_node))
        nodes += [kind] * used
        left -= used * kind.gpus_per_node
    return nodes


def nodes_below(scenario: Any, one: FailureClass) -> int | None:
    """Number of nodes that a failure of a class takes down; None if unknown."""
    leaf = getattr(scenario.cluster.options, "leaf_size", None)
    domain = one.domain
    if domain is None:
        domain = 0 if one.what == "job" else leaf if one.what == "switch" else None if one.what == "power" else 1
    return {"none": 0, "node": 1, LEAF: leaf}[domain] if isinstance(domain, str) else domain


def misfits_of_faults(scenario: Any) -> Iterator[Problem]:
    """Contradictions within `faults`, and between it and the machine."""
    faults = scenario.faults
    if faults is None:
        return
    if not faults.classes:
        yield _at(("classes",), "is required: what fails, such as [{what: gpu, mtbf: 50000 h}]")
    yield from _names_differ(faults)
    for i, one in enumerate(faults.classes):
        for path, message in (*_one_rate(one), *_domain_known(scenario, one), *_effect_fits(one)):
            yield _at(("classes", i, *path), message, ("cluster",))
        if one.repair is not None and faults.spares is None:
            yield _at(("classes", i, "repair"), "is read with `spares` only", (FAULTS, "spares"))
    if faults.checkpoint is not None:
        yield from _mode_fits(faults.checkpoint)
        yield from _copies_survive(scenario, faults, faults.checkpoint)
    yield from _optimum_exists(faults)
    yield from _spares_fit(scenario, faults)
    yield from _elastic_fits(scenario, faults)


def _at(path: KeyPath, message: str, *others: KeyPath) -> Problem:
    here = (FAULTS, *path)
    return Problem(here, message, (here, *others))


def _names_differ(faults: Faults) -> Iterator[Problem]:
    names = faults.names
    for i, name in enumerate(names):
        if name in names[:i]:
            yield _at(("classes", i, "name"), f'"{name}" is the name of classes[{names.index(name)}] too')


def _one_rate(one: FailureClass) -> Iterator[tuple[KeyPath, str]]:
    given = [key for key in RATES if getattr(one, key) is not None]
    if not given:
        yield (), "a rate is required; expected one of mtbf, count and over, weibull, times"
    for key in given[1:]:
        yield (key,), f"replaces `{given[0]}`; give only one of the two"
    if one.count is not None and one.over is None:
        yield ("over",), "is required by `count`: failures in what time"
    if one.over is not None and one.count is None:
        yield ("over",), "is read with `count` only"


def _domain_known(scenario: Any, one: FailureClass) -> Iterator[tuple[KeyPath, str]]:
    if one.domain == LEAF and nodes_below(scenario, one) is None:
        yield (
            ("domain",),
            "leaf: this topology has no leaves; expected a number of nodes",
        )
    elif nodes_below(scenario, one) is None:
        yield ("domain",), f"is required: the number of nodes below a {one.what}"
    if one.what == "job" and nodes_below(scenario, one):
        yield ("domain",), "a failure of the job takes down no nodes; expected none"
    if one.what in WIDE and one.domain == "none":
        yield ("domain",), f"none: expected the number of nodes below a {one.what}, or what: job"


def _effect_fits(one: FailureClass) -> Iterator[tuple[KeyPath, str]]:
    effect = one.effect
    if effect is None:
        return
    if (effect.flap is None) == (effect.slow is None):
        yield ("effect",), "expected stop, {flap: 20 s} or {slow: 0.5, lasts: 3 h}"
    elif (effect.slow is None) != (effect.lasts is None):
        known = "slow" if effect.lasts is None else "lasts"
        yield ("effect",), f"`{known}` needs `{'lasts' if known == 'slow' else 'slow'}` too"
    elif effect.slow is not None and one.what not in ("gpu", "node", "nic", "link"):
        yield ("effect", "slow"), f"slows a gpu, node, nic or link, not a {one.what}"
    elif effect.slow is not None and effect.slow >= 1:
        yield ("effect", "slow"), f"must be less than 1, a share of its speed, not {decimal(effect.slow)}"


def _mode_fits(checkpoint: Checkpoint) -> Iterator[Problem]:
    if checkpoint.every == NEVER:
        keys = [key for key in READ_BY if getattr(checkpoint, key) is not None]
        for key in keys:
            yield _at(("checkpoint", key), "is not read where nothing is saved", ("faults", "checkpoint", "every"))
        return
    for key, modes in READ_BY.items():
        given = getattr(checkpoint, key) is not None
        if given and checkpoint.mode not in modes:
            message = f"is not read by {checkpoint.mode}; read by {', '.join(modes)}"
            yield _at(("checkpoint", key), message, ("faults", "checkpoint", "mode"))
        elif not given and checkpoint.mode in modes and key != "persist":
            yield _at(("checkpoint", key), f"is required by {checkpoint.mode}", ("faults", "checkpoint", "mode"))


def _copies_survive(scenario: Any, faults: Faults, checkpoint: Checkpoint) -> Iterator[Problem]:
    """A copy in the memory of one other node is lost if several nodes fail together."""
    if checkpoint.mode != "memory" or checkpoint.persist is not None:
        return
    for i, one in enumerate(faults.classes):
        if one.effect is None and (nodes_below(scenario, one) or 0) > 1:
            message = f"is required: {faults.names[i]} takes down several nodes, with what their memory holds"
            yield _at(("checkpoint", "persist"), message, ("faults", "classes", i))
            return


def _optimum_exists(faults: Faults) -> Iterator[Problem]:
    checkpoint = faults.checkpoint
    if checkpoint is None or checkpoint.every != OPTIMAL:
        return
    if all(one.effect is not None for one in faults.classes):
        yield _at(("checkpoint", "every"), "optimal: no class stops the job; expected a time", ("faults", "classes"))
    elif not checkpoint.stop and (checkpoint.cost, checkpoint.blocking) != (None, None):
        message = "optimal: checkpoints that cost nothing have no best interval; expected a time"
        yield _at(("checkpoint", "every"), message, ("faults", "checkpoint"))


def _spares_fit(scenario: Any, faults: Faults) -> Iterator[Problem]:
    nodes = len(job_nodes(scenario))
    if faults.spares is not None and faults.spares.nodes > nodes:
        message = f"{faults.spares.nodes} spares are more than the {nodes} nodes of the job"
        yield _at(("spares", "nodes"), message, ("cluster",), ("parallel",))


def _elastic_fits(scenario: Any, faults: Faults) -> Iterator[Problem]:
    if faults.elastic is None:
        return
    replicas, fewest = scenario.parallel.data, faults.elastic.min_replicas
    if fewest > replicas:
        message = f"{fewest} are more than the {replicas} of parallel.data"
        yield _at(("elastic", "min_replicas"), message, ("parallel", "data"))
    if faults.spares is None:
        message = "is required by elastic: {nodes: 0, repair: 24 h}, since missing nodes return"
        yield _at(("spares",), message, ("faults", "elastic"))
