"""Simulated idealisations: cumulative, down to the shortest possible step, and of each class by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from hybrid_des.analysis.counterfactual.change_text import kind_of, of_kind, of_ranks
from hybrid_des.analysis.counterfactual.slowest import at_the_mean_of, work_of_ranks
from hybrid_des.analysis.counterfactual.variant import Variant, name_of_place, ranks_at, scaled_ops
from hybrid_des.errors import HybridDesError
from hybrid_des.simulation.run import Run
from hybrid_des.timeline import OP_KINDS

QUICKER = Fraction(9, 10)  # factor of a duration that is "10 % quicker"
FASTER = 2  # factor of a bandwidth that is "twice as fast"
EVENTS = 2_000_000  # approximate total over all simulations of a ranking
FEWEST, MOST = 3, 24  # simulations per sort of class in a ranking
SPLIT = "zb-h1"  # the schedule with a split backward that holds no more activations than 1F1B
UNSPLIT = ("1f1b", "gpipe", "eager-1f1b")


class Rung(NamedTuple):
    """An idealisation on top of those before it, and the end of the run under it, in picoseconds."""

    name: str
    duration: int


class Gain(NamedTuple):
    """A class changed by itself: what it is, how it was changed, and the end of the run, in picoseconds."""

    sort: str
    name: str
    change: str
    duration: int


def ladder(base: Run) -> list[Rung]:
    """The run as it is, and under cumulative idealisations, each no longer than the one before it.

    Ranks are made even, and the backward is split, where that shortens the run: it is not bound to (a rank whose ops
    are off the critical path may give them to one whose ops are on it). The last rung is what ranks compute, on
    average, in the run of the rung above it, and no run is shorter than what its ranks compute.
    """
    rungs = [Rung("as is", base.timeline.duration)]
    at = Variant.of(base).without_queueing()
    rungs.append(Rung("no queueing", at.simulated().duration))
    at = at.with_all_links(None)
    rungs.append(Rung("infinite links", at.simulated().duration))
    at = at.with_latency(Fraction(0))
    free = at.simulated()
    rungs.append(Rung("no latency", free.duration))
    last = min(free, at_the_mean_of(free, at).simulated(), key=_end)
    rungs.append(Rung("all ranks at the mean", last.duration))
    split = _split(free, at)
    if split is not None:
        last = min(last, split, key=_end)
        rungs.append(Rung(f"split backward ({SPLIT})", last.duration))
    rungs.append(Rung("work / ranks", sum(work_of_ranks(last).tolist()) // base.timeline.layout.ranks))
    return rungs


def _end(run: Run) -> int:
    return run.duration


def _split(free: Run, at: Variant) -> Run | None:
    """The run with the backward split; None if the schedule already splits it or cannot."""
    schedule = at.scenario.schedule
    if schedule.kind not in UNSPLIT or at.scenario.parallel.pipeline == 1:
        return None
    try:
        changed = at.scenario.schedule.model_copy(update={"kind": SPLIT, "options": None})
        split = replace(at, scenario=at.scenario.model_copy(update={"schedule": changed}), plan=None)
        return at_the_mean_of(free, split).simulated()
    except HybridDesError:
        return None


def ranking(base: Run, busiest: Sequence[int]) -> list[Gain]:
    """The gain of each class alone, largest first: pipeline ranks and kinds of ops 10 % quicker, links twice as fast.

    Args:
        base: the run.
        busiest: pipeline ranks, those with the most time on critical paths first.
    """
    at = Variant.of(base)
    each = min(MOST, max(FEWEST, EVENTS // 3 // max(base.events, 1)))
    found = [
        *_ranks_quicker(at, busiest[:each]),
        *_kinds_quicker(at, each),
        *_links_faster(at, each),
    ]
    return sorted(found, key=lambda gain: gain.duration)


def _ranks_quicker(at: Variant, places: Sequence[int]) -> Iterator[Gain]:
    layout = at.scenario.parallel.layout
    if layout.sizes["pipeline"] == 1:
        return
    for place in places:
        ranks = ranks_at(at, place)
        retime = scaled_ops(QUICKER, of_ranks(ranks))
        name = name_of_place(at, place)
        yield Gain("rank", name, "10 % quicker", at.with_retime(retime).simulated().duration)


def _kinds_quicker(at: Variant, most: int) -> Iterator[Gain]:
    kinds = {kind_of(call) for program in at.programs()[:1] for call in program.ops.values()}
    for kind in [kind for kind in OP_KINDS if kind in kinds][:most]:
        retime = scaled_ops(QUICKER, of_kind(kind))
        yield Gain("kind", kind, "10 % quicker", at.with_retime(retime).simulated().duration)


def _links_faster(at: Variant, most: int) -> Iterator[Gain]:
    assert at.fabric is not None
    groups: dict[str, list[str]] = {}
    for name, link in at.fabric.links.items():
        if type(link.bandwidth) is Fraction:
            groups.setdefault(link_kind(name), []).append(name)
    for kind, names in list(groups.items())[:most]:
        faster = at.with_links(dict.fromkeys(names, Fraction(FASTER)))
        yield Gain("link", kind, "twice as fast", faster.simulated().duration)


def link_kind(name: str) -> str:
    """The kind of a link: its name without numbers and directions, such as "nvlink" or "nic"."""
    plain = re.sub(r"\d+", "", name)
    plain = re.sub(r"[-/](in|out|up|down)$", "", plain)
    return plain.rpartition("/")[2] or plain
