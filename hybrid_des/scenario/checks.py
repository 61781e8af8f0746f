"""What must fit together across a scenario: one function a concern, each giving all the problems it finds."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hybrid_des.pipeline import schedules
from hybrid_des.scenario.gradients import gradients_problems
from hybrid_des.scenario.problem import Problem
from hybrid_des.scenario.strict_yaml import KeyPath
from hybrid_des.scenario.wiring import wiring_problems

if TYPE_CHECKING:
    from hybrid_des.scenario.model import Scenario

MOST_GPUS = MOST_STAGES = 2**20 - 1
OPTIONS = {"backward_order": "fifo", "fused": True, "fused_time": 1, "max_activations": None}  # and what means nothing
PER_RANK = ("forward", "backward", "weight", "recompute", "activation", "parameters", "optimizer")
PER_RANK_MEMORY = ("per_parameter", "activation")
PIPELINE = ("parallel", "pipeline")


def problems_of(scenario: Scenario) -> list[Problem]:
    """Everything that does not fit together."""
    checks = (
        _ranks_fit,
        wiring_problems,
        _sizes_are_bearable,
        _schedule_is_one,
        _chunks_fit,
        _options_are_read,
        gradients_problems,
        _lists_fit,
        _weight_fits,
        _layers_fit,
    )
    return [problem for check in checks for problem in check(scenario)]


def _ranks_fit(scenario: Scenario) -> Iterator[Problem]:
    parallel, cluster = scenario.parallel, scenario.cluster
    if parallel.ranks > cluster.gpus:
        sizes = f"nodes {cluster.nodes} × gpus_per_node {cluster.gpus_per_node}"
        if not isinstance(cluster.nodes, int):
            sizes = f"in {sum(kind.count for kind in cluster.kinds)} nodes"
        axes = [("parallel", axis) for axis in ("pipeline", "data", "tensor")]
        yield Problem(
            ("parallel",),
            f"{parallel.ranks} ranks (pipeline {parallel.pipeline} × data {parallel.data} × tensor {parallel.tensor}) "
            f"need as many GPUs; the cluster has {cluster.gpus} ({sizes})",
            (*axes, ("cluster", "nodes"), ("cluster", "gpus_per_node")),
        )


def _sizes_are_bearable(scenario: Scenario) -> Iterator[Problem]:
    if scenario.cluster.gpus > MOST_GPUS:
        yield Problem(
            ("cluster",),
            f"{scenario.cluster.gpus} GPUs are more than can be simulated (at most {MOST_GPUS})",
            (("cluster", "nodes"), ("cluster", "gpus_per_node")),
        )
    stages = scenario.parallel.pipeline * scenario.schedule.chunks
    if stages > MOST_STAGES:
        yield Problem(
            ("schedule", "chunks"),
            f"{stages} stages are more than can be simulated (at most {MOST_STAGES})",
            (PIPELINE, ("schedule", "chunks")),
        )


def _schedule_is_one(scenario: Scenario) -> Iterator[Problem]:
    schedule = scenario.schedule
    needs = (("schedule", "kind"), ("schedule", "file"))
    if schedule.kind is None and schedule.file is None:
        yield Problem(("schedule", "kind"), f"is required, one of {', '.join(schedules.names())}", needs)
    if schedule.kind is not None and schedule.file is not None:
        yield Problem(("schedule", "file"), "stands instead of `kind`; give one of the two", needs)


def _chunks_fit(scenario: Scenario) -> Iterator[Problem]:
    schedule = scenario.schedule
    if schedule.kind is None:
        return
    facts = schedules.find(schedule.kind).facts
    fixed = facts["chunks"] or (None if facts["many_chunks"] else 1)
    if fixed is not None and schedule.chunks != fixed:
        path = ("schedule", "chunks")
        message = f"{schedule.kind} has {fixed} a rank, not {schedule.chunks}"
        yield Problem(path, message, (path, ("schedule", "kind")))


def _options_are_read(scenario: Scenario) -> Iterator[Problem]:
    """An option that would change nothing is a mistake, unless it says what is so anyway."""
    schedule = scenario.schedule
    read = ("fused_time",) if schedule.kind is None else schedules.find(schedule.kind).facts["options"]
    for option, neutral in OPTIONS.items():
        value = getattr(schedule, option)
        if option == "max_activations":
            neutral = 2 * scenario.parallel.pipeline
        if option in schedule.model_fields_set and option not in read and value not in (None, neutral):
            readers = [name for name in schedules.names() if option in schedules.find(name).facts["options"]]
            hint = f"; read by {', '.join(readers)}" if readers else ""
            path = ("schedule", option)
            reader = schedule.kind or "an order file"
            yield Problem(path, f"is not read by {reader}{hint}", (path, ("schedule", "kind")))


def _lists_fit(scenario: Scenario) -> Iterator[Problem]:
    workload, ranks = scenario.workload, scenario.parallel.pipeline
    values: list[tuple[KeyPath, Any]] = [(("workload", name), getattr(workload, name)) for name in PER_RANK]
    values += [(("workload", "memory", name), getattr(workload.memory, name)) for name in PER_RANK_MEMORY]
    for path, value in values:
        if not isinstance(value, tuple):
            continue
        if workload.per == "model":
            yield Problem(
                path,
                "a list, where `per: model` wants one number for the whole model",
                (path, ("workload", "per")),
            )
        elif len(value) != ranks:
            yield Problem(
                path,
                f"a list of {len(value)}, where {ranks} are needed, one for each pipeline rank",
                (path, PIPELINE, ("workload", "per")),
            )


def _weight_fits(scenario: Scenario) -> Iterator[Problem]:
    weight, backward = scenario.workload.weight, scenario.workload.backward
    if weight is None:
        return
    for rank in range(max(_length(weight), _length(backward))):
        if _at(weight, rank) > _at(backward, rank):
            where = f" on pipeline rank {rank}" if _length(weight) > 1 or _length(backward) > 1 else ""
            yield Problem(
                ("workload", "weight"),
                f"the weight part takes {float(_at(weight, rank)):g} s{where}, more than the whole backward "
                f"({float(_at(backward, rank)):g} s)",
                (("workload", "weight"), ("workload", "backward")),
            )
            return


def _layers_fit(scenario: Scenario) -> Iterator[Problem]:
    stages = scenario.parallel.pipeline * scenario.schedule.chunks
    if scenario.numerics is not None and scenario.numerics.layers < stages:
        path = ("numerics", "layers")
        yield Problem(
            path,
            f"{scenario.numerics.layers} layers cannot be shared out over {stages} stages",
            (path, PIPELINE, ("schedule", "chunks")),
        )


def _length(value: Fraction | tuple[Fraction, ...]) -> int:
    return len(value) if isinstance(value, tuple) else 1


def _at(value: Fraction | tuple[Fraction, ...], rank: int) -> Fraction:
    if isinstance(value, tuple):
        return value[min(rank, len(value) - 1)] if value else Fraction(0)
    return value
