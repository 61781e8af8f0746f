"""The least time that a run still takes from where its GPUs are: its own programs on idle links, read backwards.

    compute     ┈┈ B2 ── B3 ────────────── optimizer ─►│      an op: its computation, then what follows it, or what
    gradient       └──► ── ── ── ── ── ──┘             │      waits for its messages and events, whichever is longer
    parameters                             ── ── ── ──►│

From the end of a step to its beginning, each instruction is given the least time from there to the end of the step:
computation takes its duration or longer, a message its time on idle links or longer, what waits for an event begins no
earlier. So if a GPU has not begun something at `now`, its step does not end before `now` plus that time.

Of the collectives of a process group only this is known: some member ends no earlier than the least time after the
last of them has begun (`RingTimes`, `cheapest_times`). If all members are at one place of their pipelines, they have
the same program, so this member begins what follows no earlier, and is then not later than the last who begins it: a
chain of collectives on one stream takes the sum of their least times, whatever their groups, and so do the optimizer
and the gathers behind it. Other replicas, on nodes of the same kind or faster, count as the fastest of them. Where
members are at several places (a stage on two pipeline ranks), or nothing is known, a collective takes no time.

Only what is exact in this sense has a bound: not what is drawn or slowed (`is_perturbed`), programs from a profile,
steps that differ, or several steps without a barrier between them, sharing models of users, where messages could be
faster than on idle links. Queueing, computation beside collectives and background traffic only add to it.

The least times of collectives around rings (`RingTimes`) are, with what their library adds: from the last start to some
end.

    start   what a kernel waits before its first message
    hops    latency and bytes, at the pace of the channel or of the slowest link, whichever is slower
    queue   all messages of a ring pass each of its links one after the other
    copy    what follows the last message

Member m begins last. A message of step t left the member before the last one in step t−1, so some member's last message
is as many hops away from m's first one as there are steps: no link, channel or other traffic makes these shorter. From
the time at which the first of them reaches the link d hops further, s−d messages pass it, one after the other, if the
steps are s; the last one is the last of its receiver. Both are the least over all members m of what they say for m.

In hierarchical collectives, members of equal index on all nodes pass their shards around a ring, segment after segment.
A member goes on to the next segment, or phase, when its own is done, so these take the sum of their least times.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hybrid_des import collectives
from hybrid_des.cluster.channel import Pace
from hybrid_des.cluster.fabric import by_node
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.cluster.rate import rate_of
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer, message_of, shares_of
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.collectives.hierarchical import segments_of
from hybrid_des.cost_model.cheapest_times import LARGEST, LIBRARY, PHASES, CheapestTimes, rings_of
from hybrid_des.cost_model.collective_times import SIXTEEN_BITS
from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.planning.expert_copies import COPIES
from hybrid_des.planning.fsdp import LAYERS
from hybrid_des.planning.gradients import ReplicaGroup
from hybrid_des.planning.lowering import Lowering
from hybrid_des.planning.pipeline_classes import PipelineClasses
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import (
    BARRIER,
    COMPUTE,
    EVENT,
    EXCHANGE,
    MEETING,
    MESSAGE,
    OF_A_STREAM,
    Call,
    Collective,
    ComputeSpeed,
    Program,
    Record,
    Wait,
)
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.gpu import Gpu

SHARINGS = ("fifo", "fair", "priority", "priority-fair")


def is_perturbed(scenario: Scenario) -> bool:
    """Whether ops may take less than their costs (of the first step), so that no bound on time is known.

    Costs are those of the mean micro-batch where documents differ; that of a step may hold less.
    """
    given = scenario.workload is not None and scenario.workload.durations is not None
    varies = scenario.steps > 1 and scenario.experts.varies
    packed = packed_steps(scenario)
    return bool(scenario.slow or scenario.jitter or given or varies or (packed is not None and packed.varies))


@dataclass(frozen=True)
class LeastRemaining:
    """The least picoseconds from points in a step to its end.

    Attributes:
        steps: of the run.
        begins: pipeline rank → stream → from its beginning.
        calls: call → from its beginning, and from its end.
        collectives: call and collective → from its beginning, and from that of the next one in the call, or from the
            call's end.
        programs: one per pipeline rank.
        ranks: the global ranks of which this is known.
    """

    steps: int
    begins: Mapping[int, Mapping[str, int]]
    calls: Mapping[Call, tuple[int, int]]
    collectives: Mapping[tuple[Call, Collective | None], tuple[int, int]]
    programs: Sequence[Program]
    ranks: Container[int]

    @property
    def step(self) -> int:
        """Of a step, from when all begin it."""
        return max(begins[COMPUTE] for begins in self.begins.values())

    @property
    def run(self) -> int:
        """Of the run, from its beginning."""
        return max(max(begins.values()) for begins in self.begins.values()) + (self.steps - 1) * self.step

    def watched(self, gpus: Iterable[Gpu]) -> list[Gpu]:
        """Those whose programs are known, one of each."""
        programs = set(self.programs)
        known = (gpu for gpu in gpus if gpu.program in programs and gpu.rank in self.ranks)
        return list({gpu.program: gpu for gpu in known}.values())

    def ends_by(self, now: int, gpus: Sequence[Gpu]) -> int:
        """The picosecond before which a run does not end that goes on from where these GPUs are now."""
        latest = now
        for gpu in gpus:
            for at in gpu.positions.values():
                if at.call in self.calls:
                    whole, after = self.calls[at.call]
                    ends = max(at.since + whole, now + after)
                    whole, after = self.collectives.get((at.call, at.collective), (0, 0))
                    ends = max(ends, at.begun + whole, now + after)
                    latest = max(latest, ends + (self.steps - 1 - at.step) * self.step)
        return latest


def least_remaining(scenario: Scenario, parts: Parts, *, chosen: bool = True) -> LeastRemaining | None:
    """The least times of a scenario with these parts; None if no bound is known.

    If the algorithm of its gradients is not `chosen` yet, reductions and gathers take no time.
    """
    several = scenario.steps > 1 and not scenario.barrier
    exact = isinstance(parts.programs, Lowering) and parts.costs.lanes is None and scenario.cluster.service in SHARINGS
    if several or not exact or scenario.gradients.every > 1 or is_perturbed(scenario):
        return None
    walk = _Backwards(scenario, parts, chosen=chosen)
    return walk.remaining(scenario.steps) if walk.known else None


class _Backwards:
    """A walk of one pipeline through one step, from its end.

    Attributes:
        known: whether the programs are such that it can be walked.
    """

    def __init__(self, scenario: Scenario, parts: Parts, *, chosen: bool) -> None:
        pipeline = scenario.parallel.pipeline
        cheapest = CheapestTimes(parts.fabric, scenario.cluster.sharing)
        ways = _closed(PipelineClasses.of(scenario, cheapest), scenario, parts)
        self._message, self._ranks = ways.message, frozenset(rank for way in ways.ranks for rank in way)
        self._messages, self._streams = parts.traffic.messages, parts.traffic.streams
        self._programs = [parts.lowering.lower(rank, ComputeSpeed(ways.speed(rank))) for rank in range(pipeline)]
        groups = parts.reductions.processes if chosen else ()
        self._collectives = _Collectives(scenario, parts, ways, cheapest, groups)
        self.known = all(map(_is_paired, self._programs))
        self._times: dict[Hashable, int] = {}  # of what is waited for: the least time from there
        self._waiting: dict[Hashable, Iterator[Hashable]] = {}
        self._ready: list[Iterator[Hashable]] = []
        self._calls: dict[Call, tuple[int, int]] = {}
        self._collectives_in: dict[tuple[Call, Collective | None], tuple[int, int]] = {}
        self._begins: dict[int, dict[str, int]] = defaultdict(dict)

    def remaining(self, steps: int) -> LeastRemaining | None:
        """Walk all streams; None if some cannot be walked to their beginning."""
        each = [(rank, name) for rank, program in enumerate(self._programs) for name in program.streams]
        self._ready = [self._stream(*stream) for stream in each]
        while self._ready:
            walker = self._ready.pop()
            missing = next(walker, None)
            if missing is not None:
                self._waiting[missing] = walker
        if self._waiting:
            return None
        return LeastRemaining(steps, self._begins, self._calls, self._collectives_in, self._programs, self._ranks)

    def _stream(self, rank: int, stream: str) -> Iterator[Hashable]:
        """Walk a stream backwards; yields what it needs to know."""
        left, times = 0, self._times
        counts, own = Counter[Hashable](), dict[Hashable, int]()
        queued = 0  # from the beginning of the next exchange on the stream of exchanges
        instruction: Any
        for call in reversed(self._programs[rank].streams[stream]):
            begun = ends = left
            for instruction, awaited, takes, signals in reversed(call.block.effects):
                if signals:
                    named, needed = instruction.signal(call.ops), 0
                    for signal in signals:
                        if signal in OF_A_STREAM:
                            needed = max(needed, own.pop(named, 0)) if own else needed
                            continue
                        if signal is EVENT:
                            counts[named] += 1
                        key = instruction.receiver(signal, rank), named, counts[named]
                        if key not in times:
                            yield key
                        needed = max(needed, times[key])
                    beside = signals[0] is EXCHANGE and instruction.group[0] in self._streams
                    begins = self._delay(rank, instruction) + (max(needed, queued) if beside else needed)
                    left, queued = max(left, begins), begins if beside else queued
                left += takes
                if awaited is MEETING:
                    left += self._collectives.of(rank, instruction)
                    self._collectives_in.setdefault((call, instruction), (left, begun))
                    begun = left
                elif awaited in OF_A_STREAM:
                    own[instruction.signal(call.ops)] = left
                elif awaited is not None:
                    named = instruction.signal(call.ops)
                    if awaited is EVENT:
                        counts[named] += 1
                    self._happens((rank, named, counts[named]), left)
            self._calls.setdefault(call, (left, ends))
        self._begins[rank][stream] = left

    def _delay(self, rank: int, instruction: Any) -> int:
        """The least time until the signals that an instruction releases are there."""
        signal = instruction.releases[0]
        if signal is MESSAGE:
            return self._message(rank, instruction.peer, instruction.message.size)
        if signal is EVENT:
            return 0  # of events that are delayed, another may happen first: so none is
        exchange: LayerCollective = instruction.call
        return exchange.launch + (0 if exchange.axis in self._messages else exchange.alone)

    def _happens(self, key: Hashable, left: int) -> None:
        self._times[key] = left
        if key in self._waiting:
            self._ready.append(self._waiting.pop(key))


class _Collectives:
    """The least times of the collectives of each pipeline rank; those of other groups take no time."""

    def __init__(
        self,
        scenario: Scenario,
        parts: Parts,
        ways: PipelineClasses,
        cheapest: CheapestTimes,
        groups: Sequence[tuple[ProcessGroup, ReplicaGroup]],
    ) -> None:
        self._cheapest, self._options = cheapest, scenario.gradients.options
        self._rings = RingTimes(cheapest, self._options)
        self._gather = parts.reductions.gather
        self._codecs = codecs.find(scenario.gradients.codec).build(), codecs.find(SIXTEEN_BITS).build()
        self._groups: dict[tuple[int, int, int], list[tuple[ProcessGroup, ReplicaGroup]]] = defaultdict(list)
        self._known: dict[Hashable, int] = {}
        layout = scenario.parallel.layout
        places = layout.along("pipeline")
        simulated = {rank for way in ways.ranks for rank in way}
        held_by: dict[int, set[int]] = {}  # of the same ranks, which reduce several stages: comparing them takes long
        self._apart = set[tuple[int, int, int]]()
        for processes, group in groups:
            if group.ranks[0] in simulated:
                if id(group.ranks) not in held_by:
                    held_by[id(group.ranks)] = set(places[list(group.ranks)].tolist())
                holders = held_by[id(group.ranks)]
                for held in holders:
                    self._groups[held, group.stage, group.part].append((processes, group))
                    if len(holders) > 1:
                        self._apart.add((held, group.stage, group.part))

    def of(self, rank: int, collective: Collective) -> int:
        """The least time of a collective of a pipeline rank."""
        purpose, stage, part = collective.group
        if collective.group == LAYERS:
            return int(sum(collective.call))
        key = rank, stage, part
        if collective.group == BARRIER or part == COPIES or key in self._apart or key not in self._groups:
            return 0
        reduces = purpose == REDUCTION.name
        size = self._groups[key][0][1].buckets[collective.call].elements
        known = *key, reduces, size
        if known not in self._known:
            self._known[known] = min(
                self._in_group(processes, size, reduces=reduces) for processes, _ in self._groups[key]
            )
        return self._known[known]

    def _in_group(self, group: ProcessGroup, elements: int, *, reduces: bool) -> int:
        codec = self._codecs[0 if reduces else 1]
        around = self._rings.of(group.kind if reduces else self._gather, group, elements, codec)
        if around is not None:
            return around
        return self._cheapest.collective(group, elements, codec, self._options) if reduces else 0


def _closed(ways: PipelineClasses, scenario: Scenario, parts: Parts) -> PipelineClasses:
    """The pipelines of one tensor rank, if these reduce nothing with others: they have a bound of their own."""
    layout = scenario.parallel.layout
    few = replace(ways, ranks=[way for way in ways.ranks if not layout.coordinate(way[0], "tensor")])
    simulated = {rank for way in few.ranks for rank in way}
    # by identity: ranks of several stages are one object, and comparing them takes long
    for ranks in {id(group.ranks): group.ranks for _, group in parts.reductions.processes}.values():
        if 0 < sum(map(simulated.__contains__, ranks)) < len(ranks):
            return ways
    return few


def _is_paired(program: Program) -> bool:
    """Whether all steps are alike, and each event is recorded in one stream as often as waited for in one."""
    each = ({event: [*of.values()] for event, of in program.events(kind).items()} for kind in (Record, Wait))
    recorded, waited = each
    return not program.further and recorded == waited and all(len(times) == 1 for times in recorded.values())


# collectives around rings between nodes → the phases of each segment
HIERARCHICAL = {"hierarchical": 2, "hierarchical-reduce-scatter": 1, "hierarchical-all-gather": 1}
Paces = tuple[Pace, Pace]  # within nodes, and between them


class RingTimes:
    """The least times of collectives around rings on one fabric, in picoseconds.

    Args:
        cheapest: the least times of messages.
        options: of the collectives.
    """

    def __init__(self, cheapest: CheapestTimes, options: collectives.Given = None) -> None:
        self._cheapest, self._fabric, self._options = cheapest, cheapest.fabric, options
        self._around = cache(self._once_around)

    def of(self, kind: str, group: ProcessGroup, elements: int, codec: Codec) -> int | None:
        """The least time of a collective of this name in a group; None if it does not go around rings."""
        if kind in HIERARCHICAL:
            return self._between_nodes(kind, group.ranks, Buffer(elements, codec))
        ring, does = LIBRARY.get(kind, (kind, ""))
        if ring not in PHASES:
            return None
        before = after = 0
        paces = None
        if does:
            wiring, size = group.tuned, Buffer(elements, codec).bytes
            choice = wiring.choice(does, size)
            if choice.algorithm != "ring":
                return None
            late, after = wiring.waits(does, choice, size)
            before, paces = wiring.start(choice) + late, wiring.paces(choice, does)
        rings = rings_of(group)
        shard = message_of(shares_of(elements, group.size, len(rings))[0] // group.size, codec).size
        return before + self._around(rings[0], PHASES[ring] * (group.size - 1), shard, paces) + after

    def _between_nodes(self, kind: str, ranks: Sequence[int], buffer: Buffer) -> int | None:
        """The least time of rings between nodes; None if all members are on one."""
        on = [*by_node(self._fabric.node_of[rank] for rank in ranks).values()]
        width, phases = min(map(len, on)), HIERARCHICAL[kind]
        if len(on) == 1:
            return None
        (options,) = collectives.find(kind).arguments(self._options)
        segments = segments_of(buffer, width, options, phases == 1)
        shard = message_of(buffer.elements // segments // width // len(on), buffer.codec).size
        rings = (tuple(ranks[places[index]] for places in on) for index in range(width))
        return segments * phases * min(self._around(ring, len(on) - 1, shard, None) for ring in rings)

    def _once_around(self, members: Sequence[int], steps: int, size: int, paces: Paces | None) -> int:
        """The least time of so many steps around a ring, whoever of the members begins last."""
        pairs = [*map(self._cheapest.like, zip(members, (*members[1:], members[0]), strict=True))]
        known = {pair: self._hop(*pair, size, paces) for pair in dict.fromkeys(pairs)}
        hops = [known[pair] for pair in pairs]
        if len(set(hops)) == 1:
            return steps * hops[0][0]
        if len(hops) > LARGEST:
            times = [time for time, _ in hops]
            return steps // (len(hops) - 1) * (sum(times) - max(times))
        return min(_queued([hops[(first + step) % len(hops)] for step in range(steps)]) for first in range(len(hops)))

    def _hop(self, sender: int, receiver: int, size: int, paces: Paces | None) -> tuple[int, int]:
        """The time of a message on idle links, and how long it occupies the slowest of them."""
        fabric = self._fabric
        route = fabric.route(sender, receiver)
        slowest = busy = max(rate_of(fabric.links[name].bandwidth)[size] for name in route.links)
        latency = route.latency
        if paces is not None:
            pace = paces[fabric.node_of[sender] != fabric.node_of[receiver]]
            slowest, latency = max(busy, rate_of(pace.bandwidth)[size]), sum(pace.latencies(route))
        rounding = self._cheapest.rounding
        return max(0, latency + slowest - rounding), max(0, busy - rounding)


def _queued(hops: Sequence[tuple[int, int]]) -> int:
    """The least time from a first message until that of the last step arrives, by the time and queue of each hop."""
    reached = longest = 0
    for left, (time, busy) in zip(range(len(hops) - 1, -1, -1), hops, strict=True):
        longest = max(longest, reached + left * busy + time)
        reached += time
    return longest
