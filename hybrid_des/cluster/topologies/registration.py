"""Topologies, each a function that maps a `ClusterSpec` to the links and routes of a `Fabric`.

    @topology("mine", summary="…", options=Mine)
    def mine(cluster: ClusterSpec, options: Mine) -> Fabric: ...

A topology decides only which links the route of a message takes; any number of routes may share a link. Below are
links and routes that topologies share: NICs, and pairs of links between two points.
"""

from collections.abc import Callable

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.options import Options
from hybrid_des.registry import Registry

Topology = Callable[..., Fabric]  # (ClusterSpec[, options])


Check = Callable[..., None]


_REGISTRY: Registry[Topology] = Registry("topology", "hybrid_des.cluster.topologies", returns=Fabric)


names = _REGISTRY.names


find = _REGISTRY.__getitem__


def topology(
    name: str, *, summary: str, options: type[Options] | None = None, check: Check | None = None
) -> Callable[[Topology], Topology]:
    """Register a topology.

    Args:
        name: value of a scenario's `cluster.topology`.
        summary: one-line description.
        options: class of its options, which extend a scenario's `cluster:`; an instance is the last argument of the
            topology and of `check`.
        check: raises `Refusal` for unsupported clusters without building links; called when scenarios are loaded.
    """
    return _REGISTRY(name, options, summary=summary, check=check)
