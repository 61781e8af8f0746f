"""The messages of a run as flows, and whether the collectives of tensor, context and expert ranks are replayed.

`flows_of` has everything that the ranks of a run send: layer collectives, stage-to-stage messages, and gradients.

The routes of a sample of replicas may represent those of all, so that a hundred thousand need not be examined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from itertools import chain, pairwise, permutations
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.cluster.connections import Connection, around, links_of
from hybrid_des.cluster.rings import Ring, channels
from hybrid_des.cluster.self_contention import AllFlows, Groups, replay_safe_axes, self_contending, simultaneous
from hybrid_des.collectives import codecs, nccl
from hybrid_des.collectives.buffer import Buffer, Channels
from hybrid_des.collectives.registration import Site
from hybrid_des.cost_model.stages import visits
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.units import PICOSECONDS_PER_SECOND, grouped_by

if TYPE_CHECKING:
    from hybrid_des.cluster.fabric import Fabric
    from hybrid_des.cost_model.rank_costs import Costs
    from hybrid_des.layout import Layout
    from hybrid_des.pipeline.plan import Plan
    from hybrid_des.planning.gradients import ReplicaGroup
    from hybrid_des.scenario.definition import Scenario
    from hybrid_des.scenario.sections.experts import ExpertTraffic


MOST_PAIRS = 64  # members of the largest group whose collective may use any pair of them


def flows_of(
    scenario: Scenario,
    plan: Plan,
    fabric: Fabric,
    layout: Layout,
    reduced: Sequence[ReplicaGroup],
    *,
    unequal: bool = False,
) -> AllFlows:
    """Collect the flows.

    Args:
        scenario: how gradients are reduced, and whether collectives overlap with the pipeline.
        plan: the pairs of pipeline ranks that exchange messages.
        fabric: the wiring.
        layout: the ranks, those of the scenario or of fewer replicas.
        reduced: the replica groups.
        unequal: whether replicas end at different times, so that gradients of some are sent while others compute.
    """
    ring, count = around_rings(scenario, fabric, reduced), scenario.gradients.channels
    together = scenario.barrier or scenario.steps == 1
    pipeline = list(_of_pipeline(plan, layout))
    known = ring or all(len(group.ranks) <= MOST_PAIRS for group in reduced)
    gradients: list[Connection] = []
    for group in _of_different_ranks(reduced) if known else ():
        what = f"gradients {group.stage} {group.part}"
        if ring:
            rings = channels(fabric, group.ranks, count, tuned=scenario.gradients.algorithm == "nccl")
            gradients += chain.from_iterable(around(one, what) for one in rings)
        else:
            gradients += [Connection(*pair, what) for pair in permutations(group.ranks, 2)]
    return AllFlows(
        layout,
        flows_of_layers(scenario, fabric, layout),
        pipeline=pipeline,
        gradients=gradients if known else None,
        overlapped=scenario.gradients.overlap or scenario.overlap.parameters or not together or unequal,
        pairs=_between_all(scenario, fabric),
    )


def _of_different_ranks(reduced: Sequence[ReplicaGroup]) -> Iterator[ReplicaGroup]:
    """The groups of parts of stages, of those that the same ranks reduce one: the flows of the others are the same."""
    by_part = grouped_by(reduced, lambda group: (group.stage, group.part))
    different = {tuple(tuple(group.ranks) for group in of_part): of_part for of_part in by_part.values()}
    return chain.from_iterable(different.values())


def flows_of_layers(scenario: Scenario, fabric: Fabric, layout: Layout) -> dict[str, list[list[Connection]]]:
    """Axis → the flows of each group of ranks that share layers along it."""
    once = scenario.experts.dispatcher == "per-node" and scenario.experts.channels is None
    pairs, of_library = _between_all(scenario, fabric), scenario.layer_collectives == "nccl"
    passed_on = of_library and scenario.parallel.context_method == "ring"
    counts = {"context": 1} if passed_on else {}  # by sends and receives, on no channels

    def gathered(ranks: Sequence[int]) -> Iterable[Connection]:
        """Which experts each token has, before it travels."""
        maps = scenario.experts.library == "hybridep"
        return _of_rings("expert", channels(fabric, ranks, None, tuned=of_library)) if maps else ()

    return {
        axis: [
            list(
                chain(_of_exchange(fabric, axis, ranks), gathered(ranks))
                if axis == "expert" and once
                else (Connection(*pair, axis) for pair in permutations(ranks, 2))
                if axis in pairs
                else _of_rings(axis, channels(fabric, ranks, counts.get(axis), tuned=of_library))
            )
            for ranks in each
        ]
        for axis, each in layout.shared.items()
    }


def _between_all(scenario: Scenario, fabric: Fabric) -> set[str]:
    """The axes along which any two members of a group may send to each other: trees of all-reduces are not followed."""
    parallel, axes = scenario.parallel, {"expert"}
    if parallel.context_method == "all-to-all":
        axes.add("context")
    if scenario.layer_collectives == "nccl" and not parallel.sequence:
        tensor = parallel.layout.shared.get("tensor", ())
        if fabric.linked or any(map(fabric.apart, tensor)):
            axes.add("tensor")
    return axes


def around_rings(scenario: Scenario, fabric: Fabric, reduced: Sequence[ReplicaGroup]) -> bool:
    """Whether all gradients go around rings."""
    gradients = scenario.gradients
    if gradients.algorithm != "nccl" or scenario.sharding == "zero-1":
        return gradients.algorithm in ("ring", "nccl")
    codec = codecs.find(gradients.codec).build()
    buckets: dict[tuple[int, ...], set[int]] = {}  # of all stages that the same ranks reduce
    for group in reduced:
        buckets.setdefault(tuple(group.ranks), set()).update(bucket.elements for bucket in group.buckets)
    for ranks, sizes in buckets.items():
        wiring = nccl.tuned(Site(fabric, ranks, ()), Channels(channels=gradients.channels))
        each = (wiring.choice("all-reduce", Buffer(elements, codec).bytes) for elements in sizes)
        if any(choice.algorithm != "ring" for choice in each):
            return False
    return True


def _of_pipeline(plan: Plan, layout: Layout) -> Iterator[Connection]:
    stride = layout.strides["pipeline"]
    steps = {(a, b) for path in plan.paths for (a, _), (b, _) in pairwise(path) if a != b}
    for start in (rank for rank in range(layout.ranks) if not layout.coordinate(rank, "pipeline")):
        for a, b in sorted(steps):
            yield Connection(start + a * stride, start + b * stride, "activation")
            yield Connection(start + b * stride, start + a * stride, "gradient")


def _of_exchange(fabric: Fabric, axis: str, ranks: Sequence[int]) -> Iterator[Connection]:
    """The flows of exchanges once per node: within nodes, and between ranks at the same place of theirs."""
    nodes = list(grouped_by(ranks, fabric.node_of.__getitem__).values())
    if len(set(map(len, nodes))) > 1:
        yield from (Connection(*pair, axis) for pair in permutations(ranks, 2))
        return
    for together in (*nodes, *zip(*nodes, strict=True)):
        yield from (Connection(*pair, axis) for pair in permutations(together, 2))


def _of_rings(axis: str, rings: Sequence[Ring]) -> Iterator[Connection]:
    for number, members in enumerate(rings):
        yield from around(members, f"{axis} {number}")


PERIODS = 3  # so that the neighbours of a block in the ring are two different blocks


def representative_replicas(
    scenario: Scenario, plan: Plan, fabric: Fabric, reduced: Sequence[ReplicaGroup], *, unequal: bool = False
) -> AllFlows | None:
    """The flows of few replicas, which share links as those of all do; None if no such sample is known.

    If consecutive replicas fill equal, periodic blocks of GPUs and gradients go around rings in that order, every block
    sends to and receives from its neighbours like every other, so that three periods represent any number.
    """
    layout, blocks = scenario.parallel.layout, fabric.blocks
    replicas, stride = layout.sizes["data"], layout.strides["data"]
    in_order = scenario.parallel.context == 1 or layout.strides["context"] < stride
    around = len(plan.paths) == 1 and not scenario.parallel.layout.apart and around_rings(scenario, fabric, reduced)
    if blocks is None or not (in_order and around) or replicas * stride % blocks.size:
        return None
    period = next(k for k in range(1, replicas + 1) if replicas % k == 0 and k * stride % blocks.size == 0)
    if PERIODS * period >= replicas:
        return None
    few = replace(layout, sizes={**layout.sizes, "data": PERIODS * period})
    groups = [_among(few, layout, group) for group in reduced]
    traffic = flows_of(scenario, plan, fabric, few, groups, unequal=unequal)
    of_layers = (flow for each in traffic.layers.values() for flows in each for flow in flows)
    links = links_of(fabric, chain(traffic.pipeline, traffic.gradients or (), of_layers))
    return None if any(blocks.of(link) is None for link in links) else traffic


def _among(few: Layout, layout: Layout, group: ReplicaGroup) -> ReplicaGroup:
    """The group of the same stage among few replicas."""
    ranks = few.group(few.rank(**layout.coordinates(group.ranks[0])), "context", "data")
    return replace(group, ranks=ranks, chunks=group.chunks[: len(ranks)])


MOST_EVENTS = 2**21  # a few seconds


EVENTS_OF_A_COLLECTIVE, EVENTS_OF_A_MESSAGE = 8, 2  # at most, per member and per message


class Load(NamedTuple):
    """Traffic of a group per step: numbers of collectives and messages, and bytes."""

    collectives: int = 0
    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class TensorTraffic:
    """How the collectives along each axis are simulated.

    Attributes:
        messages: axis → groups of ranks, for axes whose collectives are messages.
        replayed: axis → groups of ranks, for the other axes.
        met: the replayed axes whose groups begin together, since their members may reach a collective one by one.
        disturbed: the replayed axes that other traffic may delay.
        loads: (axis, pipeline rank, lane) → traffic of each group per step; lane 0 where all compute the same.
        unsettled: axes whose collectives depend on the order of requests, or end unevenly.
        flows: everything that ranks send; None if there are no collectives inside ops.
        streams: axes whose collectives run on a stream beside computation.
        recorded: axes whose collectives inside ops are recorded one by one: those of `messages`, `met` and `streams`.
    """

    messages: Mapping[str, Groups] = field(default_factory=dict)
    replayed: Mapping[str, Groups] = field(default_factory=dict)
    met: frozenset[str] = frozenset()
    disturbed: frozenset[str] = frozenset()
    loads: Mapping[tuple[str, int, int], Load] = field(default_factory=dict)
    unsettled: frozenset[str] = frozenset()
    flows: AllFlows | None = None
    streams: frozenset[str] = frozenset()
    recorded: frozenset[str] = frozenset()

    @property
    def started(self) -> frozenset[str]:
        """The axes whose collectives are instructions of ops, by messages or where members meet."""
        return self.met.union(self.messages)

    @property
    def replayed_bytes(self) -> dict[str, int]:
        """Axis → bytes that replayed collectives send per step."""
        return {
            axis: sum(self._load(axis, ranks[0]).bytes for ranks in groups) for axis, groups in self.replayed.items()
        }

    @property
    def sent(self) -> int:
        """Number of messages per step of collectives that are messages."""
        return sum(self._load(axis, ranks[0]).messages for axis, groups in self.messages.items() for ranks in groups)

    def delay(self, fabric: Fabric, carried: Mapping[str, int], steps: int) -> int:
        """Picoseconds by which a step may be longer than it is with replayed collectives.

        Members of a group wait for each other and for links shared with other traffic. A link delays a message by at
        most the time that all other traffic on it takes. For the links of a group, that is the traffic of others (and
        its own, if it may contend with itself); for the links of pipeline and gradient messages, all messages, unless
        these reach all members at the same time. The estimate sums the worst group and the worst message of every
        pipeline rank, and the worst gradient. It is not a proven bound (a chain of waits could pass through several
        groups of a pipeline rank), but actual delays are a small part of it.

        Args:
            fabric: the wiring.
            carried: link → bytes of all messages of the run, background traffic included.
            steps: training steps of the run.
        """
        if self.flows is None or not self.disturbed:
            return 0
        by_messages = {link: Fraction(size, steps) for link, size in carried.items()}
        longest = self._behind_others(fabric, by_messages)
        if not all(simultaneous(fabric, self.flows, axis) for axis in self.disturbed):
            longest += self._apart_from_each_other(fabric, by_messages)
        return ceil(longest * PICOSECONDS_PER_SECOND)

    def _behind_others(self, fabric: Fabric, by_messages: Mapping[str, Fraction]) -> Fraction:
        """Seconds by which collectives of the worst groups may wait for others on their links."""
        assert self.flows is not None
        on = self._on_links(fabric)
        worst: dict[int, Fraction] = {}
        for axis in self.disturbed:
            for number, ranks in enumerate(self.replayed[axis]):
                took = Fraction(0)
                for link in links_of(fabric, self.flows.layers[axis][number]):
                    sent = on.get(link, {}).items()
                    others = sum(size for group, size in sent if group != (axis, number) or axis in self.unsettled)
                    if (bandwidth := fabric.links[link].bandwidth) is not None:
                        took += (others + by_messages.get(link, 0)) / bandwidth
                pipeline_rank = self._place(ranks[0])
                worst[pipeline_rank] = max(worst.get(pipeline_rank, Fraction(0)), took)
        return sum(worst.values(), Fraction(0))

    def _apart_from_each_other(self, fabric: Fabric, by_messages: Mapping[str, Fraction]) -> Fraction:
        """Seconds by which the worst messages may be late for a single member."""
        assert self.flows is not None
        # of many thousands of flows, few load their links differently
        spent = cache(lambda loads: sum((size / bandwidth for size, bandwidth in loads), Fraction(0)))

        def takes(flow: Connection) -> Fraction:
            names = filter(by_messages.get, fabric.route(flow.sender, flow.receiver).links)
            loads = ((by_messages[name], fabric.links[name].bandwidth) for name in names)
            return spent(tuple(load for load in loads if load[1]))

        worst: dict[int, Fraction] = {}
        for flow in self.flows.pipeline:
            pipeline_rank = self._place(flow.receiver)
            worst[pipeline_rank] = max(worst.get(pipeline_rank, Fraction(0)), takes(flow))
        return sum(worst.values(), max(map(takes, self.flows.gradients or ()), default=Fraction(0)))

    def _load(self, axis: str, rank: int) -> Load:
        """The traffic of the group of a rank."""
        assert self.flows is not None
        lane = self.flows.layout.lane(rank)
        return self.loads[axis, self._place(rank), lane if (axis, 0, lane) in self.loads else 0]

    def _place(self, rank: int) -> int:
        assert self.flows is not None
        return self.flows.layout.coordinate(rank, "pipeline")

    def _on_links(self, fabric: Fabric) -> dict[str, dict[tuple[str, int], int]]:
        """Link → group → bytes of its replayed collectives per step; each of its flows sends an equal share."""
        assert self.flows is not None
        loads: dict[str, dict[tuple[str, int], int]] = {}
        for axis, groups in self.replayed.items():
            for number, ranks in enumerate(groups):
                flows = self.flows.layers[axis][number]
                each = -(-self._load(axis, ranks[0]).bytes // len(flows))
                for flow in flows:
                    for link in fabric.route(flow.sender, flow.receiver).links:
                        of_link = loads.setdefault(link, {})
                        of_link[axis, number] = of_link.get((axis, number), 0) + each
        return loads


def tensor_traffic(
    scenario: Scenario,
    plan: Plan,
    costs: Costs,
    fabric: Fabric,
    reduced: Sequence[ReplicaGroup],
    further: Sequence[Costs] = (),
) -> TensorTraffic:
    """Decide along which axes collectives are messages.

    If a sample of replicas represents all of them, only its routes are examined. Collectives of lanes that share
    documents for a while are no part of this: they are replayed on the lanes that share them.

    Args:
        scenario: what is simulated.
        plan: its ops.
        costs: those of the first step.
        fabric: the wiring.
        reduced: the groups whose gradients are reduced.
        further: the costs of further steps, if they differ.
    """
    dynamic = costs.lanes is not None and bool(costs.lanes.meetings)
    groups = {axis: each for axis, each in scenario.parallel.layout.shared.items() if not dynamic or axis != "context"}
    if scenario.model is None or not groups:
        return TensorTraffic()
    loads, uneven = loads_of(plan, costs, list(groups))
    for of_step in further:
        uneven |= loads_of(plan, of_step, list(groups))[1]
    unequal, layout = costs.lanes is not None, scenario.parallel.layout
    whole = partial(flows_of, scenario, plan, fabric, layout, reduced, unequal=unequal)
    few = None if scenario.background else representative_replicas(scenario, plan, fabric, reduced, unequal=unequal)
    flows = few or whole()
    unsettled = uneven | self_contending(fabric, flows)
    proven: set[str] = set()
    if _ranks_alike(scenario, plan) and not dynamic:
        proven = replay_safe_axes(fabric, flows) - unsettled - _contended_axes(scenario, fabric, flows)
    apart = frozenset({"expert"} & set(groups)) if unequal else frozenset[str]()  # whose members have other documents
    proven -= apart
    chosen = _as_messages(scenario, groups, loads, proven)
    others = [axis for axis in groups if axis not in chosen]
    disturbed = frozenset(axis for axis in others if axis not in proven)
    met = apart.difference(chosen)
    streams = frozenset({"expert"} & set(groups)) if _beside(scenario.experts, plan) else frozenset[str]()
    return TensorTraffic(
        messages={axis: groups[axis] for axis in chosen},
        replayed={axis: groups[axis] for axis in others},
        met=met,
        disturbed=disturbed,
        loads=loads,
        unsettled=frozenset(unsettled),
        flows=whole() if disturbed and few else flows,
        streams=streams,
        recorded=met.union(chosen, streams),
    )


def _beside(experts: ExpertTraffic, plan: Plan) -> bool:
    """Whether exchanges with experts have a stream of their own, and something runs beside them."""
    pairs = (len(form) > 1 for _, forms in plan.forms for form in forms)
    return experts.streams and (experts.delay_weight or any(pairs))


def _perturbed(scenario: Scenario) -> bool:
    return bool(scenario.slow or scenario.jitter)


def _ranks_alike(scenario: Scenario, plan: Plan) -> bool:
    """Whether members of a group may be taken to reach collectives together; no replay is proven exact otherwise."""
    alike = len({kind.speed for kind in scenario.cluster.kinds}) == 1 and plan.fused_time >= 1
    return alike and not (scenario.fsdp or _perturbed(scenario))


def _as_messages(
    scenario: Scenario, groups: Mapping[str, Groups], loads: Mapping[tuple[str, int, int], Load], proven: Set[str]
) -> list[str]:
    """The axes whose collectives are messages: by default those not proven exact as replay, if events are few."""
    mode = scenario.tensor_traffic
    if scenario.fsdp or mode == "replay":
        return []
    if mode == "messages":
        return list(groups)
    chosen = [] if _perturbed(scenario) else [axis for axis in groups if axis not in proven]
    return chosen if sum(_events(loads, axis, groups[axis]) for axis in chosen) <= MOST_EVENTS else []


def _contended_axes(scenario: Scenario, fabric: Fabric, flows: AllFlows) -> set[str]:
    """The axes whose collectives share links with background traffic."""
    if not scenario.background:
        return set()
    cluster = scenario.cluster
    whole = fabric_of(scenario.placed(range(cluster.gpus)))
    pairs = (Connection(*pair[:2]) for one in scenario.background for pair in one.pairs(cluster))
    used = links_of(whole, pairs)
    return {axis for axis, each in flows.layers.items() if not links_of(fabric, chain(*each)).isdisjoint(used)}


def _events(loads: Mapping[tuple[str, int, int], Load], axis: str, groups: Groups) -> int:
    """Approximate events per step for the collectives along an axis as messages; its groups have equal sizes."""
    of_axis, members = [load for (other, *_), load in loads.items() if other == axis], len(groups[0])
    each = (EVENTS_OF_A_COLLECTIVE * members * one.collectives + EVENTS_OF_A_MESSAGE * one.messages for one in of_axis)
    return sum(each) * len(groups) // len(of_axis)


def loads_of(plan: Plan, costs: Costs, axes: Sequence[str]) -> tuple[dict[tuple[str, int, int], Load], set[str]]:
    """Traffic of a group per axis, pipeline rank and lane in a step, and axes whose collectives end unevenly."""
    lanes = 1 if costs.lanes is None else costs.lanes.count
    sums = {(axis, rank, lane): [0, 0, 0] for axis in axes for rank in range(plan.pipeline) for lane in range(lanes)}
    uneven: set[str] = set()
    # by identity: most micro-batches cost what others do, and most layers are one object
    places = grouped_by(visits(plan, costs), lambda visit: (id(visit.costs), visit.position[0], visit.lane))
    for alike in places.values():
        times, visit = sum([visit.times for visit in alike]), alike[0]
        for layers in grouped_by(visit.costs.layers, id).values():
            for exchange in (one for way in layers[0].collectives for one in way if one.axis in axes):
                count = times * len(layers) * exchange.repeats
                load = sums[exchange.axis, visit.position[0], visit.lane]
                for number, more in enumerate((count, count * exchange.messages, count * exchange.sent)):
                    load[number] += more
                uneven |= set() if exchange.even else {exchange.axis}
    steps = 1 if costs.lanes is None else costs.lanes.steps
    return {key: Load(*(round(Fraction(total, steps)) for total in load)) for key, load in sums.items()}, uneven
