"""Least times of communication, and the first bound on a plan, from its costs alone."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from hybrid_des.errors import Refusal
from hybrid_des.options import Options
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import Kind, Plan, PlanRequest
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.costs.documents import packed_steps
from hybrid_des.simulation.costs.rank_costs import Costs, RankCosts
from hybrid_des.simulation.costs.stages import costs_of
from hybrid_des.workload.models.stages import cut

OWN = "hybrid_des."  # prefix of the modules whose schedules are known


class FirstBound(NamedTuple):
    """Lower bounds of a plan: picoseconds of a step, and bytes of each pipeline rank (empty if unknown)."""

    time: int = 0
    held: Sequence[int] = ()


def first_bound(scenario: Scenario, ranks: RankCosts) -> FirstBound:
    """The first bound of a scenario with these costs.

    Raises:
        Refusal: the schedule does not support these sizes.
    """
    kind, p = scenario.schedule.kind, scenario.parallel.pipeline
    if kind is None or not _is_known(kind):
        return FirstBound()
    few = min(scenario.schedule.microbatches, 2 * p)
    shape = _shape(kind, scenario.schedule.options, p, few, scenario.schedule.chunks)
    costs = costs_of(ranks, shape.plan)
    largest = _largest(shape, costs)
    held = [costs.resident[rank] - costs.transient[rank] + largest[rank] for rank in range(p)]
    return FirstBound(0 if is_perturbed(scenario) else _time(scenario, shape, costs), held)


def check_stages(scenario: Scenario) -> None:
    """Check that the layers of a model can be cut into the plan's stages, where that requires no costs.

    Raises:
        Refusal: they do not.
    """
    rule, kind = scenario.parallel.stages, scenario.schedule.kind
    if scenario.model is None or rule == "balanced" or kind is None or not _is_known(kind):
        return
    stages = scenario.parallel.pipeline * _stages_per_rank(kind, scenario.schedule.options, scenario.schedule.chunks)
    try:
        cut(scenario.model.network.layers, stages, rule, ())
    except Refusal as refusal:
        raise Refusal(f"parallel.stages: {refusal}") from None


def _is_known(kind: str) -> bool:
    return bool(schedules.find(kind).build.__module__.startswith(OWN))


def is_perturbed(scenario: Scenario) -> bool:
    """Whether ops may take less than their costs (of the first step), so that no bound on time is known.

    Costs are those of the mean micro-batch where documents differ; that of a step may hold less.
    """
    given = scenario.workload is not None and scenario.workload.durations is not None
    varies = scenario.steps > 1 and scenario.experts.varies
    packed = packed_steps(scenario)
    return bool(scenario.slow or scenario.jitter or given or varies or (packed is not None and packed.varies))


class _StageWork(NamedTuple):
    """A stage on a path: its work on one micro-batch, the forwards before it, and the backwards after it."""

    work: int
    before: int
    behind: int


@lru_cache(maxsize=64)
def _stages_per_rank(kind: str, options: Options | None, chunks: int) -> int:
    """Stages of the whole model per pipeline rank, determined with two ranks."""
    return schedules.make_plan(kind, PlanRequest(2, 4, chunks), options).stages // 2


class _Shape(NamedTuple):
    """The facts about a plan that a first bound needs."""

    plan: Plan  # with empty programs: for many ranks they would take gigabytes
    split: bool


@lru_cache(maxsize=64)
def _shape(kind: str, options: Options | None, pipeline: int, microbatches: int, chunks: int) -> _Shape:
    whole = schedules.make_plan(kind, PlanRequest(pipeline, microbatches, chunks), options)
    return _Shape(replace(whole, programs=((),) * pipeline), bool(whole.split))


def _largest(shape: _Shape, costs: Costs) -> list[int]:
    """Bytes that each rank needs for the backward of one micro-batch of its largest chunk."""
    backward: Kind = "I" if shape.split else "B"
    largest = [0] * shape.plan.pipeline
    for (rank, _), cost in costs.stages.items():
        largest[rank] = max(largest[rank], cost.kept + cost.needed(backward))
    return largest


def _time(scenario: Scenario, shape: _Shape, costs: Costs) -> int:
    plan = shape.plan
    speed = max(kind.speed for kind in scenario.cluster.kinds)
    fused = min(Fraction(1), getattr(scenario.schedule.options, "fused_time", Fraction(1)), plan.fused_time)
    alone = scenario.steps > 1 and not scenario.barrier  # ranks may begin the next step early: only work counts
    each = scenario.schedule.microbatches // len(plan.paths)
    alike = scenario.tensor_traffic == "replay"  # else the times of layers' collectives may differ from the costs
    ways: dict[int, list[_StageWork]] = {}
    for path in plan.paths:
        before = behind = 0
        for position in path:
            cost = costs.stages[position]
            counted = [one for one in cost.traffic if not alike or (one.axis == "expert" and scenario.experts.streams)]
            forward = cost.forward - sum(one.forward for one in counted)
            backward = cost.backward - sum(one.backward for one in counted)
            ways.setdefault(position[0], []).append(_StageWork(forward + backward, before, behind))
            before += forward
            behind += 0 if shape.split else backward
    longest = Fraction(0)
    for rank, of_rank in ways.items():
        work = each * sum(way.work for way in of_rank)
        before, behind = (0, 0) if alone else (min(way.before for way in of_rank), min(way.behind for way in of_rank))
        after = max(costs.optimizer[rank], behind * fused + min(costs.optimizer))  # its own, or that of an earlier rank
        longest = max(longest, (before + work) * fused + after)
    rounded = 0 if speed == fused == 1 else 4 * len(plan.stage_of) * scenario.schedule.microbatches
    return max(0, int(longest / speed) - rounded)
