"""What each difference between two runs does to the step, such as another GPU, schedule or bandwidth.

Each is simulated alone, in both directions: A with that value of B, and B with that value of A. What these effects do
not sum to is how the differences act together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from hybrid_des.analysis.counterfactual.first_order import first_order, only_times_differ
from hybrid_des.analysis.counterfactual.what_if import Variant, link_kind, name_of_place, over_links
from hybrid_des.analysis.critical_path.traced import Traced
from hybrid_des.cluster.fabric import Fabric, Route
from hybrid_des.errors import HybridDesError, ScenarioError
from hybrid_des.planning.program import Call, Program
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.definition import LABELS, Scenario
from hybrid_des.scenario.loading import given_values, scenario_from
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.speeds import DurationOverride
from hybrid_des.units import grouped_by

Pair = tuple[str, Variant, Variant]  # a class, A with it from B, B with it from A


FINE = ("cluster", "workload", "efficiency")  # exchanged by rank and kind of link where only times differ


NO_VALUE = object()


COUNTED = {"seed", "steps"}  # how often and with which random numbers a step is repeated


class Effect(NamedTuple):
    """A class that differs: how much it alone changes A, and how much reverting it would change B, in picoseconds.

    Both are changes of the run's end from A to B: T(A with it from B) − T(A), and T(B) − T(B with it from A).
    """

    name: str
    in_a: int
    in_b: int


class Exchanged(NamedTuple):
    """Both runs with the same sections from each other's values, where that is possible."""

    there: Scenario
    back: Scenario


def effects(
    this: Run,
    other: Run,
    given: Mapping[str, Any] | None = None,
    of_other: Mapping[str, Any] | None = None,
) -> list[Effect]:
    """Each changed class alone: sections of the scenario; durations by pipeline rank, kinds of links, latencies.

    A section is taken from the other's values as `--set` takes it: what follows from it is derived again. Sections
    that change durations, bandwidths and latencies only are exchanged by rank and kind of link instead. Classes that
    cannot be exchanged alone are left out.

    Args:
        this: the run A.
        other: the run B.
        given: the values that A's scenario was made from; default: the fewest that make it.
        of_other: the same of B's.
    """
    mine = given_values(this.scenario) if given is None else given
    theirs = given_values(other.scenario) if of_other is None else of_other
    changed = {key: both for key in _keys(mine, theirs) if (both := _exchanged(this, other, mine, theirs, key))}
    same = this.timeline.programs.is_like(other.timeline.programs)
    fine = [key for key, both in changed.items() if key in FINE and same and _retimes(this, other, both)]
    pairs = [(key, Variant(both.there), Variant(both.back)) for key, both in changed.items() if key not in fine]
    if fine and (both := _exchanged(this, other, mine, theirs, *fine)):
        pairs += [*_durations(this, other, both), *_wires(this, other, both)]
    ends = this.timeline.duration, other.timeline.duration
    listed = []
    for name, there, back in pairs:
        with suppress(HybridDesError):
            listed.append(Effect(name, there.duration - ends[0], ends[1] - back.duration))
    return sorted(listed, key=lambda effect: -abs(effect.in_a))


def _keys(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The sections whose values differ, as they were given."""
    return [
        key
        for key in Scenario.model_fields
        if key not in LABELS | COUNTED and mine.get(key, NO_VALUE) != theirs.get(key, NO_VALUE)
    ]


def _exchanged(
    this: Run, other: Run, mine: Mapping[str, Any], theirs: Mapping[str, Any], *keys: str
) -> Exchanged | None:
    """Both scenarios with the other's sections; None if one is impossible, or is the same with them."""
    try:
        both = Exchanged(_with(mine, theirs, keys), _with(theirs, mine, keys))
    except ScenarioError:
        return None
    return None if both.there == this.scenario and both.back == other.scenario else both


def _with(values: Mapping[str, Any], others: Mapping[str, Any], keys: Sequence[str]) -> Scenario:
    kept = {key: value for key, value in values.items() if key not in keys}
    return scenario_from(kept | {key: others[key] for key in keys if key in others})


def _retimes(this: Run, other: Run, both: Exchanged) -> bool:
    """Whether an exchange changes durations, bandwidths and latencies only, on the same wires."""
    for run, changed in ((this, both.there), (other, both.back)):
        wires = None if run.fabric is None else run.fabric.links.keys()
        options = run.scenario.cluster.options == changed.cluster.options
        if not only_times_differ(run.scenario, changed) or not options or wires != fabric_of(changed).links.keys():
            return False
    return True


def _durations(this: Run, other: Run, both: Exchanged) -> Iterator[Pair]:
    """Ranks whose ops take different times: by node if these are fewer than pipeline ranks, or a single rank.

    The links are each run's own, since collectives inside ops are as quick as their links.
    """
    a, b = Variant.of(this), Variant.of(other)
    mine, theirs = (_never_slow(side).programs for side in (a, replace(a, scenario=both.there)))
    mine_of_b, theirs_of_b = (_never_slow(side).programs for side in (b, replace(b, scenario=both.back)))
    layout, cluster = a.scenario.parallel.layout, a.scenario.cluster
    differ = [rank for rank in range(layout.ranks) if mine[rank].durations != theirs[rank].durations]
    places = grouped_by(differ, lambda rank: name_of_place(a, layout.coordinate(rank, "pipeline")))
    nodes = grouped_by(differ, lambda rank: f"node {cluster.node_of(rank)}")
    groups = nodes if len(nodes) < len(places) else places
    if len(differ) == 1:
        groups = {f"rank {differ[0]}": differ}
    for name, ranks in groups.items():
        there = a.with_retime(_those_of(theirs, mine, {*ranks}))
        yield name, there, b.with_retime(_those_of(theirs_of_b, mine_of_b, {*ranks}))


def bounds(this: Run, other: Run) -> tuple[int, int] | None:
    """Lower and upper bound of the change of the run's end if the order of everything is the same, in picoseconds.

    The lower bound is the change along A's critical paths, the upper bound that along B's. None if the runs have
    different ops or messages.
    """
    low = first_order(Traced(this).fitting(other.fold), Variant.of(other))
    high = first_order(Traced(other).fitting(this.fold), Variant.of(this))
    if low is None or high is None:
        return None
    return low - this.timeline.duration, other.timeline.duration - high


def _never_slow(side: Variant) -> Variant:
    """A side without its `slow` entries, which are a section of their own."""
    return replace(side, scenario=side.scenario.model_copy(update={"slow": ()}))


def _those_of(programs: list[Program], instead_of: list[Program], ranks: AbstractSet[int]) -> DurationOverride:
    """The durations that some ranks have in other programs, instead of those in their own."""

    def retime(rank: int, call: Call, took: int) -> int:
        if rank not in ranks:
            return took
        was, now = (
            here.duration if (here := side[rank].ops.get(call.number)) else 0 for side in (instead_of, programs)
        )
        return now if took == was else took if was == now else round(took * now / was)

    def alike(rank: int) -> object:
        return rank in ranks and (programs[rank], instead_of[rank])

    return DurationOverride(retime, alike, each=True)


def _wires(this: Run, other: Run, both: Exchanged) -> Iterator[Pair]:
    """Kinds of links that differ, then all latencies."""
    a, b = Variant.of(this), Variant.of(other)
    assert a.fabric is not None and b.fabric is not None
    mine, theirs, of_b, back_of_b = a.fabric, fabric_of(both.there), b.fabric, fabric_of(both.back)
    differ = (name for name, link in mine.links.items() if link.bandwidth != theirs.links[name].bandwidth)
    for kind, names in grouped_by(differ, link_kind).items():
        there = replace(a, fabric=_taken(mine, theirs, names))
        yield f"{kind} bandwidth", there, replace(b, fabric=_taken(of_b, back_of_b, names))
    if _latencies(mine) != _latencies(theirs):
        there = replace(a, fabric=_delayed(mine, theirs))
        yield "latencies", there, replace(b, fabric=_delayed(of_b, back_of_b))


def _taken(fabric: Fabric, other: Fabric, names: list[str]) -> Fabric:
    return over_links(fabric, {**fabric.links, **{name: other.links[name] for name in names}})


def _latencies(fabric: Fabric) -> list[int]:
    """The latencies between the first GPU and every other."""
    return [fabric.route(0, other).latency for other in range(1, fabric.gpus)]


def _delayed(fabric: Fabric, other: Fabric) -> Fabric:
    def route(sender: int, receiver: int) -> Route:
        mine, theirs = fabric.route(sender, receiver), other.route(sender, receiver)
        return Route(mine.links, theirs.latencies if len(theirs.latencies) == len(mine.links) else mine.latencies)

    return replace(fabric, route=route)
