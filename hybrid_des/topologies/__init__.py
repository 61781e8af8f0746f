"""Topologies, one file each: a function from `ClusterSpec` to the links and routes of a `Fabric`."""

from __future__ import annotations

from collections.abc import Callable

from hybrid_des.fabric import ClusterSpec, Fabric
from hybrid_des.registry import Registry

topology: Registry[Callable[[ClusterSpec], Fabric]] = Registry("topology", "hybrid_des.topologies")
names = topology.names
find = topology.__getitem__
