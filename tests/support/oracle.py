"""An independent evaluator: start times by longest path over the dependency graph, without SimPy or Plan.needs.

An op waits for the step before it in its rank's program and for its inputs; an input from another rank is there
`delay` after its producer's end. Everything is whole picoseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hybrid_des.pipeline.plan import Plan

Durations = Callable[[str, int, int], int]  # kind, rank, chunk → picoseconds


@dataclass(frozen=True)
class Timing:
    """When each step of each program starts and ends."""

    plan: Plan
    start: list[list[int]]
    end: list[list[int]]

    @property
    def time(self) -> int:
        return max(row[-1] for row in self.end) - min(row[0] for row in self.start)

    @property
    def span(self) -> int:
        return max(ends[-1] - starts[0] for starts, ends in zip(self.start, self.end, strict=True))

    @property
    def bubble(self) -> Fraction:
        pairs = zip(self.start, self.end, strict=True)
        busy = sum(e - s for starts, ends in pairs for s, e in zip(starts, ends, strict=True))
        return 1 - Fraction(busy, self.plan.pipeline * self.time) if self.time else Fraction(0)


def solve(plan: Plan, duration: Durations, delay: int = 0) -> Timing:
    """Walk all programs side by side, each step as early as its inputs allow."""
    done: dict[tuple[str, int, int], tuple[int, int]] = {}  # (direction, stage, micro-batch) → rank, end
    start: list[list[int]] = [[] for _ in plan.programs]
    end: list[list[int]] = [[] for _ in plan.programs]
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(plan.programs):
            while len(end[rank]) < len(program):
                step = program[len(end[rank])]
                begin = _ready(plan, rank, step, done, delay)
                if begin is None:
                    break
                begin = max(begin, end[rank][-1] if end[rank] else 0)
                length = sum(duration(op.kind, rank, op.chunk) for op in step)
                finish = begin + (length if len(step) == 1 else round(plan.fused_time * length))
                for op in step:
                    done["B" if op.kind == "I" else op.kind, plan.stage_of[rank, op.chunk], op.microbatch] = (
                        rank,
                        finish,
                    )
                start[rank].append(begin)
                end[rank].append(finish)
                moved = True
    assert all(len(row) == len(program) for row, program in zip(end, plan.programs, strict=True)), "stuck"
    return Timing(plan, start, end)


def _ready(plan, rank, step, done, delay):
    times = [0]
    for op in step:
        stage = plan.stage_of[rank, op.chunk]
        inputs = {"F": [("F", stage - 1)] if stage else [], "W": [("B", stage)]}.get(op.kind, [("F", stage)])
        if op.kind in "BI" and stage < plan.stages - 1:
            inputs = [*inputs, ("B", stage + 1)]
        for kind, at in inputs:
            if (kind, at, op.microbatch) not in done:
                return None
            where, when = done[kind, at, op.microbatch]
            times.append(when + (delay if where != rank else 0))
    return max(times)


def shares(plan: Plan, forward: Sequence[int], backward: Sequence[int], weight: Sequence[int]) -> Durations:
    """Each rank's times (backward whole) cut evenly over the chunks that a micro-batch visits there."""

    def cut(total: int, rank: int, chunk: int) -> int:
        part = chunk if plan.visits[rank] > 1 else 0
        return total * (part + 1) // plan.visits[rank] - total * part // plan.visits[rank]

    def duration(kind: str, rank: int, chunk: int) -> int:
        whole, part = cut(backward[rank], rank, chunk), cut(weight[rank], rank, chunk)
        return {"F": cut(forward[rank], rank, chunk), "B": whole, "I": whole - part, "W": part}[kind]

    return duration


def peaks(plan: Plan, weight_share: Sequence[Fraction | int]) -> list[Fraction]:
    """Most micro-batches that each rank holds, in whole-rank units; of each, `weight_share` counts from its I to its W.

    With a share of 1 an activation is freed after W only, with 0 already after the input part.
    """
    result = []
    for rank, (program, share) in enumerate(zip(plan.programs, weight_share, strict=True)):
        left = {"F": 1, "B": -1, "I": share - 1, "W": -share}
        held = most = Fraction(0)
        for step in program:
            held += sum(op.kind == "F" for op in step)
            most = max(most, held)
            held += sum(left[op.kind] for op in step if op.kind != "F")
        assert held == 0
        result.append(most / plan.visits[rank])
    return result
