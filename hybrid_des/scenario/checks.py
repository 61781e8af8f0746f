"""Consistency checks across sections of a scenario: one function per concern, each yielding all its problems."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from hybrid_des.errors import Refusal
from hybrid_des.network import topologies
from hybrid_des.network.topologies import OptionRefusal
from hybrid_des.options import MOST, Elsewhere, mark_of, options_of
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.defaults import of_ranks
from hybrid_des.scenario.machine import Cluster
from hybrid_des.scenario.plugins import PluginSection
from hybrid_des.scenario.problem import Problem
from hybrid_des.scenario.reduction import Gradients
from hybrid_des.scenario.sections import Numerics, Parallel, Schedule, Workload
from hybrid_des.scenario.strict_yaml import KeyPath

PER_RANK = ("forward", "backward", "weight", "recompute", "activation", "parameters", "optimizer")
PER_RANK_MEMORY = ("per_parameter", "activation")
PIPELINE = ("parallel", "pipeline")
TOPOLOGY = ("cluster", "topology")


class Sections(NamedTuple):
    """The sections of a scenario that must be consistent."""

    cluster: Cluster
    parallel: Parallel
    schedule: Schedule
    workload: Workload
    gradients: Gradients
    numerics: Numerics | None


def problems_of(scenario: Sections) -> list[Problem]:
    """All inconsistencies between sections."""
    checks = (
        _ranks_fit,
        _tensor_is_one,
        _options_are_read,
        _wiring_exists,
        _sizes_are_bearable,
        _schedule_is_one,
        _chunks_fit,
        _errors_exist,
        _lists_fit,
        _weight_fits,
        _layers_fit,
    )
    return [problem for check in checks for problem in check(scenario)]


def _ranks_fit(scenario: Sections) -> Iterator[Problem]:
    parallel, cluster = scenario.parallel, scenario.cluster
    if parallel.ranks > cluster.gpus:
        sizes = f"nodes {cluster.nodes} × gpus_per_node {cluster.gpus_per_node}"
        if not isinstance(cluster.nodes, int):
            sizes = f"in {sum(kind.count for kind in cluster.kinds)} nodes"
        axes = [("parallel", axis) for axis in ("pipeline", "data", "tensor")]
        yield Problem(
            ("parallel",),
            f"{parallel.ranks} ranks (pipeline {parallel.pipeline} × data {parallel.data} × tensor {parallel.tensor}) "
            f"need one GPU each; the cluster has {cluster.gpus} ({sizes})",
            (*axes, ("cluster", "nodes"), ("cluster", "gpus_per_node")),
        )


def _sizes_are_bearable(scenario: Sections) -> Iterator[Problem]:
    if scenario.cluster.gpus > MOST:
        yield Problem(
            ("cluster",),
            f"{scenario.cluster.gpus} GPUs are more than can be simulated (at most {MOST})",
            (("cluster", "nodes"), ("cluster", "gpus_per_node")),
        )
    stages = scenario.parallel.pipeline * scenario.schedule.chunks
    if stages > MOST:
        yield Problem(
            ("schedule", "chunks"),
            f"{stages} stages are more than can be simulated (at most {MOST})",
            (PIPELINE, ("schedule", "chunks")),
        )


def _schedule_is_one(scenario: Sections) -> Iterator[Problem]:
    schedule = scenario.schedule
    needs = (("schedule", "kind"), ("schedule", "file"))
    if schedule.kind is None and schedule.file is None:
        yield Problem(("schedule", "kind"), f"is required, one of {', '.join(schedules.names())}", needs)
    if schedule.kind is not None and schedule.file is not None:
        yield Problem(("schedule", "file"), "replaces `kind`; give only one of the two", needs)


def _chunks_fit(scenario: Sections) -> Iterator[Problem]:
    schedule = scenario.schedule
    if schedule.kind is None:
        return
    facts = schedules.find(schedule.kind).facts
    fixed = facts["chunks"] or (None if facts["many_chunks"] else 1)
    if fixed is not None and schedule.chunks != fixed:
        path = ("schedule", "chunks")
        message = f"{schedule.kind} has {fixed} per rank, not {schedule.chunks}"
        yield Problem(path, message, (path, ("schedule", "kind")))


def _tensor_is_one(scenario: Sections) -> Iterator[Problem]:
    if scenario.parallel.tensor > 1:
        path = ("parallel", "tensor")
        yield Problem(path, "tensor parallelism is not available in this version; expected 1", (path,))


def _options_are_read(scenario: Sections) -> Iterator[Problem]:
    """Required options must be given; an option without effect is an error unless it states the implied value."""
    ranks = scenario.parallel.pipeline
    sections: dict[str, PluginSection] = {
        "cluster": scenario.cluster,
        "schedule": scenario.schedule,
        "gradients": scenario.gradients,
    }
    for name, section in sections.items():
        plugins = section.plugins
        chosen = plugins.chosen(dict(section))
        what, choice = chosen.name if chosen else "", (name, plugins.key)
        for key in section.lacking:
            path = (name, key)
            yield Problem(path, f"is required by {what}", (path, choice))
        for key, value in section.unread.items():
            readers = plugins.readers()[key]
            mark = mark_of(next(iter(readers.values())), Elsewhere)
            if mark is None or value != of_ranks(mark.value, ranks):
                path = (name, key)
                yield Problem(path, f"is not read by {what}; read by {', '.join(readers)}", (path, choice))


def _wiring_exists(scenario: Sections) -> Iterator[Problem]:
    """The topology must support the cluster."""
    cluster = scenario.cluster
    entry = topologies.find(cluster.topology)
    if entry.facts["check"] is None or cluster.gpus > MOST or cluster.lacking:
        return
    keys = ("nodes", "gpus_per_node", "nvlink", "infiniband", *entry.keys)
    needs = (TOPOLOGY, *(("cluster", key) for key in keys))
    try:
        entry.facts["check"](cluster.spec, *options_of(entry, cluster.options))
    except OptionRefusal as refusal:
        yield Problem(("cluster", refusal.option, *refusal.at), refusal.message, needs)
    except Refusal as refusal:
        yield Problem(TOPOLOGY, str(refusal), needs)


def _errors_exist(scenario: Sections) -> Iterator[Problem]:
    """Error feedback needs arrays."""
    if scenario.gradients.error_feedback and scenario.numerics is None:
        path = ("gradients", "error_feedback")
        yield Problem(path, "needs real gradients; add a numerics: section", (path, ("numerics",)))


def _lists_fit(scenario: Sections) -> Iterator[Problem]:
    workload, ranks = scenario.workload, scenario.parallel.pipeline
    values: list[tuple[KeyPath, Any]] = [(("workload", name), getattr(workload, name)) for name in PER_RANK]
    values += [(("workload", "memory", name), getattr(workload.memory, name)) for name in PER_RANK_MEMORY]
    for path, value in values:
        if not isinstance(value, tuple):
            continue
        if workload.per == "model":
            yield Problem(
                path,
                "found a list; `per: model` takes one number for the whole model",
                (path, ("workload", "per")),
            )
        elif len(value) != ranks:
            yield Problem(
                path,
                f"found a list of {len(value)}; expected {ranks}, one per pipeline rank",
                (path, PIPELINE, ("workload", "per")),
            )


def _weight_fits(scenario: Sections) -> Iterator[Problem]:
    weight, backward = scenario.workload.weight, scenario.workload.backward
    if weight is None:
        return
    for rank in range(max(_length(weight), _length(backward))):
        if _at(weight, rank) > _at(backward, rank):
            where = f" on pipeline rank {rank}" if _length(weight) > 1 or _length(backward) > 1 else ""
            yield Problem(
                ("workload", "weight"),
                f"the weight gradient takes {float(_at(weight, rank)):g} s{where}, more than the whole backward "
                f"({float(_at(backward, rank)):g} s)",
                (("workload", "weight"), ("workload", "backward")),
            )
            return


def _layers_fit(scenario: Sections) -> Iterator[Problem]:
    stages = scenario.parallel.pipeline * scenario.schedule.chunks
    if scenario.numerics is not None and scenario.numerics.layers < stages:
        path = ("numerics", "layers")
        yield Problem(
            path,
            f"{scenario.numerics.layers} layers cannot be split over {stages} stages",
            (path, PIPELINE, ("schedule", "chunks")),
        )


def _length(value: Fraction | tuple[Fraction, ...]) -> int:
    return len(value) if isinstance(value, tuple) else 1


def _at(value: Fraction | tuple[Fraction, ...], rank: int) -> Fraction:
    if isinstance(value, tuple):
        return value[min(rank, len(value) - 1)] if value else Fraction(0)
    return value
