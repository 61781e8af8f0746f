"""Buckets in the program of a rank: when its ops fill or need them, and the streams that reduce and gather them.

    compute     … B6 ── B7 │ "filled" │ … │ "filled" │ end      the last backward of a stage fills its buckets
    gradient    wait for "filled" ── reduce ── wait for "filled" ── reduce
    parameters  gather ── "gathered" ── gather ── "gathered"    the first forward of a stage waits for it

Parameters are gathered where optimizers are sharded, and on a stream of their own if that overlaps with computation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from math import ceil

from hybrid_des.cluster.purposes import PARAMETERS, REDUCTION
from hybrid_des.collectives.transfers import Sizes
from hybrid_des.pipeline.plan import Action, Plan
from hybrid_des.planning.expert_copies import COPIES
from hybrid_des.planning.gradients import Bucket
from hybrid_des.planning.op_bodies import Point
from hybrid_des.planning.program import Cause, Collective, Instruction, Row, Wait, filled

BucketsOfStage = Mapping[int, Sequence[Bucket]]  # part → its buckets
Gather = tuple[Fraction, int, int]  # fraction of the forward before it, part, bucket


def completed(plan: Plan, rank: int, stages: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Map each action that completes the weight gradients of some of these stages to those.

    The first completes those of stages that no micro-batch visits on this rank: nothing is added to their zeros.
    """
    last = {plan.stage_of[rank, chunk]: 0 for chunk in plan.chunks_of(rank)}
    for index, action in enumerate(plan.programs[rank]):
        last.update({plan.stage_of[rank, op.chunk]: index for op in action if op.kind in "BW"})
    complete: dict[int, tuple[int, ...]] = {}
    for stage, index in last.items():
        if stage in stages:
            complete[index] = *complete.get(index, ()), stage
    return complete


def first_used(plan: Plan, rank: int) -> dict[int, frozenset[int]]:
    """Map actions to the stages that they are the first to use."""
    seen: set[int] = set()
    fresh = {}
    for index, action in enumerate(plan.programs[rank]):
        fresh[index] = frozenset(plan.stage_of[rank, op.chunk] for op in action) - seen
        seen |= fresh[index]
    return fresh


def filled_at(
    buckets: Mapping[int, BucketsOfStage], completes: Sequence[int], visited: Sequence[int], duration: int
) -> Iterator[Point]:
    """When an action fills the buckets of stages; at once, those of stages that it does not visit."""
    for stage in completes:
        span = duration if stage in visited else 0
        for bucket in chain.from_iterable(buckets[stage].values()):
            yield Point(ceil(span * bucket.leaves), stage)


def needed_at(
    buckets: Mapping[int, BucketsOfStage], fresh: Iterable[int], action: Action, duration: int
) -> Iterator[Point]:
    """When an action first uses gathered parameters; a fused pair uses those of both ops from its start."""
    for stage in sorted(fresh):
        for at, _, _ in gathers_of(buckets.get(stage, {})):
            yield Point(int(duration * (at if len(action) == 1 else 0)), stage, needed=True)


def gathers_of(buckets: BucketsOfStage) -> list[Gather]:
    """The gathers of a stage in the order of use.

    Buckets are in the order of gradients: the last holds the parameters that a forward uses first.
    """
    gathers = [(1 - buckets[part][number].leaves, part, number) for part, number in numbered(buckets)]
    return sorted(gathers, key=lambda gather: (gather[0], gather[1], -gather[2]))


def numbered(buckets: BucketsOfStage) -> list[tuple[int, int]]:
    """The buckets of a stage: the part of each, and its index there."""
    return [(part, number) for part, of in buckets.items() for number in range(len(of))]


def reductions(stage: int, buckets: BucketsOfStage) -> Iterator[Instruction]:
    """Reduce the buckets of a stage as they are filled."""
    for index, (part, number) in enumerate(numbered(buckets)):
        yield Wait(filled(stage))
        yield Collective((REDUCTION.name, stage, part), number, Row("reductions", stage, index))


def gathers(stage: int, buckets: BucketsOfStage, cause: Cause | None = None) -> Iterator[Collective]:
    """Gather the parameters of a stage."""
    for _, part, number in gathers_of(buckets):
        yield Collective((PARAMETERS.name, stage, part), number, Row("gathers", stage, -1), cause)


def copied(stage: int, sizes: Sizes, cause: Cause | None = None) -> Iterator[Collective]:
    """Send what a placement of a stage's experts needs: gradients of copies, or weights to copies and new homes."""
    if sizes:
        yield Collective((PARAMETERS.name, stage, COPIES), sizes, cause=cause)
