"""Least times of communication, and the first bound on a plan, from its costs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from hybrid_des.cost_model.cheapest_times import Inside
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.cost_model.rank_costs import Costs, RankCosts, StageCosts
from hybrid_des.cost_model.stages import costs_of
from hybrid_des.errors import Refusal
from hybrid_des.options import Options
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import WHOLE, Kind, Plan, PlanRequest
from hybrid_des.scenario.definition import Scenario
from hybrid_des.shortcuts.least_remaining import is_perturbed
from hybrid_des.workload.models.stages import cut

OWN = "hybrid_des."  # prefix of the modules whose schedules are known


@dataclass(frozen=True)
class FirstBound:
    """Lower bounds of a plan, each worked out when it is asked for."""

    _scenario: Scenario
    _shape: _Shape | None
    _costs: Costs | None
    _inside: Inside | None

    @property
    def held(self) -> Sequence[int]:
        """Bytes of each pipeline rank; empty if they are unknown."""
        if self._shape is None or self._costs is None:
            return ()
        costs, largest = self._costs, _largest(self._shape, self._costs)
        return [costs.resident[rank] - costs.transient[rank] + largest[rank] for rank in range(len(largest))]

    @property
    def time(self) -> int:
        """Picoseconds of a step."""
        if self._shape is None or self._costs is None or is_perturbed(self._scenario):
            return 0
        return _time(self._scenario, self._shape, self._costs, self._inside)


def first_bound(scenario: Scenario, ranks: RankCosts, inside: Inside | None = None) -> FirstBound:
    """The first bound of a scenario with these costs.

    Args:
        scenario: the plan.
        ranks: its costs.
        inside: the least times of collectives inside ops, which may be messages; none: they may take no time then.

    Raises:
        Refusal: the schedule does not support these sizes.
    """
    kind, p = scenario.schedule.kind, scenario.parallel.pipeline
    if kind is None or not _is_known(kind):
        return FirstBound(scenario, None, None, inside)
    few = min(scenario.schedule.microbatches, 2 * p)
    shape = _shape(kind, scenario.schedule.options, p, few, scenario.schedule.chunks)
    return FirstBound(scenario, shape, costs_of(ranks, shape.plan), inside)


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


class _StageWork(NamedTuple):
    """A stage on a path: its work on one micro-batch, the forwards before it, and the backwards after it."""

    work: int | Fraction
    before: int | Fraction
    behind: int | Fraction


@lru_cache(maxsize=64)
def _stages_per_rank(kind: str, options: Options | None, chunks: int) -> int:
    """Stages of the whole model per pipeline rank, determined with two ranks."""
    return schedules.make_plan(kind, PlanRequest(2, 4, chunks), options).stages // 2


class _Shape(NamedTuple):
    """The facts about a plan that a first bound needs."""

    plan: Plan  # with empty programs: for many ranks they would take gigabytes
    split: bool


@lru_cache(maxsize=512)  # of stages and paths, without ops
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


def _time(scenario: Scenario, shape: _Shape, costs: Costs, inside: Inside | None) -> int:
    plan = shape.plan
    speed = max(kind.speed for kind in scenario.cluster.kinds)
    fused = min(Fraction(1), getattr(scenario.schedule.options, "fused_time", Fraction(1)), plan.fused_time)
    alone = scenario.steps > 1 and not scenario.barrier  # ranks may begin the next step early: only work counts
    inside = None if alone else inside  # of members far behind the others, collectives may take no time
    each = scenario.schedule.microbatches // len(plan.paths)

    def least(cost: StageCosts, kind: Kind) -> int | Fraction:
        whole, waits = cost.forward if kind == "F" else cost.backward, cost.waits(kind)
        paced = whole if speed == fused == 1 else fused * ((whole - waits) / speed + waits)
        return paced - _spared(cost, kind, scenario, inside, quick=speed > 1)

    ways: dict[int, list[_StageWork]] = {}
    for path in plan.paths:
        before: int | Fraction = 0
        behind: int | Fraction = 0
        for position in path:
            forward, backward = (least(costs.stages[position], kind) for kind in WHOLE)
            ways.setdefault(position[0], []).append(_StageWork(forward + backward, before, behind))
            before += forward
            behind += 0 if shape.split else backward
    longest = Fraction(0)
    for rank, of_rank in ways.items():
        work = each * sum(way.work for way in of_rank)
        before, behind = (0, 0) if alone else (min(way.before for way in of_rank), min(way.behind for way in of_rank))
        own, others = costs.optimizer[rank] / speed, min(costs.optimizer) / speed  # that of an earlier rank
        longest = max(longest, before + work + max(own, behind + others))
    rounded = 0 if speed == fused == 1 else 4 * len(plan.stage_of) * scenario.schedule.microbatches
    return max(0, int(longest) - rounded)


def _spared(stage: StageCosts, kind: Kind, scenario: Scenario, inside: Inside | None, *, quick: bool) -> int:
    """Picoseconds of an op that the collectives in it may save where they differ from the costs.

    Args:
        stage: of the op.
        kind: F, or B for the whole backward.
        scenario: the plan.
        inside: as in `first_bound`.
        quick: whether computation may be faster than the costs: then what it hides is less than they say.
    """
    if not stage.traffic:
        return 0

    def spared(exchange: LayerCollective) -> int:
        if exchange.axis == "expert" and scenario.experts.streams:  # waits where its result is needed, if at all
            return exchange.waits
        if scenario.tensor_traffic == "replay":
            return 0
        least = 0 if inside is None else inside(exchange.axis, exchange.algorithm, exchange.size)
        saved = max(exchange.alone - least, exchange.taken)  # computation beside it may also be slowed less
        return saved if quick else min(saved, exchange.waits)

    times, way = Counter(map(id, stage.layers)), WHOLE.index(kind)  # blocks are equal
    layers = {id(layer): layer for layer in stage.layers}
    of_layer = {number: sum(one.repeats * spared(one) for one in layer.collectives[way])
                for number, layer in layers.items()}  # fmt: skip
    return sum(times[number] * of_layer[number] for number in layers)
