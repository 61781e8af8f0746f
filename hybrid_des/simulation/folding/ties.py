"""Ties: messages that reach a link in the same moment, of which one is served first.

In a folded run their order must be that of all images, which the lineage of events shows, at a third of the time of a
run. Where no messages meet so, as in most runs of dense models, a run that only watches for it is exact too. So each
plan is simulated without lineage until a tie is met.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hybrid_des.engine.causes import Causes
from hybrid_des.pipeline.plan import Plan
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.noted_plans import NotedPlans

MOST_CHANNELS = 2  # more rings that reduce the same gradients advance in step, and nearly always meet at some link

_TIED = NotedPlans()


class TieError(Exception):
    """Two messages reach a link in the same moment."""


def ties_expected(plan: Plan, channels: int | None) -> bool:
    """Whether messages met in an earlier run of this plan, or will because so many rings reduce the same gradients."""
    return (channels or 1) > MOST_CHANNELS or _TIED.has(plan)


@contextmanager
def ties_noted(plan: Plan, trace: Causes | None) -> Iterator[None]:
    """Remember that a run ended with a tie; what follows the block simulates it otherwise. Its causes are forgotten."""
    try:
        yield
    except (TieError, FoldRefusal) as end:
        if trace is not None:
            trace.clear()
        if isinstance(end, FoldRefusal):
            raise
        _TIED.note(plan)
