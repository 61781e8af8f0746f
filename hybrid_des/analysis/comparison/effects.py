"""The effect of each changed class on the step: exchanged alone, in both runs; the rest is their interaction."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from hybrid_des.analysis.counterfactual.first_order import first_order
from hybrid_des.analysis.counterfactual.ladder import link_kind
from hybrid_des.analysis.counterfactual.variant import Variant, name_of_place
from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.errors import HybridDesError
from hybrid_des.network.fabric import Fabric, Route
from hybrid_des.planning.program import Call, Program
from hybrid_des.simulation.programs import Retime
from hybrid_des.simulation.run import Run

Pair = tuple[str, Variant, Variant]  # a class, A with it from B, B with it from A
IGNORED = ("name", "description", "record", "seed", "on_oom", "version", "steps")


class Effect(NamedTuple):
    """A class that differs: how much it alone changes A, and how much reverting it would change B, in picoseconds.

    Both are changes of the run's end from A to B: T(A with it from B) − T(A), and T(B) − T(B with it from A).
    """

    name: str
    in_a: int
    in_b: int


def effects(one: Run, other: Run) -> list[Effect]:
    """Each changed class alone: durations by pipeline rank, kinds of links, latencies, and sections of the scenario.

    Runs whose ops or links differ exchange whole sections only. Classes that cannot be exchanged alone are left out.
    """
    a, b = Variant.of(one), Variant.of(other)
    ends = one.timeline.duration, other.timeline.duration
    pairs = [*_sections(one, other)]
    if one.plan == other.plan:
        pairs += [*_durations(a, b), *_wires(a, b)]
    found = []
    for name, there, back in pairs:
        with suppress(HybridDesError):
            found.append(Effect(name, there.simulated().duration - ends[0], ends[1] - back.simulated().duration))
    return sorted(found, key=lambda effect: -abs(effect.in_a))


def _sections(one: Run, other: Run) -> Iterator[Pair]:
    """Sections that differ; those otherwise exchanged by rank and link are included only if the runs' ops differ."""
    finer = {"cluster", "workload", "efficiency"} if one.plan == other.plan else set()
    for key in type(one.scenario).model_fields:
        mine, theirs = getattr(one.scenario, key), getattr(other.scenario, key)
        if mine != theirs and key not in (*finer, *IGNORED):
            yield (
                key,
                Variant(one.scenario.model_copy(update={key: theirs})),
                Variant(other.scenario.model_copy(update={key: mine})),
            )


def _durations(a: Variant, b: Variant) -> Iterator[Pair]:
    """Ranks whose ops take different times: by node if these are fewer than pipeline ranks, or a single rank."""
    mine, theirs = (_never_slow(side).programs() for side in (a, b))
    layout, spec = a.scenario.parallel.layout, a.scenario.cluster.spec
    places: dict[str, set[int]] = {}
    nodes: dict[str, set[int]] = {}
    for rank in (rank for rank in range(layout.ranks) if _times(mine[rank]) != _times(theirs[rank])):
        places.setdefault(name_of_place(a, layout.coordinate(rank, "pipeline")), set()).add(rank)
        nodes.setdefault(f"node {spec.node_of[rank]}", set()).add(rank)
    groups = nodes if len(nodes) < len(places) else places
    if len(groups) == 1 and len(only := next(iter(groups.values()))) == 1:
        groups = {f"rank {next(iter(only))}": only}
    for name, ranks in groups.items():
        there, back = a.with_retime(_those_of(theirs, mine, ranks)), b.with_retime(_those_of(mine, theirs, ranks))
        yield name, there, back


def bounds(one: Run, other: Run) -> tuple[int, int] | None:
    """Lower and upper bound of the change of the run's end if the order of everything is the same, in picoseconds.

    The lower bound is the change along A's critical paths, the upper bound that along B's. None if the runs have
    different ops or messages.
    """
    low = first_order(one, Slack.of(graph_of(one)), Variant.of(other))
    high = first_order(other, Slack.of(graph_of(other)), Variant.of(one))
    if low is None or high is None:
        return None
    return low - one.timeline.duration, other.timeline.duration - high


def _times(program: Program) -> list[int]:
    return [call.duration for call in program.ops.values()]


def _never_slow(side: Variant) -> Variant:
    """A side without its `slow` entries, which are a section of their own."""
    return replace(side, scenario=side.scenario.model_copy(update={"slow": ()}))


def _those_of(programs: list[Program], instead_of: list[Program], ranks: AbstractSet[int]) -> Retime:
    """The durations that some ranks have in other programs, instead of those in their own."""

    def retime(rank: int, call: Call, took: int) -> int:
        if rank not in ranks:
            return took
        was, now = (
            here.duration if (here := side[rank].ops.get(call.number)) else 0 for side in (instead_of, programs)
        )
        return now if took == was else took if was == now else round(took * now / was)

    return retime


def _wires(a: Variant, b: Variant) -> Iterator[Pair]:
    """Kinds of links that differ, then all latencies."""
    one, other = a.fabric, b.fabric
    if one is None or other is None or one.links.keys() != other.links.keys():
        return
    kinds: dict[str, list[str]] = {}
    for name, link in one.links.items():
        if link.bandwidth != other.links[name].bandwidth:
            kinds.setdefault(link_kind(name), []).append(name)
    for kind, names in kinds.items():
        there, back = replace(a, fabric=_taken(one, other, names)), replace(b, fabric=_taken(other, one, names))
        yield f"{kind} bandwidth", there, back
    if _latencies(one) != _latencies(other):
        yield "latencies", replace(a, fabric=_delayed(one, other)), replace(b, fabric=_delayed(other, one))


def _taken(fabric: Fabric, other: Fabric, names: list[str]) -> Fabric:
    return replace(fabric, links={**fabric.links, **{name: other.links[name] for name in names}})


def _latencies(fabric: Fabric) -> list[int]:
    """The latencies between the first GPU and every other."""
    return [fabric.route(0, other).latency for other in range(1, fabric.gpus)]


def _delayed(fabric: Fabric, other: Fabric) -> Fabric:
    def route(sender: int, receiver: int) -> Route:
        mine, theirs = fabric.route(sender, receiver), other.route(sender, receiver)
        return Route(mine.links, theirs.latencies if len(theirs.latencies) == len(mine.links) else mine.latencies)

    return replace(fabric, route=route)
