"""Planning: turns a scenario into the parts of a simulation (fabric, plan, costs, training, reductions).

Steps may differ in how many tokens want each expert, or in where experts are: the costs and transfers of each.

Steps with equal routing share their costs; a plan's order of ops, its messages between stages and its gradients are
those of all steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rate import idle_time
from hybrid_des.cluster.self_contention import Groups
from hybrid_des.collectives import codecs
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.cost_model.expert_loads import ExpertLoads
from hybrid_des.cost_model.lanes import Lanes
from hybrid_des.cost_model.pipeline_ranks import costs_per_rank
from hybrid_des.cost_model.rank_costs import Costs, RankCosts
from hybrid_des.cost_model.slowdown import Slowdown
from hybrid_des.cost_model.stages import costs_of
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.files import read_text
from hybrid_des.interchange.profiles.durations import Durations, Usual
from hybrid_des.layout import Layout
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import OrderFile, read_order
from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.planning.expert_copies import ExpertCopies, Transfers
from hybrid_des.planning.expert_streams import ExpertStreams
from hybrid_des.planning.fsdp import Fsdp
from hybrid_des.planning.given import GivenPrograms, GivenTraces
from hybrid_des.planning.given_collectives import GivenGroup
from hybrid_des.planning.gradients import Reductions, ReplicaGroup, across, in_groups, replica_groups
from hybrid_des.planning.layer_traffic import TensorTraffic, loads_of, tensor_traffic
from hybrid_des.planning.lowering import Lowering
from hybrid_des.planning.program import Program
from hybrid_des.planning.training import Training, Worker
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overhead import Overhead
from hybrid_des.scenario.sections.outer import Outer
from hybrid_des.scenario.sections.training import Gradients, Schedule
from hybrid_des.workload.numerics.outer import OuterSettings

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


@dataclass(frozen=True)
class Parts:
    """What planning makes of a scenario; a simulation asks no further.

    Attributes:
        times: how long collectives take alone on the wiring.
        plan: the schedule as data, to export or plan again; empty if the programs came from elsewhere.
        reductions: the gradient reductions.
        programs: makes the programs of ranks.
        traffic: how collectives of layers are simulated.
        training: the small model that is actually trained, if the scenario has one.
        workers: with training, the arithmetic of each rank.
        durations: of every op, if given from outside.
        meeting: part → the groups of ranks that share layers and begin collectives together; None if none do.
        channels: the most rings that reduce the same gradients at once; None if nothing is reduced around rings.
        given: the process groups of programs that came from a trace.
        replayed: amounts sent per step by replayed collectives, by attribute of `Run`.
        slowdown: of computation beside collectives; None if times are given, or nothing is slowed.
        further: the costs of each step after the first, if steps differ in how many tokens want each expert.
        copies: of each step, or of one if all are alike, stage → what the placement of its experts sends.
        copied: whether it sends anything.
        messages: about how many messages a step sends.
        remembered: what runs of these parts found out about themselves, by topic, for later ones.
    """

    fabric: Fabric
    times: CollectiveTimes
    plan: Plan
    costs: Costs
    reductions: Reductions
    programs: Lowering | GivenPrograms
    traffic: TensorTraffic
    training: Training | None = None
    workers: Mapping[int, Worker] = field(default_factory=dict)
    durations: Durations | None = None
    meeting: Sequence[Groups] | None = None
    channels: int | None = None
    replayed: Mapping[str, int | Fraction] = field(default_factory=dict)
    slowdown: Slowdown | None = None
    given: Sequence[GivenGroup] = ()
    further: Sequence[Costs] = ()
    copies: Sequence[Mapping[int, Transfers]] = ()
    copied: bool = False
    messages: int = 0
    remembered: dict[str, Any] = field(default_factory=dict)

    @property
    def lowering(self) -> Lowering:
        """How a plan was lowered."""
        assert isinstance(self.programs, Lowering)
        return self.programs


def parts_of(
    scenario: Source,
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    training: Training | None = None,
    durations: Durations | None = None,
    *,
    ranks: RankCosts | None = None,
    times: CollectiveTimes | None = None,
    reduced_by: Gradients | None = None,
) -> Parts:
    """Plan a scenario; a given plan, fabric, training, durations or costs of ranks replace the scenario's own.

    Times of collectives that were found on the same wiring may be passed in, and gradients whose algorithm replaces
    `auto`, for callers to whom the time of reductions does not matter.

    Raises:
        Refusal: the schedule or topology does not support these sizes.
        PlanError: the order of ops is impossible.
        UsageError: an order file cannot be read, or is for other sizes.

    Example:
        >>> from hybrid_des import parts_of
        >>> parts = parts_of("scenarios/a100_8x.yaml")
        >>> parts.plan.stages, len(list(parts.plan.ops()))
        (4, 64)
    """
    scenario = scenario if isinstance(scenario, Scenario) else load(scenario)
    if scenario.traced and (plan is None or not plan.programs):
        return parts_of_traces(scenario, GivenTraces.of(scenario), fabric)
    fabric = fabric or fabric_of(scenario)
    times = times or times_of(scenario, fabric)
    ranks = ranks or costs_per_rank(CostBasis.of(scenario), times, durations)
    plan = plan or build_plan(scenario.schedule, scenario.parallel.layout, ranks, fabric)
    plan.check()
    if training is None and (numerics := scenario.numerics) is not None:
        training = Training(numerics.settings, plan, scenario.parallel.data, scenario.seed, _outer(scenario))
    counted = training and scenario.workload and "parameters" not in scenario.workload.model_fields_set
    costs = costs_in(ranks, plan, training.parameters if training and counted else None)
    given = None if ranks.durations is None else _timed(scenario, plan, ranks.durations)
    workers = training.workers_of(scenario.parallel.layout) if training else {}
    parts = _lowered(scenario, plan, steps_of(scenario, plan, times, costs), times, reduced_by)
    return replace(parts, training=training, workers=workers, durations=given)


def costs_in(ranks: RankCosts, plan: Plan, trained: Sequence[int] | None = None) -> Costs:
    """The costs of a plan, as `costs_of` works them out; where documents differ, those of every lane too."""
    costs, packed = costs_of(ranks, plan, trained), ranks.packed
    return costs if packed is None or not packed.varies else replace(costs, lanes=Lanes(packed, ranks, plan))


def _fsdp(scenario: Scenario, plan: Plan, times: CollectiveTimes) -> Fsdp | None:
    """How ops are lowered layer by layer, if gradients or weights are sharded within a step."""
    if not scenario.fsdp:
        return None
    if len(plan.paths) > 1:
        kind = scenario.schedule.kind
        raise Refusal(f"shards: {kind} keeps two copies of every stage, which are not gathered layer by layer")
    ahead, gradients, shards = scenario.overlap.parameters, scenario.gradients, scenario.shards
    overlapped = gradients.overlap if scenario.sharding == "zero-2" else ahead
    once = scenario.sharding == "zero-2" or shards.kept(scenario.parallel)
    sizes = shards.ranks, shards.of_experts(scenario.parallel)
    return Fsdp(plan, times, gradients, once, scenario.scatters_once, ahead, overlapped, sizes)


def _lowered(
    scenario: Scenario,
    plan: Plan,
    steps: Sequence[PlannedStep],
    times: CollectiveTimes,
    reduced_by: Gradients | None = None,
) -> Parts:
    """The parts that follow from a plan and its costs, those of every step if they differ."""
    gradients, groups = scenario.gradients, list[ReplicaGroup]()
    costs, further = steps[0].costs, [step.costs for step in steps[1:]]
    fsdp = _fsdp(scenario, plan, times)
    if fsdp is None or scenario.shards.ranks is not None:
        empty, layout = scenario.numerics is not None, scenario.parallel.layout
        whole = replica_groups(plan, layout, costs.parts, gradients, keep_empty=empty, tensors=costs.tensors)
        groups = in_groups(whole, layout, scenario.outer_groups) if fsdp is None else across(whole, fsdp.sizes)
    sharded = (scenario.sharding if fsdp is None else scenario.shards.outside) != "none"
    reductions = Reductions(reduced_by or gradients, groups, times, sharded=sharded)
    traffic = tensor_traffic(scenario, plan, costs, times.fabric, groups, further)
    axes = traffic.started
    fsdp = fsdp and replace(fsdp, axes=axes)
    lowering = Lowering(
        plan,
        costs,
        reductions.buckets,
        gradients.overlap and fsdp is None,
        blocking=scenario.schedule.p2p == "blocking",
        sharded=sharded,
        ahead=scenario.overlap.parameters and fsdp is None,
        fsdp=fsdp,
        axes=axes,
        barrier=scenario.barrier,
        streams=ExpertStreams(scenario.experts.delay_weight, axes) if traffic.streams else None,
    )
    each = {step: replace(lowering, costs=step.costs, copies=step.copies) for step in dict.fromkeys(steps)}
    lowering = replace(each[steps[0]], further=tuple(each[step] for step in steps[1:]))
    replayed = mean_bytes(traffic, plan, [costs, *further])
    return Parts(
        times.fabric,
        times,
        plan,
        costs,
        reductions,
        lowering,
        traffic,
        meeting=fsdp.groups if fsdp else None,
        channels=fsdp.channels if fsdp else _channels(reductions),
        slowdown=_slowdown(scenario),
        replayed={**_replayed(costs, replayed, times), **lowering.replayed},
        further=further,
        copies=[step.copies for step in steps],
        copied=any(sent != ((), ()) for step in steps for sent in step.copies.values()),
        messages=_messages(plan, scenario.parallel.data, reductions) + traffic.sent,
    )


def _messages(plan: Plan, replicas: int, reductions: Reductions) -> int:
    """About how many messages pipelines and reductions send per step: all reductions as around rings."""
    around = sum(
        2 * len(group.buckets) * max(1, len(processes.channels)) * processes.size * (processes.size - 1)
        for processes, group in reductions.processes
    )
    return 2 * (plan.stages - 1) * len(plan.path_of) * replicas + around


def _replayed(costs: Costs, by_axis: Mapping[str, Fraction], times: CollectiveTimes) -> dict[str, int | Fraction]:
    """Bytes that replayed collectives inside ops send per step, by attribute of `Run`."""
    replayed: dict[str, int | Fraction] = {f"bytes_{axis}": size for axis, size in by_axis.items()}
    if costs.lanes is not None and costs.lanes.meetings:
        replayed["bytes_context"] = costs.lanes.sent_together("context") * times.layout.sizes["tensor"]
    return replayed


def _timed(scenario: Scenario, plan: Plan, durations: Durations) -> Durations:
    """The durations of the ops of a plan, as `workload.timing` says.

    Raises:
        UsageError: they should be as recorded, and one is missing.
    """
    timing, replicas = scenario.workload.timing if scenario.workload else "recorded", scenario.parallel.data
    if timing in ("median", "mean") or (timing == "auto" and not durations.covers(plan, replicas, scenario.steps)):
        usual = Usual.of(timing, Overhead.of(scenario.workload))
        return durations.predicted(plan, replicas, scenario.steps, usual)
    durations.check(plan, replicas, scenario.steps)
    return durations


def parts_of_traces(scenario: Scenario, traces: GivenTraces, fabric: Fabric | None = None) -> Parts:
    """The parts of a scenario whose programs are execution traces."""
    parts = parts_of_programs(scenario, traces.programs, fabric=fabric)
    return replace(parts, given=traces.collectives.groups(parts.times))


def _outer(scenario: Scenario) -> OuterSettings | None:
    """How groups of replicas exchange what they have learned; None if all replicas learn together."""
    groups, gradients = scenario.outer_groups, scenario.gradients
    if groups == 1:
        return None
    outer = gradients.outer or Outer()
    codec = codecs.find(outer.codec).build()
    return OuterSettings(
        groups,
        gradients.every,
        outer.fragments,
        outer.overlap,
        learning_rate=float(outer.learning_rate),
        momentum=float(outer.momentum),
        mixing=float(outer.mixing),
        sent=lambda change: codec.decode(codec.encode(change)),
    )


def parts_of_programs(
    scenario: Scenario, programs: Sequence[Program], groups: Sequence[ReplicaGroup] = (), fabric: Fabric | None = None
) -> Parts:
    """The parts of a simulation of programs that came from elsewhere, one per pipeline rank, or per rank.

    Args:
        scenario: the machine, the layout, the sharing of links, steps, and what is recorded.
        programs: the programs; they wait for a barrier themselves, if there is one.
        groups: the groups of their collectives, each with its buckets.
        fabric: a wiring instead of the topology's.
    """
    times = times_of(scenario, fabric or fabric_of(scenario))
    reductions = Reductions(scenario.gradients, groups, times)
    nothing = (0,) * scenario.parallel.pipeline
    plan, costs, channels = Plan((), (), ()), Costs({}, (), nothing, nothing, (), ()), _channels(reductions)
    given = GivenPrograms(programs, scenario.parallel.pipeline)
    return Parts(times.fabric, times, plan, costs, reductions, given, TensorTraffic(), channels=channels)


def _slowdown(scenario: Scenario) -> Slowdown | None:
    """Of computation beside collectives; none at all if no speed is lost."""
    reached = scenario.efficiency
    if reached is None:
        return None
    slowdown = Slowdown.of(reached.slowed, reached.slowed_network, reached.slowed_memory)
    return slowdown if any(slowdown) or scenario.experts.multiprocessors else None


def _channels(reductions: Reductions) -> int | None:
    """The most rings that reduce the same gradients at once."""
    return max((len(processes.channels) for processes, _ in reductions.processes), default=0) or None


def plan_of(scenario: Source, fabric: Fabric | None = None) -> Plan:
    """The plan of the scenario's schedule; an empty one for an execution trace.

    Raises:
        Refusal: the schedule does not support these sizes.
        PlanError: the order in the file is impossible.
        UsageError: the order file cannot be read, or is for other sizes.
    """
    scenario = scenario if isinstance(scenario, Scenario) else load(scenario)
    if scenario.traced:
        return Plan((), (), ())
    fabric = fabric or fabric_of(scenario)
    ranks = costs_per_rank(CostBasis.of(scenario), times_of(scenario, fabric))
    return build_plan(scenario.schedule, scenario.parallel.layout, ranks, fabric)


def build_plan(
    schedule: Schedule,
    layout: Layout,
    ranks: RankCosts,
    fabric: Fabric,
    planned: Callable[[str, PlanRequest, tuple[Any, ...]], Plan] = schedules.planned,
) -> Plan:
    """The plan of a schedule, for these costs, with the errors of `plan_of`.

    It has as many micro-batches as the documents of `data` need, if there are any. Who makes many plans may keep some:
    `planned` takes the place of the function of that name.
    """
    if ranks.packed is not None:
        schedule = schedule.model_copy(update={"microbatches": ranks.packed.microbatches})
    p, stride = layout.sizes["pipeline"], layout.strides["pipeline"]
    if schedule.file is not None:
        return _plan_in_file(schedule.file, schedule, p)
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
    return planned(schedule.kind, request, schedule.arguments)


def _plan_in_file(file: Path, schedule: Schedule, ranks: int) -> Plan:
    text = read_text(file, "an order")
    options = schedule.options if isinstance(schedule.options, OrderFile) else OrderFile()
    plan = read_order(text, str(file), ranks, options.fused_time)
    if plan.microbatches != schedule.microbatches:
        raise UsageError(
            f"{file}: an order of {plan.microbatches} micro-batches; schedule.microbatches is {schedule.microbatches}"
        )
    chunks = max(plan.visits)
    if "chunks" in schedule.model_fields_set and schedule.chunks != chunks:
        raise UsageError(f"{file}: an order of {chunks} chunks per rank; schedule.chunks is {schedule.chunks}")
    return plan
