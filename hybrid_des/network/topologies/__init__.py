"""Topologies, one file each: a function from `ClusterSpec` to the links and routes of a `Fabric`.

    @topology("mine", summary="…", options=("oversubscription",))
    def mine(cluster: ClusterSpec) -> Fabric: ...

A link may carry any number of messages' routes; what a message meets on its way is all that a topology decides.
"""

from __future__ import annotations

from collections.abc import Callable

from hybrid_des.errors import Refusal
from hybrid_des.network.fabric import ClusterSpec, Fabric
from hybrid_des.registry import Registry

Topology = Callable[[ClusterSpec], Fabric]
Check = Callable[[ClusterSpec], None]

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
    name: str, *, summary: str, options: tuple[str, ...] = (), check: Check | None = None
) -> Callable[[Topology], Topology]:
    """Register a topology.

    Args:
        name: what a scenario's `cluster.topology` says.
        summary: one line for people.
        options: keys of a scenario's `cluster:` that it reads besides the common ones; it finds those that were given
            in `ClusterSpec.options`.
        check: raises `Refusal` for a cluster that cannot be wired so, without wiring it; scenarios are held against
            it when they are read.
    """
    return _REGISTRY(name, summary=summary, options=options, check=check)
