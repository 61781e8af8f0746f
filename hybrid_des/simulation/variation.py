"""The pace of a GPU that varies: every op has its own factor, and its time is integrated over a timetable.

The factor of an op is determined when it begins; each part of its computation is then integrated from the time at
which it starts, and knows its place in the whole, so that the parts add up to it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from operator import mul
from typing import Any

from hybrid_des.engine.timetable import Amount, PiecewiseRate
from hybrid_des.pipeline.plan import Op
from hybrid_des.planning.program import ASIDE, Call, Compute

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
