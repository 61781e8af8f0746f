"""Planning: turns a scenario into the parts of a simulation (fabric, plan, costs, training, reductions)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hybrid_des.errors import UsageError
from hybrid_des.folding.times import CollectiveTimes
from hybrid_des.gradients.groups import Reductions, ReplicaGroup, replica_groups
from hybrid_des.network.contention import Groups
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.rate import idle_time
from hybrid_des.numerics.training import Training
from hybrid_des.numerics.worker import Worker
from hybrid_des.pipeline import Plan, PlanRequest, schedules
from hybrid_des.pipeline.order_csv import OrderFile, read_order
from hybrid_des.planning.layered import Layered
from hybrid_des.planning.lowering import Lowering
from hybrid_des.planning.pace import Slowing
from hybrid_des.planning.tensor_traffic import TensorTraffic, tensor_traffic
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.reading import read_text
from hybrid_des.scenario import Scenario, Source, load
from hybrid_des.workload.costs import Costs, RankCosts
from hybrid_des.workload.durations import Durations
from hybrid_des.workload.ranks import costs_per_rank
from hybrid_des.workload.stages import costs_of


@dataclass(frozen=True)
class Parts:
    """The parts of a simulation.

    Attributes:
        times: how long collectives take alone on the wiring.
        training: the small model that is actually trained, if the scenario has one.
        workers: with training, the arithmetic of each rank.
        reductions: the gradient reductions.
        lowering: makes the programs of ranks.
        traffic: how collectives of layers are simulated.
        durations: of every op, if given from outside.
    """

    fabric: Fabric
    times: CollectiveTimes
    plan: Plan
    costs: Costs
    training: Training | None
    workers: Mapping[int, Worker]
    reductions: Reductions
    lowering: Lowering
    traffic: TensorTraffic
    durations: Durations | None = None

    @property
    def meeting(self) -> Sequence[Groups] | None:
        """Part → the groups of ranks that share layers and begin collectives together; None if none do."""
        return self.lowering.layered.groups if self.lowering.layered else None

    @property
    def channels(self) -> int | None:
        """The most rings that reduce the same gradients at once; None if nothing is reduced around rings."""
        if self.lowering.layered:
            return self.lowering.layered.channels
        counts = {len(processes.channels) for processes, _ in self.reductions.processes}
        return max(counts, default=0) or None

    @property
    def apart(self) -> str:
        """Why replicas differ, apart from `slow`, `jitter` and `cluster.sharing`; empty if they do not."""
        if self.training:
            return "with `numerics` every replica trains on its own samples"
        return "" if self.durations is None else "with `workload.durations` every replica has its own durations"


def parts_of(
    scenario: Source,
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    training: Training | None = None,
    durations: Durations | None = None,
    *,
    ranks: RankCosts | None = None,
    times: CollectiveTimes | None = None,
) -> Parts:
    """Plan a scenario; a given plan, fabric, training, durations or costs of ranks replace the scenario's own.

    Times of collectives may be given that were found on the same wiring.

    Raises:
        Refusal: the schedule or topology does not support these sizes.
        PlanError: the order of ops is impossible.
        UsageError: an order file cannot be read, or is for other sizes.
    """
    scenario = scenario if isinstance(scenario, Scenario) else load(scenario)
    layout, numerics = scenario.parallel.layout, scenario.numerics
    fabric = fabric or fabric_of(scenario)
    times = times or times_of(scenario, fabric)
    ranks = ranks or costs_per_rank(scenario, times, durations)
    durations = ranks.durations
    plan = plan or build_plan(scenario, ranks, fabric)
    plan.check()
    if training is None and numerics is not None:
        training = Training(numerics.settings, plan, scenario.parallel.data, scenario.seed)
    workers = training.workers_of(layout) if training else {}
    counted = training and scenario.workload and "parameters" not in scenario.workload.model_fields_set
    costs = costs_of(ranks, plan, training.parameters if training and counted else None)
    if durations is not None:
        durations.check(plan, scenario.parallel.data, scenario.steps)
    gradients, sharded, groups = scenario.gradients, scenario.sharding != "none", list[ReplicaGroup]()
    if not scenario.layered:
        groups = replica_groups(plan, layout, costs.parts, gradients, keep_empty=numerics is not None)
    reductions = Reductions(gradients, groups, times, sharded=sharded)
    layered = _layered(scenario, plan, costs, times) if scenario.layered else None
    traffic = tensor_traffic(scenario, plan, costs, fabric, groups)
    lowering = Lowering(
        plan,
        costs,
        reductions.buckets,
        gradients.overlap,
        blocking=scenario.schedule.p2p == "blocking",
        sharded=sharded,
        ahead=scenario.overlap.parameters,
        layered=layered,
        axes=frozenset(traffic.messages),
    )
    return Parts(fabric, times, plan, costs, training, workers, reductions, lowering, traffic, durations)


def _layered(scenario: Scenario, plan: Plan, costs: Costs, times: CollectiveTimes) -> Layered:
    """Lowering layer by layer, for gradients or weights that are sharded within a step."""
    slowing = Slowing(scenario.efficiency.slowed) if scenario.efficiency else Slowing()
    once, ahead = scenario.sharding == "zero-2", scenario.overlap.parameters
    beside = scenario.gradients.overlap if once else ahead
    return Layered(plan, costs, times, scenario.gradients, once, ahead, beside, slowing)


def plan_of(scenario: Source, fabric: Fabric | None = None) -> Plan:
    """The plan of the scenario's schedule.

    Raises:
        Refusal: the schedule does not support these sizes.
        PlanError: the order in the file is impossible.
        UsageError: the order file cannot be read, or is for other sizes.
    """
    scenario = scenario if isinstance(scenario, Scenario) else load(scenario)
    fabric = fabric or fabric_of(scenario)
    return build_plan(scenario, costs_per_rank(scenario, times_of(scenario, fabric)), fabric)


def build_plan(scenario: Scenario, ranks: RankCosts, fabric: Fabric) -> Plan:
    """The plan of the scenario's schedule, for these costs, with the errors of `plan_of`."""
    schedule, p = scenario.schedule, scenario.parallel.pipeline
    if schedule.file is not None:
        return _plan_in_file(schedule.file, scenario)
    stride = scenario.parallel.layout.strides["pipeline"]
    hops = zip(pairwise(range(0, p * stride, stride)), ranks.message, strict=False)
    request = PlanRequest(
        pipeline=p,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        forward=ranks.forward,
        input=ranks.input,
        weight=ranks.weight,
        delay=max((idle_time(fabric, *ends, activation) for ends, activation in hops), default=0),
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
