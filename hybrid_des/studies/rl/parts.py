"""What a loop is made of: engines, a trainer, weight syncs, as the loop asks them for times.

Whatever has these methods may stand for them: measured times, or an engine of one's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class EngineCosts(Protocol):
    """How long a replica of an engine takes, and what fits into it; `cost_model.decode.DecodeCosts` is one."""

    def stretch_ps(self, sequences: int, held: int, steps: int) -> int:
        """Picoseconds of decode steps of so many sequences.

        Args:
            sequences: running, at least 1.
            held: tokens that they hold together in the first step; in each further one there are `sequences` more.
            steps: at least 0. A stretch must take as long as its parts, wherever it is cut.
        """

    def prefill_ps(self, tokens: int) -> int:
        """Picoseconds in which keys and values of so many tokens are computed."""

    def room(self, sequences: int) -> int:
        """Tokens whose keys and values fit beside what else so many sequences need."""


class TrainerCosts(Protocol):
    """How long the trainer takes; `studies.rl.trainer` has some."""

    def take(self, updates: Sequence[Sequence[int]]) -> Sequence[tuple[int, int]]:
        """For each optimizer step, given by the tokens of its samples: its forward passes, and itself; picoseconds."""


class EngineKind(NamedTuple):
    """Engines of one kind.

    Attributes:
        costs: of a replica.
        replicas: how many.
        gpus: of a replica.
        concurrency: the most sequences of a replica.
    """

    costs: EngineCosts
    replicas: int
    gpus: int
    concurrency: int


class LoopParts(NamedTuple):
    """What a loop is made of.

    Attributes:
        engines: by kind; lent ones are not among them.
        lent: engines on the trainer's GPUs while it waits; None without `rl.lend`.
        trainer: its times.
        sync_ps: picoseconds of a weight sync.
    """

    engines: tuple[EngineKind, ...]
    lent: EngineKind | None
    trainer: TrainerCosts
    sync_ps: int
