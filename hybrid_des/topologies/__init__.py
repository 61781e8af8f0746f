"""Topologies, one file each: a function from `ClusterSpec` to the links and routes of a `Fabric`.

    @topology("mine", summary="…", options=("oversubscription",))
    def mine(cluster: ClusterSpec) -> Fabric: ...

A link may carry any number of messages' routes; what a message meets on its way is all that a topology decides.
"""

from __future__ import annotations

from collections.abc import Callable

from hybrid_des.fabric import ClusterSpec, Fabric
from hybrid_des.registry import Registry

Topology = Callable[[ClusterSpec], Fabric]

_REGISTRY: Registry[Topology] = Registry("topology", "hybrid_des.topologies")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def topology(name: str, *, summary: str, options: tuple[str, ...] = ()) -> Callable[[Topology], Topology]:
    """Register a topology.

    Args:
        name: what a scenario's `cluster.topology` says.
        summary: one line for people.
        options: keys of a scenario's `cluster:` that it reads besides the common ones; it finds those that were given
            in `ClusterSpec.options`.
    """
    return _REGISTRY(name, summary=summary, options=options)
