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

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hybrid_des.collectives import codecs
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.network.purpose import PARAMETERS
from hybrid_des.planning.pace import Pace
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.tasks import (
    Await,
    Compute,
    ComputeBeside,
    Fill,
    Gather,
    LayerCollective,
    Program,
    Segment,
    Task,
    Transfer,
    Turn,
)
from hybrid_des.scenario import Scenario
from hybrid_des.search.cheapest import CheapestTimes
from hybrid_des.search.screening import is_perturbed
from hybrid_des.search.ways import Ways

Key = tuple[int, str, int]  # receiver's place, the message's purpose, its tag
PARAMETER_STREAM: Key = (-1, "parameters", -1)  # waited for by ops, but not a message


def least_step(scenario: Scenario, parts: Parts) -> int:
    """The least picoseconds of a step; with several steps and no barrier, on average; 0 if it is perturbed."""
    if is_perturbed(scenario):
        return 0
    cheapest = CheapestTimes(parts.fabric, scenario.cluster.sharing)
    ways = Ways.of(scenario, cheapest)
    walks = [IdleWalk(scenario, parts, ways, cheapest)]
    if not ways.alike:
        walks.append(IdleWalk(scenario, parts, ways.slowest(), cheapest, alone=True))
    if scenario.steps > 1 and not scenario.barrier:  # ranks may run ahead: only computation bounds them
        return max(busy(program) for walk in walks for program in walk.programs)
    for walk in walks:
        walk.run()
    return max(end for walk in walks for end in walk.ends())


def busy(program: Program) -> int:
    """Picoseconds of computation in a program."""
    tasks = (*program.compute, *program.update)
    return sum(one.duration for task in tasks for one in task.work.segments if isinstance(one, Compute | ComputeBeside))


class _RankWalk:
    """The progress of one rank.

    Attributes:
        inside: the least time of a collective inside an op.
        now, streamed: the times that its compute stream and its parameter stream have reached.
        fills: stage → when each of its buckets was filled.
    """

    def __init__(self, program: Program, inside: Callable[[LayerCollective], int]) -> None:
        self.program = program
        self.inside = inside
        self.now = self.streamed = 0
        self.fills: dict[int, list[int]] = {}
        self.task = self.part = 0  # the next task, and the next segment in it
        self.gathered: dict[int, deque[int]] = {}
        self.turns: list[int] = []
        self.streaming = self.taken = 0  # the next segment of the parameter stream, the next turn that it takes

    def stream(self, gather: Mapping[Gather, int]) -> bool:
        """Run the parameter stream until it must wait for a turn; returns whether it advanced."""
        segments, before = self.program.parameters, self.streaming
        while self.streaming < len(segments):
            segment = segments[self.streaming]
            if isinstance(segment, Turn):
                if self.taken == len(self.turns):
                    break
                self.streamed = max(self.streamed, self.turns[self.taken])
                self.taken += 1
            elif isinstance(segment, Transfer | Gather):
                self.streamed += sum(segment.durations) if isinstance(segment, Transfer) else gather[segment]
                if isinstance(segment, Gather) or segment.purpose is PARAMETERS:
                    self.gathered.setdefault(segment.stage, deque()).append(self.streamed)
            self.streaming += 1
        return self.streaming > before

    def segment(self, segment: Segment) -> bool:
        """Run one segment of a task; returns False if it has to wait."""
        if isinstance(segment, Compute):
            self.now += segment.duration
        elif isinstance(segment, ComputeBeside):
            self.turns.append(self.now)
            self.now += segment.duration
            self.turns.append(self.now)
        elif isinstance(segment, Fill):
            self.fills.setdefault(segment.stage, []).append(self.now)
        elif isinstance(segment, Transfer):
            self.now += sum(segment.durations)
        elif isinstance(segment, LayerCollective):
            for at, stage in segment.fills:
                self.fills.setdefault(stage, []).append(self.now + at)
            self.now += max(segment.beside, segment.launch + self.inside(segment))
        elif isinstance(segment, Await):
            times = self.gathered.get(segment.stage)
            if not times:
                return False
            self.now = max(self.now, times.popleft())
        return True


class IdleWalk:
    """The walk of one pipeline through one step.

    Attributes:
        programs: one per pipeline rank.
    """

    def __init__(
        self, scenario: Scenario, parts: Parts, ways: Ways, cheapest: CheapestTimes, *, alone: bool = False
    ) -> None:
        """Begin at time 0.

        Args:
            scenario: the plan.
            parts: its parts.
            ways: the pipelines that are walked as one.
            cheapest: the least times of messages and collectives.
            alone: whether members of other pipelines may begin a collective before those of this one.
        """
        pipeline = parts.plan.pipeline
        self._ranks, self._message = ways.ranks[0], ways.message
        self._scenario = scenario
        self._cheapest = cheapest
        self._alone = alone
        self._messages = parts.traffic.messages
        self.programs = [parts.lowering.lower(place, Pace(ways.speed(place))) for place in range(pipeline)]
        self._walks = [_RankWalk(program, self._inside) for program in self.programs]
        self._arrived: dict[Key, int] = {}
        self._waiting: dict[Key, int] = {}
        self._ready = list(range(pipeline))
        self._groups = self._groups_of(parts)
        self._codec = codecs.find(scenario.gradients.codec).build()
        self._sixteen = codecs.find("bf16").build()
        self._updates = 0 if alone else min(_update(program) for program in self.programs)
        self._gathers = [self._gather_times(place) for place in range(pipeline)]

    def run(self) -> None:
        """Walk all ranks to the end of their last ops."""
        while self._ready:
            place = self._ready.pop()
            missing = self._advance(place)
            if missing is not None:
                self._waiting[missing] = place

    def ends(self) -> list[int]:
        """The earliest time at which each rank, or another member of its groups, completes the step."""
        return [self._end(place, walk) for place, walk in enumerate(self._walks)]

    def _advance(self, place: int) -> Key | None:
        walk = self._walks[place]
        walk.stream(self._gathers[place])
        tasks = walk.program.compute
        while walk.task < len(tasks):
            missing = self._run(place, walk, tasks[walk.task])
            if missing is PARAMETER_STREAM and walk.stream(self._gathers[place]):
                continue
            if missing is not None:
                return missing
            walk.task += 1
            walk.part = 0
        walk.stream(self._gathers[place])
        return None

    def _run(self, place: int, walk: _RankWalk, task: Task) -> Key | None:
        """Run a task; returns the key that it still waits for, if any."""
        ops, work = task.ops, task.work
        if not walk.part:
            start = walk.now
            for index, _, purpose, tag in work.inputs:
                key = (place, purpose.name, tag + ops[index].microbatch)
                arrival = self._arrived.get(key)
                if arrival is None:
                    return key
                start = max(start, arrival)
            walk.now = start
        segments = (*work.needs, *work.segments)
        while walk.part < len(segments):
            if not walk.segment(segments[walk.part]):
                return PARAMETER_STREAM
            walk.part += 1
        end = walk.now
        for output in work.outputs:
            arrival = end + self._message(place, output.peer, output.message.size)
            key = (output.peer, output.purpose.name, output.tag + ops[output.op].microbatch)
            self._arrived[key] = arrival
            if key in self._waiting:
                self._ready.append(self._waiting.pop(key))
            if work.confirms:
                walk.now = max(walk.now, arrival)
        return None

    def _inside(self, exchange: LayerCollective) -> int:
        """The least time of a collective inside an op, from its start; 0 if other members may have begun earlier."""
        if self._alone:
            return 0
        return self._cheapest.inside(exchange.algorithm, exchange.size, self._messages[exchange.axis])

    def _groups_of(self, parts: Parts) -> dict[tuple[int, int, int], tuple[ProcessGroup, Sequence[int]]]:
        """(Place, stage, part) → the group that its rank is a member of, and the elements of its buckets."""
        places = {rank: place for place, rank in enumerate(self._ranks)}
        return {
            (places[rank], group.stage, group.part): (processes, [bucket.elements for bucket in group.buckets])
            for processes, group in parts.reductions.processes
            for rank in group.ranks
            if rank in places
        }

    def _gather_times(self, place: int) -> dict[Gather, int]:
        """The least time of each gather of sharded parameters."""
        program, found = self.programs[place], {}
        for segment in (*program.gathers, *program.parameters):
            if isinstance(segment, Gather):
                processes, buckets = self._groups[place, segment.stage, segment.part]
                found[segment] = self._cheapest.hops(processes, buckets[segment.bucket], self._sixteen)
        return found

    def _end(self, place: int, walk: _RankWalk) -> int:
        """The end of a step; successive collectives of the same members form a chain."""
        program = walk.program
        chains = self._reduced(place, walk)
        own = max(walk.now, walk.streamed) + _update(program)
        begins: dict[tuple[int, ...], int] = {}
        hops: dict[tuple[int, ...], int] = {}
        for gather in program.gathers:
            processes, buckets = self._groups[place, gather.stage, gather.part]
            members = tuple(processes.ranks)
            begin = begins.get(members, max(own, chains.get(members, 0) + self._updates))
            begins[members] = begin + self._gathers[place][gather]
            if not self._alone:
                busiest = self._cheapest.busiest(processes, buckets[gather.bucket], self._sixteen)
                hops[members] = hops.get(members, own) + busiest
        return max([own, *hops.values(), *(end + self._updates for end in chains.values()), *begins.values()])

    def _reduced(self, place: int, walk: _RankWalk) -> dict[tuple[int, ...], int]:
        """Members → the earliest time at which one of them has reduced the last bucket of a rank's groups."""
        chains: dict[tuple[int, ...], int] = {}
        hops: dict[tuple[int, ...], int] = {}  # when the slowest hop of a ring has passed on its shards
        options = self._scenario.gradients.options
        stages = dict.fromkeys(segment.stage for segment in walk.program.gradient)
        for stage in stages:
            filled = iter(walk.fills.get(stage, ()))
            for part in (0, 1):
                if (place, stage, part) not in self._groups:
                    continue
                processes, buckets = self._groups[place, stage, part]
                members = tuple(processes.ranks)
                for elements in buckets:
                    begin = next(filled, walk.now)
                    took = self._cheapest.collective(processes, elements, self._codec, options)
                    chains[members] = max(chains.get(members, 0), begin) + took
                    if not self._alone:
                        busiest = self._cheapest.busiest(processes, elements, self._codec)
                        hops[members] = max(hops.get(members, 0), begin) + busiest
        return {members: max(end, hops.get(members, 0)) for members, end in chains.items()}


def _update(program: Program) -> int:
    """Picoseconds of the optimizer step."""
    return sum(one.duration for task in program.update for one in task.work.segments if isinstance(one, Compute))
