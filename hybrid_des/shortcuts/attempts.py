"""Attempts to simulate a run with fewer events, in the order in which they are made; the last is the plain run.

    replicas   collectives   ties      what is left out
    ─────────  ────────────  ────────  ─────────────────────────────────────────────────────────────────────────────
    folded     alone         watched   ranks that do as others do, and the messages of long rings (`rings_alone`)
    folded     alone         traced    the same, where two messages reach a link at the same moment
    folded     by messages   watched   ranks that do as others do (`folding`)
    folded     by messages   traced    the same, where two messages reach a link at the same moment
    all        alone         –         the messages of collectives inside ops (`collectives_alone`)
    all        by messages   –         nothing

Folded runs also take at once what a GPU does between two messages (`stretches`). What an attempt leaves out changes no
figure; one that cannot tell ends with a reason, which the run keeps, and the next is made. What was refused once is not
tried again by runs that share `Refusals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hybrid_des.folding.symmetry import Fold
from hybrid_des.planning.planner import Parts
from hybrid_des.shortcuts.folds import Replicas
from hybrid_des.shortcuts.rings_alone import kinds_of_rings

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
    """What runs of the same parts refused before.

    Attributes:
        tied: whether two messages reached a link at the same moment.
        reasons: by folded axes and collectives taken alone.
    """

    tied: bool = False
    reasons: dict[Any, str] = field(default_factory=dict)

    def why_not(self, attempt: Attempt) -> str:
        """Why an attempt was refused; empty if it was not."""
        return self.reasons.get(_key(attempt), "")

    def note(self, attempt: Attempt, why: str) -> None:
        """Note why an attempt was refused."""
        self.reasons[_key(attempt)] = why

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
    return replace(parts, remembered={**parts.remembered, "refusals": replace(before, reasons={**before.reasons})})


def _key(attempt: Attempt) -> Any:
    return None if attempt.fold is None else tuple(attempt.fold.folded_axes), attempt.alone


def of_fold(fold: Fold, replicas: Replicas, refusals: Refusals, *, by_messages: bool) -> Iterator[Attempt]:
    """The attempts with a fold.

    Args:
        fold: which ranks are simulated.
        replicas: those of the run.
        refusals: of earlier runs; messages that tie in an attempt are noted there before the next is asked for.
        by_messages: whether every message is asked for.
    """
    refusals.tied = refusals.tied or (replicas.parts.channels or 1) > MOST_CHANNELS
    for alone in () if by_messages else kinds_of_rings(replicas.scenario, replicas.parts, tied=refusals.tied):
        yield from (Attempt(fold, alone, watched) for watched in (True, False))
    yield from (Attempt(fold, watched=watched) for watched in (True, False))


def of_all_ranks_at_once(replicas: Replicas) -> Sequence[Attempt]:
    """The attempts without a fold that leave something out."""
    scenario, parts = replicas.scenario, replicas.parts
    varies = scenario.slow or scenario.background or parts.training or scenario.jitter
    if varies or scenario.record == "all" or scenario.cluster.service not in ("fifo", "uncontended"):
        return ()
    return (Attempt(alone="collectives of layers"),) if parts.traffic.messages else ()
