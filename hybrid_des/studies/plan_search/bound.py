"""A lower bound on the time of a step that no simulation can undercut: the plan's own programs on idle links.

    compute     F0 ── F1 ┈┈ B0 ──        an op begins when its rank is free and its messages have arrived on idle links
    gradient              ── ── ──       a bucket is reduced when it is filled, in the least time of its collective
    parameters  ── ──                    sharded parameters are gathered likewise
    step                           ─►    the last rank's optimizer, and its gathers

Every time found is that of the simulation or earlier: the same programs wait for the same events, and what the
simulation adds (other traffic on the links, other replicas that are late, computation slowed by communication) only
delays. If pipelines differ, in the speed of their nodes or in their routes, two are walked: the slowest, and one as
fast as the fastest in every way, before which no member of a group can begin a collective. Work per rank, the latest
start, the chain of one micro-batch and the gradients after the last weight gradient are all paths of such a walk.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.collectives import codecs
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.cost_model.cheapest_times import CheapestTimes
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.planning.expert_copies import COPIES
from hybrid_des.planning.fsdp import LAYERS
from hybrid_des.planning.pipeline_classes import PipelineClasses
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import BARRIER, EXCHANGE, MEETING, MESSAGE, PARAMETER, Collective, ComputeSpeed
from hybrid_des.scenario.definition import Scenario
from hybrid_des.shortcuts.least_remaining import is_perturbed


def least_step(scenario: Scenario, parts: Parts) -> int:
    """The least picoseconds of a step; with several steps and no barrier, on average; 0 if it is perturbed."""
    return bound_of(scenario, walks_of(scenario, parts))


def walks_of(scenario: Scenario, parts: Parts) -> list[IdleWalk]:
    """The walks that bound a step: of the fastest pipeline in every way, and of the slowest if they differ."""
    cheapest = CheapestTimes(parts.fabric, scenario.cluster.sharing)
    ways = PipelineClasses.of(scenario, cheapest)
    walks = [IdleWalk(scenario, parts, ways, cheapest)]
    if not ways.alike:
        walks.append(IdleWalk(scenario, parts, ways.slowest(), cheapest, alone=True))
    return walks


def bound_of(scenario: Scenario, walks: Sequence[IdleWalk]) -> int:
    """The same as `least_step`, from walks that have not begun."""
    if is_perturbed(scenario):
        return 0
    if scenario.steps > 1 and not scenario.barrier:  # ranks may run ahead: only computation bounds them
        return max(sum(program.durations) for walk in walks for program in walk.programs)
    return max(walk.end() for walk in walks)


class GroupClock:
    """The least times of successive collectives of the same members, one of whom ends no earlier.

    Attributes:
        reduced, gathered: the end of the last reduction, and of the last gather after the optimizer.
        reducing, gathering: when the slowest hop of a ring has passed on their shards.
    """

    reduced = reducing = gathered = gathering = 0

    @property
    def after_reductions(self) -> int:
        """When some member has reduced its gradients."""
        return max(self.reduced, self.reducing)


class IdleWalk:
    """The walk of one pipeline through one step.

    Attributes:
        programs: one per pipeline rank.
    """

    def __init__(
        self, scenario: Scenario, parts: Parts, ways: PipelineClasses, cheapest: CheapestTimes, *, alone: bool = False
    ) -> None:
        """Begin at time 0.

        Args:
            scenario: the plan.
            parts: its parts.
            ways: the pipelines that are walked as one.
            cheapest: the least times of messages and collectives.
            alone: whether members of other pipelines may begin a collective before those of this one.
        """
        pipeline = scenario.parallel.pipeline
        self._ranks, self._message = ways.ranks[0], ways.message
        self._options = scenario.gradients.options
        self._cheapest = cheapest
        self._alone = alone
        self._messages, self._streams = parts.traffic.messages, parts.traffic.streams
        self.programs = [parts.lowering.lower(place, ComputeSpeed(ways.speed(place))) for place in range(pipeline)]
        self._clocks: dict[tuple[int, tuple[int, ...]], GroupClock] = {}
        self._groups = self._groups_of(parts)
        self._codec = codecs.find(scenario.gradients.codec).build()
        self._sixteen = codecs.find("bf16").build()
        updates = [program.ops[OPTIMIZER].duration if OPTIMIZER in program.ops else 0 for program in self.programs]
        self._update = 0 if alone else min(updates)
        self._times: defaultdict[Hashable, deque[int]] = defaultdict(deque)  # of what is waited for: when it is there
        self._waiting: dict[Hashable, Iterator[Hashable]] = {}
        self._ready = [self._stream(place, name) for place, one in enumerate(self.programs) for name in one.streams]
        self._ends: list[int] = []

    def end(self) -> int:
        """Walk all streams; the earliest time at which a rank, or another member of its groups, completes the step."""
        while self._ready:
            walker = self._ready.pop()
            missing = next(walker, None)
            if missing is not None:
                self._waiting[missing] = walker
        clocks = self._clocks.values()
        ends = (time for c in clocks for time in (c.after_reductions + self._update, c.gathered, c.gathering))
        return max([*self._ends, *ends])

    def _stream(self, rank: int, stream: str) -> Iterator[Hashable]:
        """Walk a stream; yields what it waits for."""
        now, times = 0, self._times
        exchanged = 0  # the least time at which the stream of exchanges is free
        instruction: Any
        # what a GPU does, without a clock: a stream that needs what is not there yet is set aside until it is
        for call in self.programs[rank].streams[stream]:
            for instruction, awaited, takes, signals in call.block.effects:
                if awaited is MEETING:
                    now = self._collective(rank, stream, instruction, now)
                elif awaited is not None:
                    key = awaited, rank, instruction.signal(call.ops)
                    if key not in times:
                        yield key
                    now = max(now, times[key].popleft())
                    if not times[key]:
                        del times[key]
                now += takes
                if signals:
                    beside = signals[0] is EXCHANGE and instruction.group[0] in self._streams
                    there = self._delay(rank, instruction) + (max(now, exchanged) if beside else now)
                    exchanged = there if beside else exchanged
                    which = instruction.signal(call.ops)
                    for signal in signals:
                        self._happens((signal, instruction.receiver(signal, rank), which), there)
        self._ends.append(now)

    def _delay(self, rank: int, instruction: Any) -> int:
        """The least time until the signals that an instruction releases are there."""
        signal = instruction.releases[0]
        if signal is MESSAGE:
            return self._message(rank, instruction.peer, instruction.message.size)
        return self._inside(instruction.call) if signal is EXCHANGE else instruction.after or 0

    def _happens(self, key: Hashable, time: int) -> None:
        self._times[key].append(time)
        if key in self._waiting:
            self._ready.append(self._waiting.pop(key))

    def _inside(self, exchange: LayerCollective) -> int:
        """The least time of a collective inside an op, from its start; its launch if other members may be earlier."""
        if exchange.axis not in self._messages:
            return exchange.launch + exchange.alone
        if self._alone:
            return exchange.launch
        return exchange.launch + self._cheapest.inside(exchange.algorithm, exchange.size, self._messages[exchange.axis])

    def _collective(self, pipeline_rank: int, stream: str, collective: Collective, now: int) -> int:
        """The earliest time at which a stream proceeds after a collective that it reaches now."""
        purpose, stage, part = collective.group
        if collective.group == BARRIER or part == COPIES:  # what copies of experts send may take no time
            return now
        if collective.group == LAYERS:
            return now + int(sum(collective.call))
        processes, sizes, clock = self._groups[pipeline_rank, stage, part]
        reduces, elements = purpose == REDUCTION.name, sizes[collective.call]
        codec = self._codec if reduces else self._sixteen
        if stream == PARAMETER:
            return now + self._cheapest.hops(processes, elements, codec)
        busiest = 0 if self._alone else self._cheapest.busiest(processes, elements, codec)
        if reduces:
            took = self._cheapest.collective(processes, elements, codec, self._options)
            clock.reduced = max(clock.reduced, now) + took
            clock.reducing = max(clock.reducing, now) + busiest
        else:
            begin = clock.gathered or max(now, clock.after_reductions + self._update)
            clock.gathered = begin + self._cheapest.hops(processes, elements, codec)
            clock.gathering = (clock.gathering or now) + busiest
        return now

    def _groups_of(self, parts: Parts) -> dict[tuple[int, int, int], tuple[ProcessGroup, Sequence[int], GroupClock]]:
        """(Place, stage, part) → its rank's group, the elements of its buckets, and the clock of its members."""
        places = {rank: place for place, rank in enumerate(self._ranks)}
        return {
            (places[rank], group.stage, group.part): (
                processes,
                [bucket.elements for bucket in group.buckets],
                self._clocks.setdefault((places[rank], tuple(processes.ranks)), GroupClock()),
            )
            for processes, group in parts.reductions.processes
            for rank in group.ranks
            if rank in places
        }
