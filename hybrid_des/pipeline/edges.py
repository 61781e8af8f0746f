"""The dependencies of a plan as arrays: which action needs which to be done before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hybrid_des.pipeline.op import KINDS, NEEDS, SPLIT, WHOLE, Action, Path

Numbers = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True)
class Edges:
    """Dependencies between the actions of all programs, which are numbered rank by rank, top to bottom.

    Attributes:
        consumer, producer: one entry per dependency, ordered by consumer: the producer must be done before it.
        first: the number of each rank's first action, and behind them the number of actions.
    """

    consumer: Numbers
    producer: Numbers
    first: Numbers

    @cached_property
    def rank(self) -> Numbers:
        """The pipeline rank of each action."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @cached_property
    def remote(self) -> NDArray[np.bool_]:
        """The dependencies that cross ranks, each carried by a message."""
        found: NDArray[np.bool_] = self.rank[self.consumer] != self.rank[self.producer]
        return found

    @cached_property
    def producers(self) -> list[list[int]]:
        """For each action the actions that it needs."""
        ends = np.searchsorted(self.consumer, np.arange(self.first[-1] + 1)).tolist()
        producer = self.producer.tolist()
        return [producer[start:end] for start, end in pairwise(ends)]


def edges_of(
    programs: Sequence[Sequence[Action]], paths: Sequence[Path], path_of: Sequence[int], chunks: int
) -> Edges | None:
    """Find the dependencies; None where an op is missing, repeated, or on a rank that its micro-batch does not pass.

    Args:
        programs: for each rank its actions.
        paths: the (rank, chunk) of each stage.
        path_of: for each micro-batch the index of its path.
        chunks: how many chunks a rank holds, at most.
    """
    sizes = [len(program) for program in programs]
    first = np.cumsum([0, *sizes])
    ops = [(number, op) for number, action in enumerate(a for program in programs for a in program) for op in action]
    if not ops:
        return None
    number_of = {kind: i for i, kind in enumerate(KINDS)}
    table = np.array([(action, number_of[kind], microbatch, chunk) for action, (kind, microbatch, chunk) in ops])
    action, kind, microbatch, chunk = table.T
    microbatches, stages = len(path_of), len(paths[0])
    if not ((microbatch >= 0) & (microbatch < microbatches) & (chunk >= 0) & (chunk < chunks)).all():
        return None
    stage_at = np.full((len(paths), len(programs), chunks), NONE)
    for number, path in enumerate(paths):
        ranks, held = np.array(path).T
        stage_at[number, ranks, held] = np.arange(stages)
    rank = np.repeat(np.arange(len(programs)), sizes)[action]
    stage = stage_at[np.asarray(path_of)[microbatch], rank, chunk]
    if (stage == NONE).any():
        return None
    place = np.full((len(KINDS), stages, microbatches), NONE)
    place[kind, stage, microbatch] = np.arange(len(ops))
    present = place != NONE
    allowed = [np.array([kind in wanted for kind in KINDS])[:, None, None] for wanted in (WHOLE, SPLIT)]
    complete = np.logical_or.reduce([(present == wanted).all(axis=0) for wanted in allowed])
    if present.sum() < len(ops) or not complete.all():
        return None
    consumer, producer = _needs(kind, stage, microbatch, place)
    return Edges(action[consumer], action[producer], first)


def _tabulate() -> tuple[list[list[int]], Numbers, Numbers]:
    """Tabulate `NEEDS`: the sets of kinds; for each kind and need which of them (NONE: no such need), and how far."""
    sets = list(dict.fromkeys(kinds for needs in NEEDS.values() for kinds, _ in needs))
    which = np.full((len(KINDS), max(map(len, NEEDS.values()))), NONE)
    offset = np.zeros_like(which)
    for row, kind in enumerate(KINDS):
        for column, (kinds, distance) in enumerate(NEEDS[kind]):
            which[row, column], offset[row, column] = sets.index(kinds), distance
    return [[KINDS.index(kind) for kind in kinds] for kinds in sets], which, offset


SETS, WHICH, OFFSET = _tabulate()


def _needs(kind: Numbers, stage: Numbers, microbatch: Numbers, place: Numbers) -> tuple[Numbers, Numbers]:
    """For each need of each op the numbers of both, ordered by consumer and then as `NEEDS` lists them."""
    stages = place.shape[1]
    at = stage[:, None] + OFFSET[kind]
    consumer, need = np.nonzero((WHICH[kind] != NONE) & (at >= 0) & (at < stages))
    producer = np.stack([place[kinds].max(axis=0) for kinds in SETS])
    return consumer, producer[WHICH[kind[consumer], need], at[consumer, need], microbatch[consumer]]
