"""The programs of ranks, and perturbations of a run (`slow`, `jitter`): the speeds of ranks, the schedules of links.

A permanent slowdown is a slower GPU (`ComputeSpeed`) or a slower link (`planning.wiring`), as if the machine were built
that way. A slowdown for an interval, a slow stage, jitter and noise need a pace that varies. Tensor and context ranks
wait for each other inside every op: they run at the pace of the slowest, and share their jitter and noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from math import prod
from operator import mul
from typing import Any

from hybrid_des import jitter
from hybrid_des.engine.timetable import Amount, Interval, Noise, PiecewiseRate
from hybrid_des.errors import UsageError
from hybrid_des.jitter import Draws, Sample, stream
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.link import LinkSchedule
from hybrid_des.pipeline.plan import Op
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import ASIDE, Call, Compute, ComputeSpeed, Program
from hybrid_des.scenario import Scenario
from hybrid_des.scenario.sections.perturbations import Slow
from hybrid_des.units import to_picoseconds

# The pace of a GPU that varies: every op has its own factor, and its time is integrated over a timetable.
#
# The factor of an op is determined when it begins; each part of its computation is then integrated from the time at
# which it starts, and knows its place in the whole, so that the parts add up to it.


UPDATE = "optimizer"
Factor = Callable[[str, int, int, int], float]  # of (kind, chunk, step, micro-batch); kind is F, B, W or UPDATE


@dataclass(frozen=True)
class Variation:
    """Variation of the pace of one rank.

    Attributes:
        table: the factor of its speed over time.
        stages: the same, of stages that are slow.
        factors: of durations; they are multiplied.
        usual: picoseconds of an op at speed 1, as it was lowered.
        times: the same in a step, if it differs from op to op.
    """

    table: PiecewiseRate
    stages: Mapping[int, PiecewiseRate]
    factors: Sequence[Factor]
    usual: Callable[[Op], int]
    times: Callable[[Op, int], int] | None = None


class VaryingSpeed:
    """The pace of one rank: the duration of its current op.

    Attributes:
        table: the factor of its speed over time.
    """

    def __init__(self, variation: Variation) -> None:
        self.table = variation.table
        self._variation = variation
        self._at: tuple[int, int] | None = None
        self._tables: dict[Any, PiecewiseRate] = {}
        self._usual = 1  # picoseconds of the op at speed 1, as it was lowered …
        self._taken: int | float = 1  # … and those that it takes in this step

    @property
    def scale(self) -> float | Fraction:
        """The duration of the op divided by its usual duration."""
        return Fraction(self._taken, self._usual) if isinstance(self._taken, int) else self._taken / self._usual

    def lasts(self, step: int, call: Call, one: Compute, now: int) -> int:
        """Duration in picoseconds of computation that begins now; pauses between ops are the host's."""
        if call.number == ASIDE:
            return one.duration
        self._begin(step, call)
        if one.whole is None:
            return self.end(now, Fraction(self.scale) * one.duration) - now
        factor, after = self.table.constant, one.before + one.duration
        if factor is None:
            return self.end(now, Fraction(self.scale) * one.duration) - now
        if factor == 1 and not one.before and after == one.whole == self._usual:
            return round(self._taken)
        scale = self.scale / factor
        return round(after * scale) - round(one.before * scale)

    def end(self, start: int, work: Amount) -> int:
        """When this much work that begins at `start` is done, to the nearest picosecond."""
        return self.table.end(start, work)

    def done(self, start: int, end: int) -> Amount:
        """The work done from `start` until `end`."""
        return self.table.work(start, end)

    def _begin(self, step: int, call: Call) -> None:
        """Find the duration of the op that begins, unless it has already begun."""
        if self._at == (step, call.number):
            return
        self._at = step, call.number
        variation, ops = self._variation, call.ops
        usual = [variation.usual(op) for op in ops]
        times = usual if variation.times is None else [variation.times(op, step) for op in ops]
        self._usual = sum(usual) or 1
        if not ops:
            self._taken = self._factor(UPDATE, -1, step, 0)
        elif variation.factors:
            factors = [self._factor(op.kind, op.chunk, step, op.microbatch) for op in ops]
            self._taken = sum(map(mul, times, factors))
        else:
            self._taken = sum(times)
        if variation.stages:
            self.table = self._table(call.block.stages, usual)

    def _factor(self, kind: str, chunk: int, step: int, microbatch: int) -> float:
        kind = "B" if kind == "I" else kind  # a split backward has the factor of the whole
        return prod(factor(kind, chunk, step, microbatch) for factor in self._variation.factors)

    def _table(self, stages: Sequence[int], usual: Sequence[int]) -> PiecewiseRate:
        """The timetable of an op: that of its rank with those of its stages, by their shares of a fused pair."""
        variation = self._variation
        key = (*stages, *usual)
        if key not in self._tables:
            tables = [variation.stages.get(stage, PiecewiseRate()) for stage in stages]
            total = sum(usual)
            shares = [Fraction(time, total) if total else Fraction(1, len(usual)) for time in usual]

            def both(factors: Sequence[Fraction]) -> Fraction:
                slowed = sum((share / f for share, f in zip(shares, factors[1:], strict=True)), start=Fraction(0))
                return factors[0] / slowed if stages else factors[0]

            self._tables[key] = PiecewiseRate.combined([variation.table, *tables], both)
        return self._tables[key]


@dataclass(frozen=True)
class DurationOverride:
    """Other durations of ops, which no scenario key can express.

    Attributes:
        duration: (global rank, call, one of its durations) → picoseconds.
        alike: global rank → a key that is equal for ranks whose durations are changed in the same way.
    """

    duration: Callable[[int, Call, int], int]
    alike: Callable[[int], object]

    def after(self, before: DurationOverride) -> DurationOverride:
        """This change on top of another one."""
        return DurationOverride(
            lambda rank, call, took: self.duration(rank, call, before.duration(rank, call, took)),
            lambda rank: (before.alike(rank), self.alike(rank)),
        )


def schedules_of(slow: Sequence[Slow], fabric: Fabric) -> dict[str, LinkSchedule]:
    """Link → its slowdowns for an interval and, if its times are measured, its permanent factors.

    Raises:
        UsageError: a user-defined wiring has no such link.
    """
    spells: dict[str, list[Interval]] = {}
    more: dict[str, list[tuple[Interval, int]]] = {}
    for one in slow:
        names = [name for name in one.links if name in fabric.links]
        if one.links and not names:
            raise UsageError(f"slow: this wiring has no {' '.join(map(str, one.target))}")
        for name in names:
            if not one.permanent:
                more.setdefault(name, []).append((one.spell, to_picoseconds(one.latency)))
            if not one.permanent or not isinstance(fabric.links[name].bandwidth, Fraction):
                spells.setdefault(name, []).append(one.spell)
    return {name: LinkSchedule(PiecewiseRate.of(each), _latencies(more.get(name, ()))) for name, each in spells.items()}


def _latencies(spells: Iterable[tuple[Interval, int]]) -> tuple[tuple[int, int], ...]:
    """(time, sum of the latencies of the spells that are active from then on)."""
    spells = list(spells)
    starts = sorted({0, *(s.start for s, _ in spells), *(s.until for s, _ in spells if s.until is not None)})
    return tuple(
        (at, sum(extra for s, extra in spells if s.start <= at and (s.until is None or at < s.until))) for at in starts
    )


class Programs:
    """The programs that ranks run, each lowered when it is first requested, and how their speeds vary.

    Equal ranks share one.

    Args:
        scenario: the perturbations of ranks.
        parts: the parts whose programs they are.
        retime: other durations of ops.
    """

    def __init__(self, scenario: Scenario, parts: Parts, retime: DurationOverride | None = None) -> None:
        self._scenario, self._source, self._durations, self._retime = scenario, parts.programs, parts.durations, retime
        self._perturbed = bool(scenario.slow or scenario.jitter or parts.durations)
        self._alike: dict[tuple[int, int], Program] = {}
        self._known: dict[tuple[int, ComputeSpeed], Program] = {}

    def of(self, rank: int, place: int, speed: Fraction) -> tuple[Program, VaryingSpeed | None]:
        """The program of a rank on a GPU of this speed, and its varying pace, if it varies."""
        place = self._own(rank, place)
        if not self._perturbed and self._retime is None:
            alike = place, id(speed)  # the node's own fraction; hashing it would take longer than all else here
            if alike not in self._alike:
                self._alike[alike] = self._source.lower(place, ComputeSpeed(speed))
            return self._alike[alike], None
        usual = ComputeSpeed(speed * self._speed(rank)) if self._perturbed else ComputeSpeed(speed)
        varying = self._pace(rank) if self._perturbed else None
        key = place, usual
        if key not in self._known:
            self._known[key] = self._source.lower(place, usual)
        program = self._known[key]
        return program if self._retime is None else program.lasting(partial(self._retime.duration, rank)), varying

    def _own(self, rank: int, place: int) -> int:
        """The number of a rank's program: that of its pipeline rank, unless each rank has its own."""
        return rank if self._source.each else place

    def _speed(self, rank: int) -> Fraction:
        """The permanent factor of a rank's speed."""
        constant = self._table(rank).constant
        return Fraction(1) if constant is None else constant

    def _pace(self, rank: int) -> VaryingSpeed | None:
        """The varying pace of a rank; None if its pace is constant."""
        table, noise = self._table(rank), self._noise(rank)
        held = self._source.chunks(self._own(rank, self._place(rank))) if self._stages else ()
        stages = {stage: self._stages[stage] for stage in held if stage in self._stages}
        factors = [self._factor(rank, *source) for source in self._sources]
        times = self._times(rank)
        if table.constant is not None and not (stages or factors or noise or times):
            return None
        table = PiecewiseRate() if table.constant is not None else table
        usual = self._source.usual(self._own(rank, self._place(rank)))
        return VaryingSpeed(Variation(replace(table, noise=noise), stages, factors, usual, times))

    def _place(self, rank: int) -> int:
        return self._scenario.parallel.layout.coordinate(rank, "pipeline")

    def _times(self, rank: int) -> Callable[[Op, int], int] | None:
        if self._durations is None:
            return None
        return self._durations.of(*self._replica_and_place(rank))

    def _table(self, rank: int) -> PiecewiseRate:
        """The factor of a rank's speed over time: that of the slowest rank of its tensor and context group."""
        alike = self._scenario.parallel.layout.group(rank, "tensor", "context") if self._spells else [rank]
        placement = self._scenario.cluster.placement
        tables = [PiecewiseRate.of(self._spells.get(placement[one], ())) for one in alike]
        return tables[0] if len(tables) == 1 else PiecewiseRate.combined(tables, min)

    @cached_property
    def _spells(self) -> Mapping[int, Sequence[Interval]]:
        """GPU → the spells in which it is slow, alone or with its node."""
        spells: dict[int, list[Interval]] = {}
        nodes = self._scenario.cluster.spec.node_of
        for one in self._scenario.slow:
            if one.gpu is not None:
                spells.setdefault(one.gpu, []).append(one.spell)
            for gpu in (gpu for gpu, node in enumerate(nodes) if node == one.node):
                spells.setdefault(gpu, []).append(one.spell)
        return spells

    @cached_property
    def _stages(self) -> Mapping[int, PiecewiseRate]:
        """Slow stage → its factor over time.

        Raises:
            UsageError: the plan has no such stage.
        """
        spells: dict[int, list[Interval]] = {}
        for one in self._scenario.slow:
            if one.stage is not None:
                spells.setdefault(one.stage, []).append(one.spell)
        places = range(self._scenario.parallel.pipeline if spells else 0)
        last = max((stage for place in places for stage in self._source.chunks(place)), default=0)
        for stage in spells:
            if stage > last:
                raise UsageError(f"slow: there is no stage {stage}; the schedule has stages 0 … {last}")
        return {stage: PiecewiseRate.of(each) for stage, each in spells.items()}

    def _noise(self, rank: int) -> Noise | None:
        for one in self._scenario.jitter:
            if one.noise is not None:
                period, detour = to_picoseconds(one.noise.period), to_picoseconds(one.noise.detour)
                phase = int(stream(self._scenario.seed, "noise", *self._replica_and_place(rank)).random() * period)
                return Noise(period, detour, phase)
        return None

    def _replica_and_place(self, rank: int) -> tuple[int, int]:
        """The key of random streams: a new replica changes no other's; tensor and context ranks share them."""
        here = self._scenario.parallel.layout.coordinates(rank)
        return self._scenario.first_replica + here["data"], here["pipeline"]

    @cached_property
    def _sources(self) -> Sequence[tuple[str, Sample, tuple[str | int, ...]]]:
        """Level, distribution and key of the streams of each source of jitter."""
        found = []
        like = Counter[tuple[str, str]]()
        for one in self._scenario.jitter:
            if one.distribution is not None:
                name = one.distribution, one.level
                found.append((one.level, jitter.find(one.distribution).build(*one.arguments), (*name, like[name])))
                like[name] += 1
        return found

    def _factor(self, rank: int, level: str, sample: Sample, key: tuple[str | int, ...]) -> Factor:
        """One source's factors of the ops of a rank: by index, in separate streams."""
        seed, microbatches, place = self._scenario.seed, self._source.microbatches, self._replica_and_place(rank)

        @cache
        def draws(*more: str | int) -> Draws:
            return Draws(stream(seed, "jitter", *key, *place, *more), sample)

        if level == "rank":
            return lambda kind, chunk, step, microbatch: draws().at(0)
        if level == "rank-step":
            return lambda kind, chunk, step, microbatch: draws().at(step)
        return lambda kind, chunk, step, microbatch: draws(kind, chunk + 1).at(step * microbatches + microbatch)
