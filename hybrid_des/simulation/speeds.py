"""The programs of ranks, and perturbations of a run (`slow`, `jitter`): the speeds of ranks, the schedules of links.

A permanent slowdown is a slower GPU (`ComputeSpeed`) or a slower link (`planning.wiring`), as if the machine were built
that way. A slowdown for an interval, a slow stage, jitter and noise need a pace that varies. Tensor and context ranks
wait for each other inside every op: they run at the pace of the slowest, and share their jitter and noise.

Where a pace varies, every op has its own factor, and its time is integrated over a timetable. The factor of an op is
determined when it begins; each part of its computation is then integrated from the time at which it starts, and knows
its place in the whole, so that the parts add up to it.
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

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.link import LinkSchedule
from hybrid_des.engine.timetable import Amount, Interval, Noise, PiecewiseRate
from hybrid_des.errors import UsageError
from hybrid_des.pipeline.plan import Op
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import ASIDE, Call, Compute, ComputeSpeed, Program
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.perturbations import Slow
from hybrid_des.units import collected, to_picoseconds
from hybrid_des.workload import distributions
from hybrid_des.workload.distributions import Sample
from hybrid_des.workload.draws import Draws, stream

UPDATE = "optimizer"


Factor = Callable[[str, int, int, int], float]  # of (kind, chunk, step, micro-batch); kind is F, B, W or UPDATE


@dataclass(frozen=True)
class Variation:
    """Variation of the pace of one rank.

    Attributes:
        table: the factor of its speed over time.
        stages: the same, of stages that are slow.
        factors: of durations; they are multiplied.
        nominal: picoseconds of an op in a step at speed 1, as it was lowered.
        times: the same in a step, if it differs from op to op.
    """

    table: PiecewiseRate
    stages: Mapping[int, PiecewiseRate]
    factors: Sequence[Factor]
    nominal: Callable[[Op, int], int]
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
        self._nominal = 1  # picoseconds of the op at speed 1, as it was lowered …
        self._taken: int | float = 1  # … and those that it takes in this step

    @property
    def scale(self) -> float | Fraction:
        """The duration of the op divided by its nominal duration."""
        return Fraction(self._taken, self._nominal) if isinstance(self._taken, int) else self._taken / self._nominal

    def duration(self, step: int, call: Call, compute: Compute, now: int) -> int:
        """Duration in picoseconds of computation that begins now; pauses between ops are the host's."""
        if call.number == ASIDE:
            return compute.duration
        self._begin(step, call)
        if compute.whole is None:
            return self.end(now, Fraction(self.scale) * compute.duration) - now
        factor, after = self.table.constant, compute.before + compute.duration
        if factor is None:
            return self.end(now, Fraction(self.scale) * compute.duration) - now
        if factor == 1 and not compute.before and after == compute.whole == self._nominal:
            return round(self._taken)
        scale = self.scale / factor
        return round(after * scale) - round(compute.before * scale)

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
        nominal = [variation.nominal(op, step) for op in ops]
        times = nominal if variation.times is None else [variation.times(op, step) for op in ops]
        self._nominal = sum(nominal) or 1
        if not ops:
            self._taken = self._factor(UPDATE, -1, step, 0)
        elif variation.factors:
            factors = [self._factor(op.kind, op.chunk, step, op.microbatch) for op in ops]
            self._taken = sum(map(mul, times, factors))
        else:
            self._taken = sum(times)
        if variation.stages:
            self.table = self._table(call.block.stages, nominal)

    def _factor(self, kind: str, chunk: int, step: int, microbatch: int) -> float:
        kind = "B" if kind == "I" else kind  # a split backward has the factor of the whole
        return prod(factor(kind, chunk, step, microbatch) for factor in self._variation.factors)

    def _table(self, stages: Sequence[int], nominal: Sequence[int]) -> PiecewiseRate:
        """The timetable of an op: that of its rank with those of its stages, by their shares of a fused pair."""
        variation = self._variation
        key = (*stages, *nominal)
        if key not in self._tables:
            tables = [variation.stages.get(stage, PiecewiseRate()) for stage in stages]
            total = sum(nominal)
            shares = [Fraction(time, total) if total else Fraction(1, len(nominal)) for time in nominal]

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
        each: whether the durations of calls that share a block and the kinds of their ops may differ.
    """

    duration: Callable[[int, Call, int], int]
    alike: Callable[[int], object]
    each: bool = False

    def after(self, before: DurationOverride) -> DurationOverride:
        """This change on top of another one."""
        return DurationOverride(
            lambda rank, call, took: self.duration(rank, call, before.duration(rank, call, took)),
            lambda rank: (before.alike(rank), self.alike(rank)),
            self.each or before.each,
        )


def schedules_of(slow: Sequence[Slow], fabric: Fabric) -> dict[str, LinkSchedule]:
    """Link → its slowdowns for an interval and, if its times are measured, its permanent factors.

    Raises:
        UsageError: a user-defined wiring has no such link.
    """
    spells: dict[str, list[Interval]] = {}
    more: dict[str, list[tuple[Interval, int]]] = {}
    for entry in slow:
        names = [name for name in entry.links if name in fabric.links]
        if entry.links and not names:
            raise UsageError(f"slow: this wiring has no {' '.join(map(str, entry.target))}")
        for name in names:
            if not entry.permanent:
                more.setdefault(name, []).append((entry.spell, to_picoseconds(entry.latency)))
            if not entry.permanent or not isinstance(fabric.links[name].bandwidth, Fraction):
                spells.setdefault(name, []).append(entry.spell)
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
        self._by_lane = parts.costs.lanes is not None
        self._alike: dict[tuple[int, int, int], Program] = {}
        self._known: dict[tuple[int, int, ComputeSpeed], Program] = {}
        self._retimed: dict[tuple[object, ...], Program] = {}

    def of(self, rank: int, pipeline_rank: int, speed: Fraction) -> tuple[Program, VaryingSpeed | None]:
        """The program of a rank on a GPU of this speed, and its varying pace, if it varies."""
        pipeline_rank, lane = self._own(rank, pipeline_rank), self._lane(rank)
        if not self._perturbed and self._retime is None:
            # the node's own fraction; hashing it would take longer than all else here
            alike = pipeline_rank, lane, id(speed)
            if alike not in self._alike:
                self._alike[alike] = self._source.lower(pipeline_rank, ComputeSpeed(speed), lane)
            return self._alike[alike], None
        nominal = ComputeSpeed(speed * self._speed(rank)) if self._perturbed else ComputeSpeed(speed)
        varying = self._pace(rank) if self._perturbed else None
        key = pipeline_rank, lane, nominal
        if key not in self._known:
            self._known[key] = self._source.lower(pipeline_rank, nominal, lane)
        program = self._known[key]
        if self._retime is not None:
            changed = *key, self._retime.alike(rank)
            if changed not in self._retimed:
                self._retimed[changed] = program.lasting(partial(self._retime.duration, rank), each=self._retime.each)
            program = self._retimed[changed]
        return program, varying

    def _own(self, rank: int, pipeline_rank: int) -> int:
        """The number of a rank's program: that of its pipeline rank, unless each rank has its own."""
        return rank if self._source.each else pipeline_rank

    def _lane(self, rank: int) -> int:
        """The lane whose documents a rank computes; 0 where all compute the same."""
        return self._scenario.parallel.layout.lane(rank) if self._by_lane else 0

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
        nominal = self._source.nominal_durations(self._own(rank, self._place(rank)), self._lane(rank))
        return VaryingSpeed(Variation(replace(table, noise=noise), stages, factors, nominal, times))

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
        for slow in self._scenario.slow:
            if slow.gpu is not None:
                spells.setdefault(slow.gpu, []).append(slow.spell)
            for gpu in (gpu for gpu, node in enumerate(nodes) if node == slow.node):
                spells.setdefault(gpu, []).append(slow.spell)
        return spells

    @cached_property
    def _stages(self) -> Mapping[int, PiecewiseRate]:
        """Slow stage → its factor over time.

        Raises:
            UsageError: the plan has no such stage.
        """
        spells = collected((slow.stage, slow.spell) for slow in self._scenario.slow if slow.stage is not None)
        places = range(self._scenario.parallel.pipeline if spells else 0)
        last = max((stage for place in places for stage in self._source.chunks(place)), default=0)
        for stage in spells:
            if stage > last:
                raise UsageError(f"slow: there is no stage {stage}; the schedule has stages 0 … {last}")
        return {stage: PiecewiseRate.of(each) for stage, each in spells.items()}

    def _noise(self, rank: int) -> Noise | None:
        for jitter in self._scenario.jitter:
            if jitter.noise is not None:
                period, detour = to_picoseconds(jitter.noise.period), to_picoseconds(jitter.noise.detour)
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
        sources = []
        like = Counter[tuple[str, str]]()
        for jitter in self._scenario.jitter:
            if jitter.distribution is not None:
                name = jitter.distribution, jitter.level
                sources.append(
                    (
                        jitter.level,
                        distributions.find(jitter.distribution).build(*jitter.arguments),
                        (*name, like[name]),
                    )
                )
                like[name] += 1
        return sources

    def _factor(self, rank: int, level: str, sample: Sample, key: tuple[str | int, ...]) -> Factor:
        """One source's factors of the ops of a rank: by index, in separate streams."""
        seed, microbatches, position = self._scenario.seed, self._source.microbatches, self._replica_and_place(rank)

        @cache
        def draws(*more: str | int) -> Draws:
            return Draws(stream(seed, "jitter", *key, *position, *more), sample)

        if level == "rank":
            return lambda kind, chunk, step, microbatch: draws().at(0)
        if level == "rank-step":
            return lambda kind, chunk, step, microbatch: draws().at(step)
        return lambda kind, chunk, step, microbatch: draws(kind, chunk + 1).at(step * microbatches + microbatch)
