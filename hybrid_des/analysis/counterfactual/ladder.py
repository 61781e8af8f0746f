"""Simulated idealisations: cumulative, down to the shortest possible step, and of each class by itself.

The curves of a class show how the step shrinks as it gets quicker (causal profiling, Coz, SOSP 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple

from hybrid_des import collectives
from hybrid_des.analysis.counterfactual.attribution import at_the_mean_of, work_of_ranks
from hybrid_des.analysis.counterfactual.what_if import (
    Part,
    Variant,
    kinds_in,
    links_in,
    part_at,
)
from hybrid_des.analysis.critical_path.traced import events_of_all
from hybrid_des.analysis.tasks import AtOnce, Task, grouped, in_turn
from hybrid_des.errors import HybridDesError
from hybrid_des.simulation.outcome import Run

QUICKER = Fraction(9, 10)  # factor of a duration that is "10 % quicker"


FASTER = Fraction(2)  # factor of a bandwidth that is "twice as fast"


EVENTS = 2_000_000  # approximate total over all simulations of a ranking


FEWEST, MOST = 3, 24  # simulations per sort of class in a ranking


NO_LATENCY = "no latency"  # the rung of a network that takes no time


SPLIT = "zb-h1"  # the schedule with a split backward that holds no more activations than 1F1B


UNSPLIT = ("1f1b", "gpipe", "eager-1f1b")


SAVED = (Fraction(1, 2), Fraction(1, 4), Fraction(3, 4), Fraction(1, 8))  # shares of a class's time, by priority


EACH = 2  # curves of each sort


EVENTS_OF_CURVES = 4_000_000  # approximate total over all simulations of curves


class Idealisation(NamedTuple):
    """An idealisation on top of those before it, and the end of the run under it, in picoseconds."""

    name: str
    duration: int


class Gain(NamedTuple):
    """A class changed by itself: what it is, how it was changed, and the end of the run, in picoseconds."""

    part: Part
    change: str
    duration: int


class Curve(NamedTuple):
    """A class, and the end of the run with it quicker: (share of its time saved, picoseconds), from (0, as it is)."""

    name: str
    points: Sequence[tuple[float, int]]


def rungs_of(base: Run, results: Sequence[list[Idealisation]]) -> list[Idealisation]:
    """The run as it is, and under cumulative idealisations, each no longer than the one before it; from its tasks.

    Ranks are made even, and the backward is split, where that shortens the run: it is not bound to (a rank whose ops
    are off the critical path may give them to one whose ops are on it). The last rung is what ranks compute, on
    average, in the run of the rung above it, and no run is shorter than what its ranks compute.
    """
    without_bytes, *others = results
    return [Idealisation("as is", base.timeline.duration), *chain(*others), *without_bytes]


def ladder_tasks(at: Variant) -> list[Task]:
    """Tasks that find the rungs below "as is", for which the run need not be known; the longest one is first.

    Args:
        at: the run as it is.
    """
    alone = at.without_queueing()
    infinite = alone.with_all_links(None)
    without_bytes = partial(_rungs_without_bytes, infinite.with_latency(Fraction(0)))
    return [without_bytes, partial(_rung, "no queueing", alone), partial(_rung, "infinite links", infinite)]


def never_queues(base: Run) -> bool:
    """Whether a network without latency and with infinite links takes the same time whether messages queue or not.

    Under `fifo` a link is busy until the end of its last message, which is when that began: no head finds it busy.
    """
    scenario = base.scenario
    chosen = scenario.gradients.algorithm != collectives.AUTO
    return scenario.cluster.service == "fifo" and chosen and not (scenario.slow or scenario.background)


def _rung(name: str, at: Variant) -> list[Idealisation]:
    return [Idealisation(name, at.duration)]


def _rungs_without_bytes(at: Variant) -> list[Idealisation]:
    """The rungs on a network that takes no time: only computation is left."""
    free = at.simulated()
    rungs = [Idealisation(NO_LATENCY, free.duration)]
    last = min(free, at_the_mean_of(free, at).simulated(), key=attrgetter("duration"))
    rungs.append(Idealisation("all ranks at the mean", last.duration))
    split = _split(free, at)
    if split is not None:
        last = min(last, split, key=attrgetter("duration"))
        rungs.append(Idealisation(f"split backward ({SPLIT})", last.duration))
    layout = at.scenario.parallel.layout
    return [*rungs, Idealisation("work / ranks", sum(work_of_ranks(last).tolist()) // layout.ranks)]


def _split(free: Run, at: Variant) -> Run | None:
    """The run with the backward split; None if the schedule already splits it or cannot."""
    schedule = at.scenario.schedule
    if schedule.kind not in UNSPLIT or at.scenario.parallel.pipeline == 1:
        return None
    try:
        changed = at.scenario.schedule.model_copy(update={"kind": SPLIT, "options": None})
        scenario = at.scenario.model_copy(update={"schedule": changed})
        split = replace(at, scenario=scenario, plan=None, times=at.parts.times)  # on the same wiring
        return at_the_mean_of(free, split).simulated()
    except HybridDesError:
        return None


def gains_of(at: Variant, base: Run | None = None) -> dict[Part, Task]:
    """Tasks that find the gain of each class alone: kinds of ops 10 % quicker, kinds of links twice as fast.

    Args:
        at: the run as it is.
        base: the run; None if it is not known yet: then those that are found however long it takes.
    """
    each = FEWEST if base is None else _each(base)
    return {part: partial(_gain, at, part) for parts in (kinds_in(at), links_in(at)) for part in islice(parts, each)}


def gains_of_ranks(base: Run, busiest: Sequence[int]) -> list[Task]:
    """Tasks that find the gain of each pipeline rank alone, 10 % quicker.

    Args:
        base: the run.
        busiest: pipeline ranks, those with the most time on critical paths first.
    """
    at = Variant.of(base)
    places = busiest[: _each(base)] if at.scenario.parallel.pipeline > 1 else ()
    return [partial(_gain, at, part_at(at, place)) for place in places]


def _each(base: Run) -> int:
    """The simulations of each sort of class."""
    return min(MOST, max(FEWEST, EVENTS // 3 // max(events_of_all(base), 1)))


def _gain(at: Variant, part: Part) -> Gain:
    change, factor = ("twice as fast", FASTER) if part.sort == "link" else ("10 % quicker", QUICKER)
    return Gain(part, change, part.scaled(at, factor).duration)


def curves(base: Run, gains: Sequence[Gain], at_once: AtOnce = in_turn) -> list[Curve]:
    """The classes that gain the most of each sort: pipeline ranks, kinds of ops, kinds of links."""
    helping = [gain for gain in gains if gain.duration < base.timeline.duration]
    chosen = [
        gain for sort in ("rank", "kind", "link") for gain in [one for one in helping if one.part.sort == sort][:EACH]
    ]
    points = max(1, min(len(SAVED), EVENTS_OF_CURVES // max(events_of_all(base), 1) // max(len(chosen), 1)))
    at = Variant.of(base)
    tasks = [[partial(_end_without, at, gain.part, share) for share in SAVED[:points]] for gain in chosen]
    drawn = []
    for part, ends in zip((gain.part for gain in chosen), grouped(tasks, at_once), strict=True):
        noun = {"rank": part.name, "kind": f"{part.name} ops", "link": f"{part.name} links"}[part.sort]
        saved = zip(map(float, SAVED[:points]), ends, strict=True)
        drawn.append(Curve(noun, sorted([(0.0, base.timeline.duration), *saved])))
    return drawn


def _end_without(at: Variant, part: Part, share: Fraction) -> int:
    """The end of the run if a class takes less time by this share."""
    factor = 1 / (1 - share) if part.sort == "link" else 1 - share
    return part.scaled(at, factor).duration
