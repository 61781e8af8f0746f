"""Steps that differ in how many tokens want each expert, or in where experts are: the costs and transfers of each.

Steps with equal routing share their costs; a plan's order of ops, its messages between stages and its gradients are
those of all steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.cost_model.expert_loads import ExpertLoads
from hybrid_des.cost_model.pipeline_ranks import costs_per_rank
from hybrid_des.cost_model.rank_costs import Costs
from hybrid_des.cost_model.stages import costs_of
from hybrid_des.errors import Refusal
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.expert_copies import ExpertCopies, Transfers
from hybrid_des.planning.layer_traffic import TensorTraffic, loads_of
from hybrid_des.scenario.definition import Scenario

TOGETHER = "loads or placements that vary by step are not simulated with documents of unequal length (`data`)"


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """What a step takes; equal steps are one object.

    Attributes:
        costs: of its ops.
        copies: stage → what the placement of its experts sends.
    """

    costs: Costs
    copies: Mapping[int, Transfers] = field(default_factory=dict)


def steps_of(scenario: Scenario, plan: Plan, times: CollectiveTimes, first: Costs) -> list[PlannedStep]:
    """Every step; one if all are alike.

    Raises:
        Refusal: experts are copied or move where weights are divided layer by layer, or steps differ in documents too.
    """
    moves = scenario.experts.moved
    if scenario.model is None or not (moves or scenario.experts.varies):
        return [PlannedStep(first)]
    basis = CostBasis.of(scenario)
    loads = ExpertLoads(basis)
    if first.lanes is not None and scenario.experts.varies:
        raise Refusal(f"experts: {TOGETHER}")
    copies = ExpertCopies(loads)
    layers = _layers(plan, first) if moves and copies.needed else {}
    costs: dict[tuple[object, ...], Costs] = {_routing_at(loads, 0): first}
    known: dict[object, PlannedStep] = {}
    steps = []
    for step in range(basis.draws.steps):
        routing = _routing_at(loads, step)
        if routing not in costs:
            meant = basis._replace(draws=basis.draws._replace(step=step))
            costs[routing] = costs_of(costs_per_rank(meant, times), plan)
        sent = {stage: copies.at(step, numbers) for stage, numbers in layers.items()}
        key = routing, tuple(sent.items())
        known.setdefault(key, PlannedStep(costs[routing], sent))
        steps.append(known[key])
    return _holding_most(steps) if len(known) > 1 else steps[:1]


def _holding_most(steps: Sequence[PlannedStep]) -> list[PlannedStep]:
    """The steps, whose ranks hold in each what they hold for a while in any: peaks are those of all steps."""
    distinct = dict.fromkeys(steps)
    resident, transient = (
        tuple(map(max, *(getattr(step.costs, name) for step in distinct))) for name in ("resident", "transient")
    )
    # by identity: costs cannot be hashed
    known = {id(one.costs): replace(one.costs, resident=resident, transient=transient) for one in distinct}
    each = {one: replace(one, costs=known[id(one.costs)]) for one in distinct}
    return [each[step] for step in steps]


def _layers(plan: Plan, costs: Costs) -> Mapping[int, Sequence[int]]:
    """Stage → the numbers of its layers, which follow each other from stage to stage."""
    sizes = {stage: len(costs.stages[place].layers) for place, stage in plan.stage_of.items()}
    first, layers = 0, {}
    for stage in sorted(sizes):
        layers[stage] = range(first, first + sizes[stage])
        first += sizes[stage]
    return layers


def _routing_at(loads: ExpertLoads, step: int) -> tuple[object, ...]:
    return tuple(loads.at(step).values())


def mean_bytes(traffic: TensorTraffic, plan: Plan, costs: Sequence[Costs]) -> dict[str, Fraction]:
    """Axis → bytes that replayed collectives send per step, on average over steps with these costs."""
    axes = [*traffic.replayed, *traffic.messages]
    if not axes:
        return {}
    each: dict[int, dict[str, int]] = {}  # by identity: costs cannot be hashed
    for of_step in costs:
        if id(of_step) not in each:
            each[id(of_step)] = replace(traffic, loads=loads_of(plan, of_step, axes)[0]).replayed_bytes
    sums = {axis: sum(each[id(of_step)][axis] for of_step in costs) for axis in traffic.replayed}
    return {axis: Fraction(size, len(costs)) for axis, size in sums.items()}
