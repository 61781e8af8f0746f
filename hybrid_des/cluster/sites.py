"""Sites: data centers whose nodes are wired as ever, with one link from each site to each other.

    gpu0 ─nic-out─► … ─wan/site0-site1─► … ─nic-in─► gpu64       the link stands in the middle of the route

All traffic from one site to another shares that link.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import permutations
from typing import Any

from hybrid_des.cluster.fabric import Fabric, LinkSpec, PortSpec, Route
from hybrid_des.cluster.topologies.nodes import KNOWN_ROUTES

WAN = "wan"


def across_sites(fabric: Fabric, site_of: Sequence[int], wan: PortSpec) -> Fabric:
    """The fabric with links between sites.

    Its blocks are no longer equal: exchanging nodes of two sites changes routes.

    Args:
        fabric: the wiring as if there was one site.
        site_of: the site of each node.
        wan: the bandwidth of a link between two sites, and its latency, which adds to that of the route.
    """
    pairs = permutations(sorted(set(site_of)), 2)
    between = {
        name: LinkSpec(name, wan.bandwidth, f"site{a}", f"site{b}", wan.latency)
        for a, b in pairs
        for name in [name_of(a, b)]
    }
    links: Any = ChainMap(between, fabric.links)  # type: ignore[arg-type]  # that of the fabric is only read

    @lru_cache(maxsize=KNOWN_ROUTES)
    def route(sender: int, receiver: int) -> Route:
        usual = fabric.route(sender, receiver)
        if max(sender, receiver) >= fabric.gpus:  # a switch of its own node
            return usual
        here, there = (site_of[fabric.node_of[end]] for end in (sender, receiver))
        if here == there:
            return usual
        half = -(-len(usual.links) // 2)
        return Route(
            (*usual.links[:half], name_of(here, there), *usual.links[half:]),
            (*usual.latencies[:half], wan.latency, *usual.latencies[half:]),
        )

    return replace(fabric, links=links, route=route, blocks=None)


def name_of(sender: int, receiver: int) -> str:
    """The link from one site to another."""
    return f"{WAN}/site{sender}-site{receiver}"
