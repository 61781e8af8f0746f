"""Least times of communication, and the first bound on a plan, from its costs alone."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import MOST_SEGMENTS, Buffer, message_of
from hybrid_des.collectives.codecs import Codec
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.collectives.measured import Measured
from hybrid_des.errors import Refusal
from hybrid_des.folding.times import SIXTEEN_BITS, elements_of
from hybrid_des.models.stages import cut
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.rate import idle_time
from hybrid_des.network.symmetry import channels
from hybrid_des.options import Options
from hybrid_des.pipeline import Plan, PlanRequest, schedules
from hybrid_des.pipeline.plan import Kind
from hybrid_des.scenario import Scenario
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.costs import Costs, RankCosts
from hybrid_des.workload.stages import costs_of

# The least times of communication: messages on idle links, and collectives after the last member has begun.
#
#     message            latency + bytes / bandwidth of the slowest link: other traffic can only delay it
#     nccl               as a ring, where the tuner takes one with Simple, which is slower than links; else as below
#     ring               the last member's shard goes around: 2(n−1) hops in an all-reduce, n−1 in either of its phases;
#                        and as many shards pass the slowest hop, one after the other
#     measured           the time in the table
#     other all-reduces  the last member's gradients leave it, over all of its outgoing links; of a reduce-scatter, all
#                        but its own shard
#
# Some member ends no earlier than this after the last one has begun, and begins the next collective only then, so that
# the times of successive collectives of the same members are summed. Any other collective is assumed to take no time.


PHASES = {"ring": 2, "ring-reduce-scatter": 1, "ring-all-gather": 1}  # of n−1 hops
LIBRARY = {"nccl": ("ring", "all-reduce"), "nccl-reduce-scatter": ("ring-reduce-scatter", "reduce-scatter"),
           "nccl-all-gather": ("ring-all-gather", "all-gather")}  # fmt: skip
SENDING = frozenset(
    {
        "double-binary-tree",
        "nccl",
        "halving-doubling",
        "hierarchical",
        "in-switch",
        "parameter-server",
        "recursive-doubling",
    }
)
SCATTERING = frozenset({"halving-reduce-scatter", "hierarchical-reduce-scatter"})
LARGE = 2**20  # bytes
LARGEST = 64  # members whose routes to each other are examined; larger groups are assumed to take no time


def rings_of(group: ProcessGroup) -> Sequence[tuple[int, ...]]:
    """The members of a group, in the order of each of its channels."""
    if len(group.channels) > 1:
        return [tuple(ring.ranks) for ring, _ in group.rings]
    return [tuple(group.ranks[: group.size])]


def phases_of(group: ProcessGroup, elements: int, codec: Codec) -> int:
    """How often its shards go around rings at the latencies of routes, or slower; 0 if it is not known that they do."""
    if group.kind not in LIBRARY:
        return PHASES.get(group.kind, 0)
    kind, does = LIBRARY[group.kind]
    return PHASES[kind] if group.tuned.choice(does, Buffer(elements, codec).bytes) == ("ring", "Simple") else 0


class CheapestTimes:
    """The least times of messages and collectives on one fabric, in picoseconds.

    Args:
        fabric: the wiring.
        sharing: how links are shared; all but `fifo` may end a message a picosecond earlier, by rounding.
    """

    def __init__(self, fabric: Fabric, sharing: str) -> None:
        self._fabric = fabric
        self._rounding = 0 if sharing == "fifo" else 1
        self.message = cache(self._message)
        self._around = cache(self._once_around)
        self._inside = cache(self._inside_fastest)
        self._slowest = cache(self._slowest_hop)
        self._leaving = cache(self._leave)

    def _message(self, sender: int, receiver: int, size: int) -> int:
        return max(0, idle_time(self._fabric, sender, receiver, size) - self._rounding)

    def kind_of(self, sender: int, receiver: int) -> tuple[object, ...]:
        """The figures that determine how long a message takes: equal for equivalent routes."""
        route = self._fabric.route(sender, receiver)
        return (*route.latencies, *(self._fabric.links[name].bandwidth for name in route.links))

    def collective(self, group: ProcessGroup, elements: int, codec: Codec, options: Options | None = None) -> int:
        """The least time from the start of the last member to the end of some member."""
        if phases := phases_of(group, elements, codec):
            return phases * self.hops(group, elements, codec)
        if group.kind == "measured" and isinstance(options, Measured):
            return options.table.time(Buffer(elements, codec).bytes)
        if group.kind in SENDING:
            return self._leaving(tuple(group.ranks), group.size, int(elements * codec.bytes_per_element))
        if group.kind in SCATTERING:  # all but its own shard
            others = elements - -(-elements // group.size)
            return self._leaving(tuple(group.ranks), group.size, int(others * codec.bytes_per_element))
        return 0

    def inside(self, algorithm: str, size: int, groups: Sequence[Sequence[int]]) -> int:
        """A collective of a layer in the fastest of some groups, if no member begins earlier; `size` in bytes."""
        return self._inside(algorithm, size, tuple(map(tuple, groups)))

    def _inside_fastest(self, algorithm: str, size: int, groups: Sequence[tuple[int, ...]]) -> int:
        return min(self._in_group(algorithm, size, members) for members in groups)

    def _in_group(self, algorithm: str, size: int, members: tuple[int, ...]) -> int:
        codec = codecs.find(SIXTEEN_BITS).build()
        if algorithm == "all-to-all":
            return self.message(members[1], members[0], message_of(elements_of(size) // len(members), codec).size)
        rings = channels(self._fabric, members)
        shard = message_of(elements_of(size) // len(rings) // len(members), codec)
        return PHASES.get(algorithm, 0) * self._around(tuple(rings[0]), shard.size)

    def busiest(self, group: ProcessGroup, elements: int, codec: Codec) -> int:
        """How long the slowest hop of a ring is busy, if no member begins earlier; 0 if it is not a ring."""
        shards = phases_of(group, elements, codec) * (group.size - 1)
        if not shards:
            return 0
        channels = rings_of(group)
        sender, receiver, latency = self._slowest(channels[0])
        size = message_of(elements // group.size // len(channels), codec).size
        return shards * max(0, self.message(sender, receiver, size) - latency)

    def _slowest_hop(self, members: Sequence[int]) -> tuple[int, int, int]:
        """The hop of a ring that is slowest for a large shard, with its latency."""
        hops = [(rank, members[(i + 1) % len(members)]) for i, rank in enumerate(members)]
        timed = [(*hop, self._fabric.route(*hop).latency) for hop in hops]
        return max(timed, key=lambda hop: self.message(*hop[:2], LARGE) - hop[2])

    def hops(self, group: ProcessGroup, elements: int, codec: Codec) -> int:
        """The time of a shard's n−1 hops around the first of a group's rings, wherever it starts; 0 without rings."""
        if not phases_of(group, elements, codec):
            return 0
        channels = rings_of(group)
        return self._around(channels[0], message_of(elements // group.size // len(channels), codec).size)

    def _once_around(self, members: Sequence[int], size: int) -> int:
        """The time of a shard's n−1 hops around a ring, all but the slowest."""
        edges = [self.message(rank, members[(i + 1) % len(members)], size) for i, rank in enumerate(members)]
        return sum(edges) - max(edges)

    def _leave(self, ranks: Sequence[int], size: int, load: int) -> int:
        """The least time for `load` bytes to leave the member that sends fastest."""
        if len(ranks) > LARGEST:
            return 0
        fastest = Fraction(0)
        for rank in ranks[:size]:
            links = {self._fabric.route(rank, other).links[0] for other in ranks if other != rank}
            bandwidths = [self._fabric.links[name].bandwidth for name in links]
            if any(type(bandwidth) is not Fraction for bandwidth in bandwidths):  # infinite, or from a table
                return 0
            fastest = max(fastest, sum((one for one in bandwidths if one is not None), Fraction(0)))
        pieces = MOST_SEGMENTS * len(ranks)  # at most, each rounded to a whole picosecond by itself
        return max(0, int(load * PICOSECONDS_PER_SECOND / fastest) - pieces)


# A first bound on a plan's time and memory, from its costs alone, without an order of all its micro-batches.
#
#     time     of any rank: its earliest start (forwards of the stages before its own), its work, its tail (backwards of
#              those stages, unless its last op may be a weight gradient), and the optimizer
#     memory   of any rank: parameters, gradients and optimizer, and the backward of one micro-batch of its largest
# chunk
#
# The placement of stages, and whether backwards are split, are those of the schedule with few micro-batches. This is
# valid for the schedules of the package; a user-defined one may do anything, and has no first bound.


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
    """Whether ops may take less than their costs, so that no bound on time is known."""
    given = scenario.workload is not None and scenario.workload.durations is not None
    return bool(scenario.slow or scenario.jitter or given)


class _Way(NamedTuple):
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
    found = [0] * shape.plan.pipeline
    for (rank, _), cost in costs.stages.items():
        found[rank] = max(found[rank], cost.kept + cost.needed(backward))
    return found


def _time(scenario: Scenario, shape: _Shape, costs: Costs) -> int:
    plan = shape.plan
    speed = max(kind.speed for kind in scenario.cluster.kinds)
    fused = min(Fraction(1), getattr(scenario.schedule.options, "fused_time", Fraction(1)), plan.fused_time)
    alone = scenario.steps > 1 and not scenario.barrier  # ranks may begin the next step early: only work counts
    each = scenario.schedule.microbatches // len(plan.paths)
    alike = scenario.tensor_traffic == "replay"  # else the times of layers' collectives may differ from the costs
    ways: dict[int, list[_Way]] = {}
    for path in plan.paths:
        before = behind = 0
        for place in path:
            cost = costs.stages[place]
            counted = [one for one in cost.traffic if not alike or (one.axis == "expert" and scenario.experts.streams)]
            forward = cost.forward - sum(one.forward for one in counted)
            backward = cost.backward - sum(one.backward for one in counted)
            ways.setdefault(place[0], []).append(_Way(forward + backward, before, behind))
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
