"""The result of a topology: links with bandwidths, and routes over them with latencies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

Bandwidth = Fraction | None  # bytes per second; None is infinite


@dataclass(frozen=True)
class PortSpec:
    """A port of a GPU or NIC: bytes per second per direction (None: infinite), and latency in picoseconds."""

    bandwidth: Bandwidth
    latency: int


@dataclass(frozen=True)
class NodeSpec:
    """One node: GPUs with one port each, NICs, and whether its NVSwitch supports in-network reduction."""

    gpus: int
    nvlink: PortSpec
    infiniband: PortSpec
    nics: int
    in_switch: bool = False

    def nic_of(self, gpu: int) -> int:
        """The NIC used by a GPU of the node."""
        return gpu * self.nics // self.gpus


@dataclass(frozen=True)
class ClusterSpec:
    """The input of a topology besides its options: the nodes, possibly heterogeneous; GPUs are numbered across them."""

    nodes: tuple[NodeSpec, ...]

    @cached_property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each GPU."""
        return tuple(node for node, _ in self.places)

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(node, index in the node) of each GPU."""
        return tuple((number, gpu) for number, node in enumerate(self.nodes) for gpu in range(node.gpus))

    def latency(self, node: int, other: int) -> int:
        """NIC-to-NIC latency in picoseconds: the larger one of the two nodes."""
        return max(self.nodes[node].infiniband.latency, self.nodes[other].infiniband.latency)


class LinkSpec(NamedTuple):
    """One direction of a wire or port.

    Attributes:
        name: as in the timeline, such as "node0/gpu3/nvlink-out".
        bandwidth: bytes per second; None is infinite.
        source, target: the points it connects, such as "gpu3" and "node0/nvswitch"; used for drawing.
        latency: picoseconds from the end of service to arrival for processes that transmit over this link alone;
            messages of flows have the latencies of their route.
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
        latencies: picoseconds, one per link: delay of the head from leaving it to the next link (to the receiver,
            for the last). The latency of the path is their sum.
    """

    links: tuple[str, ...]
    latencies: tuple[int, ...]

    @cached_property
    def latency(self) -> int:
        """Latency of the whole path in picoseconds."""
        return sum(self.latencies)


@dataclass(frozen=True)
class Fabric:
    """The wiring of a cluster: all links, and the route between any two GPUs.

    Attributes:
        links: by name.
        route: maps two global GPU indices (sender, receiver) to a route; raises `UsageError` if there is none.
        gpus: number of GPUs.
        node_of: the node of each GPU.
        reducers: index of the switch with in-network reduction of each node that has one: a number after those of the
            GPUs, accepted by `route`.
    """

    links: dict[str, LinkSpec]
    route: Callable[[int, int], Route]
    gpus: int
    node_of: tuple[int, ...]
    reducers: Mapping[int, int] = field(default_factory=dict)
