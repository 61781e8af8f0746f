"""Permanently slow links, as if the machine were built that way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hybrid_des.network.fabric import Fabric, LinkSpec, Route
from hybrid_des.scenario.perturbed import Slow
from hybrid_des.units import to_picoseconds


def slowed(fabric: Fabric, slow: Sequence[Slow]) -> Fabric:
    """The fabric with permanent slowdowns: less bandwidth of links, and more latency on routes over them."""
    links, latency = dict(fabric.links), Counter[str]()
    for one in (one for one in slow if one.for_good):
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


def _narrower(link: LinkSpec, factor: Fraction) -> LinkSpec:
    return link if not isinstance(link.bandwidth, Fraction) else link._replace(bandwidth=link.bandwidth * factor)
