"""Attempts to simulate a run with fewer events, in the order in which they are made; the last is the plain run.

    replicas   collectives   ties      what is left out
    ─────────  ────────────  ────────  ─────────────────────────────────────────────────────────────────────────────
    folded     alone         watched   ranks that do as others do, and the messages of long rings
    folded     alone         traced    the same, where two messages reach a link at the same moment
    folded     by messages   watched   ranks that do as others do (`folding`)
    folded     by messages   traced    the same, where two messages reach a link at the same moment
    all        alone         –         the messages of collectives inside ops (both alone: `collectives_alone`)
    all        by messages   –         nothing

Folded runs also take at once what a GPU does between two messages (`stretches`). What an attempt leaves out changes no
figure; one that cannot tell ends with a reason, which the run keeps, and the next is made. What was refused once is not
tried again by runs that share `Refusals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hybrid_des.folding.symmetry import Fold, FoldedAxis
from hybrid_des.planning.planner import Parts
from hybrid_des.shortcuts.collectives_alone import taken_in_fold, taken_of_all_ranks
from hybrid_des.shortcuts.folds import Replicas

MOST_CHANNELS = 2  # more rings that reduce the same gradients advance in step, and nearly always meet at some link


class Attempt(NamedTuple):
    """A way to simulate a run.

    Attributes:
        fold: which ranks are simulated; None: all are.
        alone: which collectives take the time that they take alone; None: all are messages.
        watched: whether a folded run ends where two messages reach a link at the same moment, instead of tracing which
            of them is first in every image.
    """

    fold: Fold | None = None
    alone: str | None = None
    watched: bool = False

    @property
    def folded_axes(self) -> tuple[FoldedAxis, ...]:
        """The folded axes; none if all ranks are simulated."""
        return () if self.fold is None else self.fold.folded_axes

    @property
    def is_plain(self) -> bool:
        """Whether it leaves nothing out."""
        return self.fold is None and self.alone is None

    def __str__(self) -> str:
        parts = [] if self.fold is None else [f"ranks that repeat others (1 of {self.fold.order} simulated)"]
        parts += [] if self.alone is None else [f"the messages of {self.alone}"]
        return ", ".join(parts)


class Refused(NamedTuple):
    """What was tried, and why it cannot be told so."""

    attempt: str
    why: str


@dataclass
class Refusals:
    """What runs of the same parts found out before.

    Attributes:
        tied: whether two messages reached a link at the same moment.
        disturbed: by folded axes, what disturbed collectives that were taken alone; once one was, all are messages.
    """

    tied: bool = False
    disturbed: dict[tuple[FoldedAxis, ...], str] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Parts) -> Refusals:
        """Those of runs of these parts."""
        refusals: Refusals = parts.remembered.setdefault("refusals", cls())
        return refusals


def remembering(parts: Parts, known: Parts) -> Parts:
    """Parts with what runs of other parts of the same plan found out; to theirs, these add no refusals.

    So what a run leaves out does not depend on which of its sisters ran before it, in this process or in another.
    """
    before = Refusals.of(known)
    return replace(parts, remembered={**parts.remembered, "refusals": replace(before, disturbed={**before.disturbed})})


def of_fold(fold: Fold, replicas: Replicas, refusals: Refusals, *, by_messages: bool) -> Iterator[Attempt]:
    """The attempts with a fold.

    Args:
        fold: which ranks are simulated.
        replicas: those of the run.
        refusals: of earlier runs; messages that tie in an attempt are noted there before the next is asked for.
        by_messages: whether every message is asked for.
    """
    refusals.tied = refusals.tied or (replicas.parts.channels or 1) > MOST_CHANNELS
    alone = None if by_messages else taken_in_fold(replicas.scenario, replicas.parts, tied=refusals.tied)
    for kind in (None,) if alone is None else (alone, None):
        yield from (Attempt(fold, kind, watched) for watched in (True, False))


def of_all_ranks_alone(replicas: Replicas) -> Sequence[Attempt]:
    """The attempts without a fold that leave something out."""
    alone = taken_of_all_ranks(replicas.scenario, replicas.parts)
    return () if alone is None else (Attempt(alone=alone),)
