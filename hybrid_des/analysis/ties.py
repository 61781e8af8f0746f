"""How far a step depends on ties: on which of several messages is served first that reach a link at the same time.

Under `fifo` they are served in the order in which their processes were booked, which descends from the order in which
GPUs start. Other orders of starting are as good, so the run is repeated with random ones: where no tie matters, every
run takes the same time, to the picosecond. A folded run in which orders are traced may show that (`engine.lineage`):
then nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.images import Images, LinkImages
from hybrid_des.analysis.critical_path.traced import events_of_all
from hybrid_des.analysis.tasks import AtOnce, in_turn
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program_table import Column
from hybrid_des.scenario.definition import Scenario
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.timeline import in_order
from hybrid_des.units import PICOSECONDS_PER_SECOND

EVENTS = 1_000_000  # approximate total over all runs


FEWEST, MOST = 2, 8  # runs


MOST_EVENTS = 4_000_000  # of the fewest runs, beyond which an explanation leaves them to `spread --ties`


QUIET = {"record": "none", "on_oom": "warn"}  # keys of a run of which only the end counts


class Ties(NamedTuple):
    """The ends of a run with other orders of equal arrivals, in picoseconds, and that of the run itself."""

    duration: int
    others: Sequence[int]

    @property
    def least(self) -> int:
        """The earliest end."""
        return min(self.duration, *self.others)

    @property
    def most(self) -> int:
        """The latest end."""
        return max(self.duration, *self.others)

    def to_mapping(self, steps: int) -> dict[str, Any]:
        """Plain values, in seconds per step of so many."""
        least, most = (end / PICOSECONDS_PER_SECOND / max(steps, 1) for end in (self.least, self.most))
        return {"orders": len(self.others), "least_s": least, "most_s": most}


def ties_of(base: Run, at_once: AtOnce = in_turn) -> Ties | None:
    """How far a run with recorded messages depends on ties; None if it does not, as far as a few runs tell."""
    return ties_from(base, at_once(tie_tasks(base)))


def ties_from(base: Run, others: Sequence[int]) -> Ties | None:
    """The same from the results of its tasks."""
    ties = Ties(base.duration, others)
    return ties if others and ties.most > ties.least else None


def tie_tasks(base: Run) -> list[Callable[[], int]]:
    """Tasks that find the ends of a run in other orders, a few if it has ties."""
    if not _has_ties(base):
        return []
    number = min(MOST, max(FEWEST, EVENTS // max(events_of_all(base), 1)))
    quiet = base.scenario.model_copy(update=QUIET)
    return [partial(_end_in_order, quiet, base.parts, order) for order in range(number)]


def why_untried(base: Run) -> str:
    """Why an explanation tries no other orders; empty if it tries some, or none matters.

    Replicas that start in any order are not folded: such a run takes as many events for each rank as one of all ranks.
    """
    events = FEWEST * events_of_all(base)
    if events <= MOST_EVENTS or not _has_ties(base):
        return ""
    return f"{FEWEST} other orders of all ranks are about {events:,} events, more than {MOST_EVENTS:,} (spread --ties)"


def _end_in_order(scenario: Scenario, parts: Parts, order: int) -> int:
    return run(scenario, parts=parts, order=order, detailed=False).duration


def _has_ties(base: Run) -> bool:
    """Whether messages of two senders reach a link at the same time and one has to wait, served in order of arrival."""
    rows = base.timeline.all_messages() if base.scenario.cluster.sharing == "fifo" else None
    if base.any_order or rows is None or not len(rows["channel"]):
        return False
    taken = np.flatnonzero(rows["end"] > rows["start"])
    channel, asked = rows["channel"][taken], rows["asked"][taken]
    link, sender = _links_and_senders(base)
    in_time = not (asked[1:] < asked[:-1]).any()  # as rows are written when a message asks, but under priorities
    order = in_order(link[channel]) if in_time else np.lexsort((asked, link[channel]))
    channel, asked = channel[order], asked[order]
    met = np.flatnonzero(asked[1:] == asked[:-1])
    this, other = channel[met], channel[met + 1]
    return bool(((link[this] == link[other]) & (sender[this] != sender[other])).any())


def _links_and_senders(base: Run) -> tuple[Column, Column]:
    """By channel, its link and sender; in a folded run, the simulated link and the sender of the image on it."""
    link, sender = (base.timeline.of_channel[name] for name in ("link", "sender"))
    if base.fold is None:
        return link, sender
    assert base.trace is not None and base.fabric is not None
    images = Images(base.fold, base.fabric)
    links = LinkImages.of(base.timeline, base.trace, base.fabric, images)
    return links.lane[link], images.moved(sender, images.inverse(links.turned[link]))
