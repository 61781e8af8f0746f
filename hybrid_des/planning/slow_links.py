"""Links that are slow: for good, as if the machine were built that way, or for an interval, as conditions of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from hybrid_des.engine.timetable import Spell, Timetable
from hybrid_des.errors import UsageError
from hybrid_des.network.conditions import Conditions
from hybrid_des.network.fabric import Fabric, LinkSpec, Route
from hybrid_des.scenario.perturbed import Slow
from hybrid_des.units import to_picoseconds


def slowed(fabric: Fabric, slow: Sequence[Slow]) -> Fabric:
    """The fabric with what is slow for good: narrower links, and more latency on routes over them."""
    links, latency = dict(fabric.links), Counter[str]()
    for one in filter(_for_good, slow):
        for name in filter(links.__contains__, one.links):
            links[name] = _narrower(links[name], one.spell.factor)
            latency[name] += to_picoseconds(one.latency)
    if links == fabric.links and not latency.total():
        return fabric

    def route(sender: int, receiver: int) -> Route:
        usual = fabric.route(sender, receiver)
        more = (latency[name] for name in usual.links)
        return Route(usual.links, tuple(map(sum, zip(usual.latencies, more, strict=True))))

    return replace(fabric, links=links, route=route if latency.total() else fabric.route, blocks=None)


def _for_good(one: Slow) -> bool:
    return one.until is None and one.from_ == 0 and one.flap is None


def _narrower(link: LinkSpec, factor: Fraction) -> LinkSpec:
    return link if not isinstance(link.bandwidth, Fraction) else link._replace(bandwidth=link.bandwidth * factor)


def conditions_of(slow: Sequence[Slow], fabric: Fabric) -> dict[str, Conditions]:
    """By link: what is slow for an interval; and, where times are measured, by a factor for good.

    Raises:
        UsageError: a wiring of the user's own has no such link.
    """
    spells: dict[str, list[Spell]] = {}
    more: dict[str, list[tuple[Spell, int]]] = {}
    for one in slow:
        names = [name for name in one.links if name in fabric.links]
        if one.links and not names:
            raise UsageError(f"slow: this wiring has no {' '.join(map(str, one.target))}")
        for name in names:
            if not _for_good(one):
                more.setdefault(name, []).append((one.spell, to_picoseconds(one.latency)))
            if not _for_good(one) or not isinstance(fabric.links[name].bandwidth, Fraction):
                spells.setdefault(name, []).append(one.spell)
    return {name: Conditions(Timetable.of(each), _latencies(more.get(name, ()))) for name, each in spells.items()}


def _latencies(spells: Iterable[tuple[Spell, int]]) -> tuple[tuple[int, int], ...]:
    """From each time on, the sum of the latencies of the spells that are on."""
    spells = list(spells)
    starts = sorted({0, *(s.start for s, _ in spells), *(s.until for s, _ in spells if s.until is not None)})
    return tuple(
        (at, sum(extra for s, extra in spells if s.start <= at and (s.until is None or at < s.until))) for at in starts
    )
