"""Permanently slow links, as if the machine were built that way, and the same machine without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hybrid_des.cluster.fabric import Fabric, LinkSpec, Route
from hybrid_des.scenario.sections.perturbations import Slow
from hybrid_des.units import to_picoseconds


def slowed(fabric: Fabric, slow: Sequence[Slow]) -> Fabric:
    """The fabric with permanent slowdowns: less bandwidth of links, and more latency on routes over them."""
    return _changed(fabric, slow, 1)


def restored(fabric: Fabric, slow: Sequence[Slow]) -> Fabric:
    """The fabric without permanent slowdowns that it includes; exact, as bandwidths are fractions."""
    return _changed(fabric, slow, -1)


def _changed(fabric: Fabric, slow: Sequence[Slow], sign: int) -> Fabric:
    """The fabric with slowdowns added (sign 1) or taken back (−1)."""
    links, latency = dict(fabric.links), Counter[str]()
    for entry in (one for one in slow if one.permanent):
        for name in filter(links.__contains__, entry.links):
            links[name] = _scaled(links[name], entry.spell.factor**sign)
            latency[name] += sign * to_picoseconds(entry.latency)
    if links == fabric.links and not latency.total():
        return fabric

    def route(sender: int, receiver: int) -> Route:
        usual = fabric.route(sender, receiver)
        more = (latency[name] for name in usual.links)
        return Route(usual.links, tuple(map(sum, zip(usual.latencies, more, strict=True))))

    return replace(fabric, links=links, route=route if latency.total() else fabric.route, blocks=None)


def _scaled(link: LinkSpec, factor: Fraction) -> LinkSpec:
    return link if not isinstance(link.bandwidth, Fraction) else link._replace(bandwidth=link.bandwidth * factor)
