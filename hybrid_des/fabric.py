"""What a topology hands out: links with a bandwidth, and routes over them with a latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from hybrid_des.units import PICOSECONDS_PER_SECOND

Bandwidth = Fraction | None  # bytes a second; None is infinite


@dataclass(frozen=True)
class PortSpec:
    """A GPU's or NIC's way out and in: bytes a second each way (None: infinite) and picoseconds of latency."""

    bandwidth: Bandwidth
    latency: int


@dataclass(frozen=True)
class ClusterSpec:
    """What a topology may know: so many nodes of so many GPUs, their ports, and the options of its own."""

    nodes: int
    gpus_per_node: int
    nvlink: PortSpec
    infiniband: PortSpec
    nics_per_node: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LinkSpec:
    """One direction of a wire or port.

    Attributes:
        name: what the timeline calls it, such as "node0/gpu3/nvlink-out".
        bandwidth: bytes a second; None is infinite.
    """

    name: str
    bandwidth: Bandwidth


@dataclass(frozen=True)
class Route:
    """The links a message takes, in order.

    Attributes:
        links: names of the links.
        latencies: picoseconds, one a link: how long after leaving it the head is at the next link (at the receiver,
            for the last). The path's latency is their sum, counted once.
    """

    links: tuple[str, ...]
    latencies: tuple[int, ...]

    @cached_property
    def latency(self) -> int:
        """The whole path's latency in picoseconds."""
        return sum(self.latencies)


@dataclass(frozen=True)
class Fabric:
    """A cluster's wiring: every link, and the route between any two GPUs.

    Attributes:
        links: by name.
        route: (sender, receiver) as global GPU indices → the route between them; raises `UsageError` where there is
            none.
        gpus: how many GPUs the cluster has.
        node_of: the node of each GPU.
    """

    links: dict[str, LinkSpec]
    route: Callable[[int, int], Route]
    gpus: int
    node_of: tuple[int, ...]


def service_time(size: int, bandwidth: Bandwidth) -> int:
    """Picoseconds that `size` bytes occupy a link, rounded once to the nearest."""
    return 0 if bandwidth is None else round(Fraction(size * PICOSECONDS_PER_SECOND) / bandwidth)
