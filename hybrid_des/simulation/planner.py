"""Planning: turns a scenario into the parts of a simulation (fabric, plan, costs, training, reductions)."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from hybrid_des.errors import UsageError
from hybrid_des.gradients.groups import Reductions, replica_groups
from hybrid_des.gradients.replayed import LayerTraffic
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.rate import idle_time
from hybrid_des.numerics.training import Training
from hybrid_des.numerics.worker import Worker
from hybrid_des.pipeline import Plan, PlanRequest, schedules
from hybrid_des.pipeline.order_csv import OrderFile, read_order
from hybrid_des.reading import read_text
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.layered import Layered
from hybrid_des.simulation.lowering import Lowering
from hybrid_des.simulation.pace import Slowing
from hybrid_des.simulation.stages import costs_of, with_gathered
from hybrid_des.simulation.tensor_traffic import TensorTraffic, tensor_traffic
from hybrid_des.simulation.wiring import fabric_of
from hybrid_des.workload.costs import Costs, RankCosts, Sharding
from hybrid_des.workload.durations import Durations, read_durations
from hybrid_des.workload.given import rank_costs
from hybrid_des.workload.modelled import model_costs


@dataclass(frozen=True)
class Parts:
    """The parts of a simulation.

    Attributes:
        training: the small model that is really trained, if the scenario has one.
        workers: with training, the arithmetic of each rank.
        reductions: the gradient reductions.
        lowering: makes the programs of ranks.
        traffic: how collectives of layers are simulated.
        durations: of every op, where they come from outside.
    """

    fabric: Fabric
    plan: Plan
    costs: Costs
    training: Training | None
    workers: Mapping[int, Worker]
    reductions: Reductions
    lowering: Lowering
    traffic: TensorTraffic
    durations: Durations | None = None


def parts_of(
    scenario: Scenario,
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    training: Training | None = None,
    durations: Durations | None = None,
    *,
    ranks: RankCosts | None = None,
) -> Parts:
    """Plan a scenario; a given plan, fabric, training, durations or costs of ranks replace the scenario's own.

    Raises:
        Refusal: the schedule or topology does not support these sizes.
        PlanError: the order of ops is impossible.
        UsageError: an order file cannot be read, or is for other sizes.
    """
    layout, gradients, numerics = scenario.parallel.layout, scenario.gradients, scenario.numerics
    fabric = fabric or fabric_of(scenario)
    durations = durations or durations_in(scenario)
    ranks = ranks or costs_per_rank(scenario, fabric, durations)
    plan = plan or build_plan(scenario, ranks, fabric)
    plan.check()
    if durations is not None:
        durations.check(plan, scenario.parallel.data, scenario.steps)
    if training is None and numerics is not None:
        training = Training(numerics.settings, plan, scenario.parallel.data, scenario.seed)
    at = [layout.coordinates(rank) for rank in range(layout.ranks if training else 0)]
    workers = {rank: training.worker(rank, here["data"], here["pipeline"]) for rank, here in enumerate(at) if training}
    counted = training and scenario.workload and "parameters" not in scenario.workload.model_fields_set
    costs = costs_of(ranks, plan, training.parameters if training and counted else None)
    expert, sharded = scenario.parallel.expert, scenario.sharding != "none"
    if scenario.sharding == "zero-3":
        costs = with_gathered(costs, plan, scenario.parallel.data * scenario.parallel.context)
    layered = None
    if scenario.sharding in ("zero-2", "zero-3") and plan.pipeline == 1:
        layered = _layered(scenario, plan, costs, fabric)
    groups = []
    if layered is None:
        groups = replica_groups(plan, layout, costs.parts, gradients, expert=expert, keep_empty=numerics is not None)
    reductions = Reductions(gradients, groups, fabric, layout.ranks, scenario.cluster.sharing, sharded=sharded)
    traffic = tensor_traffic(scenario, plan, costs, fabric, groups)
    lowering = Lowering(
        plan,
        costs,
        reductions.buckets,
        gradients.overlap,
        blocking=scenario.schedule.p2p == "blocking",
        gathers=reductions.gathers,
        ahead=scenario.overlap.parameters,
        layered=layered,
        axes=frozenset(traffic.messages),
    )
    return Parts(fabric, plan, costs, training, workers, reductions, lowering, traffic, durations)


def _layered(scenario: Scenario, plan: Plan, costs: Costs, fabric: Fabric) -> Layered:
    """Lowering layer by layer, for gradients or weights that are sharded within a step."""
    parallel, sharing = scenario.parallel, scenario.cluster.sharing
    traffic = LayerTraffic(parallel.layout, parallel.expert, scenario.gradients.codec, fabric, sharing)
    slowing = Slowing(scenario.efficiency.slowed) if scenario.efficiency else Slowing()
    once, ahead = scenario.sharding == "zero-2", scenario.overlap.parameters
    beside = scenario.gradients.overlap if once else ahead
    return Layered(plan, costs, traffic, once, ahead, beside, slowing)


def plan_of(scenario: Scenario, fabric: Fabric | None = None) -> Plan:
    """The plan of the scenario's schedule.

    Raises:
        Refusal: the schedule does not support these sizes.
        PlanError: the order in the file is impossible.
        UsageError: the order file cannot be read, or is for other sizes.
    """
    fabric = fabric or fabric_of(scenario)
    return build_plan(scenario, costs_per_rank(scenario, fabric), fabric)


def costs_per_rank(scenario: Scenario, fabric: Fabric, durations: Durations | None = None) -> RankCosts:
    """Costs from the scenario's workload or model; of durations op by op (given, or in its file), the means."""
    if scenario.workload is not None:
        workload, ranks = scenario.workload, scenario.parallel.pipeline
        durations = durations or durations_in(scenario)
        if durations is not None:
            workload = workload.model_copy(update=_means(durations, scenario))
        sharding = Sharding.of(scenario.sharding, scenario.parallel.data, pipelined=ranks > 1)
        return rank_costs(workload, ranks, sharding, repeated=scenario.recompute == "full")
    return model_costs(scenario, fabric)


def durations_in(scenario: Scenario) -> Durations | None:
    """The durations in the file that the scenario's workload names, if it names one.

    Raises:
        UsageError: the file cannot be read, or does not fit the scenario.
    """
    if scenario.workload is None or scenario.workload.durations is None:
        return None
    schedule, layout = scenario.schedule, scenario.parallel.layout
    chunks = None if schedule.file is not None or schedule.chunks == 1 else schedule.chunks
    return read_durations(scenario.workload.durations, layout, chunks, schedule.microbatches)


def _means(durations: Durations, scenario: Scenario) -> dict[str, tuple[Fraction, ...]]:
    """What a rank's forward, backward and weight part take on average, for planning."""
    ranks, chunks = range(scenario.parallel.pipeline), scenario.schedule.chunks
    names = {"forward": "F", "backward": "B", **({"weight": "W"} if "W" in durations.whole else {})}
    return {name: tuple(chunks * durations.mean(kind, rank) for rank in ranks) for name, kind in names.items()}


def build_plan(scenario: Scenario, ranks: RankCosts, fabric: Fabric) -> Plan:
    """The plan of the scenario's schedule, for these costs, with the errors of `plan_of`."""
    schedule, p = scenario.schedule, scenario.parallel.pipeline
    if schedule.file is not None:
        return _plan_in_file(schedule.file, scenario)
    request = PlanRequest(
        pipeline=p,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        forward=ranks.forward,
        input=ranks.input,
        weight=ranks.weight,
        delay=max((_delay(scenario, ranks, fabric, rank) for rank in range(p - 1)), default=0),
        weight_share=ranks.weight_share,
    )
    assert schedule.kind is not None  # the scenario has one or the other
    return schedules.find(schedule.kind).build(request, *schedule.arguments)


def _plan_in_file(file: Path, scenario: Scenario) -> Plan:
    schedule = scenario.schedule
    text = read_text(file, "an order")
    options = schedule.options if isinstance(schedule.options, OrderFile) else OrderFile()
    plan = read_order(text, str(file), scenario.parallel.pipeline, options.fused_time)
    if plan.microbatches != schedule.microbatches:
        raise UsageError(
            f"{file}: an order of {plan.microbatches} micro-batches; schedule.microbatches is {schedule.microbatches}"
        )
    chunks = max(plan.visits)
    if "chunks" in schedule.model_fields_set and schedule.chunks != chunks:
        raise UsageError(f"{file}: an order of {chunks} chunks per rank; schedule.chunks is {schedule.chunks}")
    return plan


def _delay(scenario: Scenario, ranks: RankCosts, fabric: Fabric, rank: int) -> int:
    """Time of an activation from one pipeline rank to the next on idle links."""
    sender, receiver = (scenario.parallel.layout.rank(pipeline=r) for r in (rank, rank + 1))
    return idle_time(fabric, sender, receiver, ranks.message[rank])
