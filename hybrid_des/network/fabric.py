"""What a topology returns: links with a bandwidth, and routes over them with a latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

Bandwidth = Fraction | None  # bytes per second; None is infinite


@dataclass(frozen=True)
class PortSpec:
    """A GPU's or NIC's port: bytes per second each way (None: infinite) and picoseconds of latency."""

    bandwidth: Bandwidth
    latency: int


@dataclass(frozen=True)
class NodeSpec:
    """One node: GPUs with a port each, NICs, and whether its NVSwitch can reduce what it carries."""

    gpus: int
    nvlink: PortSpec
    infiniband: PortSpec
    nics: int
    in_switch: bool = False

    def nic_of(self, gpu: int) -> int:
        """The NIC that a GPU of the node uses."""
        return gpu * self.nics // self.gpus


@dataclass(frozen=True)
class ClusterSpec:
    """What a topology may know besides its options: the nodes, which may differ.

    GPUs are counted through all nodes in order.
    """

    nodes: tuple[NodeSpec, ...]

    @cached_property
    def gpus(self) -> int:
        """Number of GPUs of all nodes together."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each GPU."""
        return tuple(node for node, _ in self.places)

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(node, index in it) of each GPU."""
        return tuple((number, gpu) for number, node in enumerate(self.nodes) for gpu in range(node.gpus))

    def latency(self, node: int, other: int) -> int:
        """Picoseconds from NIC to NIC: the larger figure of the two nodes."""
        return max(self.nodes[node].infiniband.latency, self.nodes[other].infiniband.latency)


@dataclass(frozen=True)
class LinkSpec:
    """One direction of a wire or port.

    Attributes:
        name: what the timeline calls it, such as "node0/gpu3/nvlink-out".
        bandwidth: bytes per second; None is infinite.
        source, target: the points that it joins, such as "gpu3" and "node0/nvswitch"; what pictures are drawn from.
        latency: picoseconds from the end of service to arrival, for what a process transmits over this link alone;
            the messages of flows take the latencies of their route.
    """

    name: str
    bandwidth: Bandwidth
    source: str = ""
    target: str = ""
    latency: int = 0


@dataclass(frozen=True)
class Route:
    """The links a message takes, in order.

    Attributes:
        links: names of the links.
        latencies: picoseconds, one per link: how long after leaving it the head is at the next link (at the
            receiver, for the last). The path's latency is their sum, counted once.
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
        reducers: node → the place of its switch with in-network reduction, if it has one: a number behind the GPUs',
            which `route` knows.
    """

    links: dict[str, LinkSpec]
    route: Callable[[int, int], Route]
    gpus: int
    node_of: tuple[int, ...]
    reducers: Mapping[int, int] = field(default_factory=dict)
