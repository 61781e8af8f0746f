"""A GPU whose pace varies: every op has its own factor, and its time is integrated over a timetable.

    lowered     Compute(40) Fill Compute(60)                     the op at the rank's usual pace
    in parts    ComputePart(0, 40, 100) Fill ComputePart(40, 100, 100)

The factor of an op is determined when it begins; each part is then integrated from the time at which it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from operator import mul
from typing import Any, NamedTuple

from hybrid_des.collectives.group import Routine
from hybrid_des.engine.timetable import Timetable
from hybrid_des.pipeline.op import Op
from hybrid_des.planning.tasks import Compute, ComputeBeside, Program, Segment, Task
from hybrid_des.simulation.gpu import Gpu

UPDATE = "optimizer"
Factor = Callable[[str, int, int, int], float]  # of (kind, chunk, step, micro-batch); kind is F, B, W or UPDATE
Times = Callable[[Op, int], int]  # of (op, step): picoseconds


class ComputePart(NamedTuple):
    """Compute from `before` to `after` picoseconds of an op that takes `whole` at the usual pace."""

    before: int
    after: int
    whole: int


def in_parts(program: Program) -> Program:
    """The same program, whose computation says which part of its op it is."""
    known: dict[int, Any] = {}

    def parted(task: Task) -> Task:
        work = known.get(id(task.work))
        if work is None:
            work = known[id(task.work)] = task.work._replace(segments=_parts(task.work.segments))
        return task._replace(work=work)

    return replace(program, compute=tuple(map(parted, program.compute)), update=tuple(map(parted, program.update)))


def _parts(segments: Sequence[Segment]) -> tuple[Any, ...]:
    whole = sum(segment.duration for segment in segments if type(segment) is Compute)
    found: list[Any] = []
    done = 0
    for segment in segments:
        if type(segment) is Compute:
            found.append(ComputePart(done, done + segment.duration, whole))
            done += segment.duration
        else:
            found.append(segment)
    return tuple(found)


@dataclass(frozen=True)
class Variation:
    """Variation of the pace of one rank.

    Attributes:
        table: the factor of its speed over time.
        stages: the same, of stages that are slow.
        factors: of durations; they are multiplied.
        usual: picoseconds of an op at speed 1, as it was lowered.
        times: the same, if it differs from op to op.
    """

    table: Timetable
    stages: Mapping[int, Timetable]
    factors: Sequence[Factor]
    usual: Times
    times: Times | None = None


class VaryingPace:
    """The pace of one rank: the duration of its current op.

    Attributes:
        table: the factor of its speed over time.
    """

    def __init__(self, variation: Variation) -> None:
        self.table = variation.table
        self._variation = variation
        self._at: tuple[int, int] | None = None
        self._tables: dict[Any, Timetable] = {}
        self._usual = 1  # picoseconds of the op at speed 1, as it was lowered …
        self._taken: int | float = 1  # … and those that it takes in this step

    @property
    def scale(self) -> float | Fraction:
        """The duration of the op divided by its usual duration."""
        return Fraction(self._taken, self._usual) if isinstance(self._taken, int) else self._taken / self._usual

    def begin(self, step: int, task: Task) -> None:
        """Find the duration of the op that begins, unless it has already begun."""
        if self._at == (step, task.number):
            return
        self._at = step, task.number
        variation, ops = self._variation, task.ops
        usual = [variation.usual(op, step) for op in ops]
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
            self.table = self._table(task.work.stages, usual)

    def duration(self, part: ComputePart, now: int) -> int:
        """Duration in picoseconds of a part of the op, if the part begins now."""
        factor = self.table.constant
        if factor is None:
            return self.table.end(now, Fraction(self.scale) * (part.after - part.before)) - now
        if factor == 1 and not part.before and part.after == part.whole == self._usual:
            return round(self._taken)
        scale = self.scale / factor
        return round(part.after * scale) - round(part.before * scale)

    def _factor(self, kind: str, chunk: int, step: int, microbatch: int) -> float:
        kind = "B" if kind == "I" else kind  # a split backward has the factor of the whole
        return prod(factor(kind, chunk, step, microbatch) for factor in self._variation.factors)

    def _table(self, stages: Sequence[int], usual: Sequence[int]) -> Timetable:
        """The timetable of an op: that of its rank with those of its stages, by their shares of a fused pair."""
        variation = self._variation
        key = (*stages, *usual)
        if key not in self._tables:
            tables = [variation.stages.get(stage, Timetable()) for stage in stages]
            total = sum(usual)
            shares = [Fraction(time, total) if total else Fraction(1, len(usual)) for time in usual]

            def both(factors: Sequence[Fraction]) -> Fraction:
                slowed = sum((share / f for share, f in zip(shares, factors[1:], strict=True)), start=Fraction(0))
                return factors[0] / slowed if stages else factors[0]

            self._tables[key] = Timetable.combined([variation.table, *tables], both)
        return self._tables[key]


class VaryingGpu(Gpu):
    """A GPU at a pace that varies.

    Attributes:
        pace: the durations of its ops.
    """

    def __init__(self, *args: Any, pace: VaryingPace, **more: Any) -> None:
        super().__init__(*args, **more)
        self.pace = pace

    def _wait(self, segment: Segment | ComputePart, place: int) -> Routine:
        """Compute a part of an op, or wait for a segment of communication."""
        if not isinstance(segment, ComputePart):
            yield from super()._wait(segment, place)
            return
        env = self._job.env
        assert self._task is not None  # it runs one
        self.pace.begin(self._step, self._task)
        if duration := self.pace.duration(segment, env.now):
            yield env.timeout(duration)

    def _lasts(self, work: int) -> int:
        """Duration in picoseconds of work that begins now, at the pace of the op."""
        assert self._task is not None  # it runs one
        self.pace.begin(self._step, self._task)
        now = self._job.env.now
        return self.pace.table.end(now, Fraction(self.pace.scale) * work) - now

    def _compute_beside(self, layer: ComputeBeside) -> Routine:
        """Compute a layer during communication, which costs a share of the work that the pace would do meanwhile."""
        env, slowing, pace = self._job.env, layer.slowing, self.pace
        assert self._task is not None  # it runs one
        pace.begin(self._step, self._task)
        table, left = pace.table, Fraction(round(layer.duration * pace.scale))
        meetings = [meeting for meeting in self._meetings if meeting]
        self._signals["layer"].hand(None)
        while left > 0:
            begin = env.now
            until = max((meeting.until for meeting in meetings), default=begin)
            beside = int(table.work(begin, until)) if until > begin else 0
            duration = table.end(begin, slowing.duration(left, beside)) - begin
            if not duration:  # what is left is less than half a picosecond
                break
            yield env.timeout(duration)
            busy = sum(table.work(*period) for meeting in meetings for period in meeting.periods(begin))
            left -= table.work(begin, env.now) - slowing.lost(int(busy))
        self._signals["layer"].hand(None)
