"""Topologies, one file each: a function from `ClusterSpec` to the links and routes of a `Fabric`.

    @topology("mine", summary="…", options=Mine)
    def mine(cluster: ClusterSpec, options: Mine) -> Fabric: ...

A link may carry any number of messages' routes; what a message meets on its way is all that a topology decides.
"""

from __future__ import annotations

from collections.abc import Callable

from hybrid_des.errors import Refusal
from hybrid_des.network.fabric import Fabric
from hybrid_des.options import Options
from hybrid_des.registry import Registry

Topology = Callable[..., Fabric]  # of a ClusterSpec and, where there are any, its options
Check = Callable[..., None]

_REGISTRY: Registry[Topology] = Registry("topology", "hybrid_des.network.topologies")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


class OptionRefusal(Refusal):
    """An option of a topology does not fit the cluster; `option` and `at` say which, and where in its list."""

    def __init__(self, option: str, message: str, *at: int) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option
        self.message = message
        self.at = at


def topology(
    name: str, *, summary: str, options: type[Options] | None = None, check: Check | None = None
) -> Callable[[Topology], Topology]:
    """Register a topology.

    Args:
        name: what a scenario's `cluster.topology` says.
        summary: one line for people.
        options: the class of what it reads besides the common keys of a scenario's `cluster:`; it gets them as its
            last argument, and so does `check`.
        check: raises `Refusal` for a cluster that cannot be wired so, without wiring it; scenarios are checked with
            it when they are read.
    """
    return _REGISTRY(name, options, summary=summary, check=check)
