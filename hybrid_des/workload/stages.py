"""Costs of stages: those of a pipeline rank, split over the stages that the plan places on it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hybrid_des.pipeline.op import Kind, Path, Place
from hybrid_des.pipeline.plan import Plan
from hybrid_des.units import split_evenly
from hybrid_des.workload.costs import WEIGHTS, Costs, RankCosts, StageCosts


def costs_of(ranks: RankCosts, plan: Plan, trained: Sequence[int] | None = None) -> Costs:
    """The costs of a plan: those of a model's stages, or those of every rank, split evenly over its stages.

    Args:
        ranks: the costs of each pipeline rank.
        plan: the stages and their ranks.
        trained: parameters per stage of the model that is actually trained, for workloads that give none.
    """
    if ranks.stages is not None:
        costs = _of_stages(ranks.stages(plan.stages, plan.ends_meet), ranks.optimizer, plan)
    else:
        costs = _of_ranks(ranks, plan, trained)
    return _with_gathered(costs, plan) if ranks.gathered else costs


def _of_ranks(ranks: RankCosts, plan: Plan, trained: Sequence[int] | None) -> Costs:
    stages: dict[Place, StageCosts] = {}
    for path in plan.paths:
        stages |= _along(path, ranks, plan.pipeline)
    given = [stages[place].parameters for place in plan.paths[0]]  # parameters are given for one copy of the model
    parameters = tuple(given if trained is None else trained)
    held = [0] * plan.pipeline
    for (rank, _), stage in plan.stage_of.items():
        held[rank] += parameters[stage]
    transient = [_transient(plan, rank, stages) for rank in range(plan.pipeline)]
    resident = tuple(
        round(size * count) + more for size, count, more in zip(ranks.per_parameter, held, transient, strict=True)
    )
    return Costs(stages, parameters, resident, ranks.optimizer, transient=tuple(transient))


def _of_stages(stages: Sequence[StageCosts], optimizer: Sequence[int], plan: Plan) -> Costs:
    """The costs of a plan from those of its stages; `optimizer` is the step's additional time on every rank."""
    held = {place: stages[stage] for place, stage in plan.stage_of.items()}
    on = [[cost for (rank, _), cost in held.items() if rank == one] for one in range(plan.pipeline)]
    reserved = (sum(one.reserved for one in each) for each in on)
    transient = tuple(_transient(plan, rank, held) + more for rank, more in enumerate(reserved))
    return Costs(
        held,
        tuple(stage.parameters for stage in stages),
        tuple(sum(one.resident for one in each) + over for over, each in zip(transient, on, strict=True)),
        tuple(over + sum(one.optimizer for one in each) for over, each in zip(optimizer, on, strict=True)),
        tuple(stage.experts for stage in stages),
        transient,
    )


def _with_gathered(costs: Costs, plan: Plan) -> Costs:
    """Add gathered weights to the memory of ranks: those of two layers and what they share, or of all in a pipeline."""
    more = []
    for rank in range(plan.pipeline):
        stages = [cost for (at, _), cost in costs.stages.items() if at == rank]
        layers = [one for stage in stages for one in stage.layers or (stage,)]
        sizes = sorted(one.parameters + one.experts + min(one.later, 0) for one in layers)
        shared = sum(max(one.later, 0) for one in layers)
        more.append(WEIGHTS * (shared + sum(sizes if plan.pipeline > 1 else sizes[-2:])))
    resident, transient = (tuple(map(sum, zip(held, more, strict=True))) for held in (costs.resident, costs.transient))
    return replace(costs, resident=resident, transient=transient)


def _along(path: Path, ranks: RankCosts, pipeline: int) -> dict[Place, StageCosts]:
    """The costs of the stages of one copy of the model."""
    found = {}
    for rank in range(pipeline):
        places = [place for place in path if place[0] == rank]
        whole = (ranks.forward, ranks.backward, ranks.weight, ranks.kept, ranks.parameters)
        cuts = (split_evenly(amounts[rank], len(places)) for amounts in whole)
        for place, forward, backward, weight, kept, parameters in zip(places, *cuts, strict=True):
            message, share = ranks.message[rank], ranks.weight_share[rank]
            inputs, again = (min(kept, message), kept) if ranks.repeated else (kept, 0)
            found[place] = StageCosts(
                forward,
                backward,
                weight,
                message,
                inputs,
                parameters,
                share,
                transient=again,
                transients=(again, again),
            )
    return found


def _transient(plan: Plan, rank: int, costs: Mapping[Place, StageCosts]) -> int:
    """Bytes by which the transients of backwards raise a rank's peak above that of its activations.

    A split backward needs less for each part, and has freed some activations when its weight part runs.
    """
    mine = {chunk: cost for (at, chunk), cost in costs.items() if at == rank}
    program = plan.programs[rank]
    if not any(cost.transient for cost in mine.values()):
        return 0
    if not any(op.kind == "W" for action in program for op in action):
        return max(cost.transient for cost in mine.values())
    known: dict[tuple[Any, ...], tuple[int, int, int]] = {}
    held = most = peak = 0
    for action in program:
        alike = tuple([(op.kind, op.chunk) for op in action])
        if alike not in known:
            known[alike] = _bytes([(mine[chunk], kind) for kind, chunk in alike])
        kept, needed, freed = known[alike]
        held += kept
        most = max(most, held)
        peak = max(peak, held + needed)
        held -= freed
    return peak - most


def _bytes(each: Sequence[tuple[StageCosts, Kind]]) -> tuple[int, int, int]:
    """Bytes that an action keeps, needs while it runs, and frees at its end."""
    return (
        sum(cost.kept for cost, kind in each if kind == "F"),
        sum(cost.needed(kind) for cost, kind in each),
        sum(cost.freed(kind, cost.kept) for cost, kind in each),
    )
