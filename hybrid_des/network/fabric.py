"""What a topology hands out: links with a bandwidth, and routes over them with a latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from hybrid_des.errors import TooLongError
from hybrid_des.network.times import TableBandwidth
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bandwidth

Bandwidth = Fraction | None  # bytes a second; None is infinite

LONGEST_S = 86_400  # a day for one message: the clock counts 106 of them, for all messages of all ranks


@dataclass(frozen=True)
class PortSpec:
    """A GPU's or NIC's way out and in: bytes a second each way (None: infinite) and picoseconds of latency."""

    bandwidth: Bandwidth
    latency: int


@dataclass(frozen=True)
class NodeSpec:
    """One node: so many GPUs with a port each, so many NICs, and whether its NVSwitch can add up what it carries."""

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
        """How many GPUs all nodes have together."""
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
        bandwidth: bytes a second; None is infinite.
        source, target: the points that it joins, such as "gpu3" and "node0/nvswitch"; what pictures are drawn from.
    """

    name: str
    bandwidth: Bandwidth
    source: str = ""
    target: str = ""


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
        reducers: node → the place of its switch that adds up, if it has one: a number of its own behind the GPUs',
            which `route` knows.
    """

    links: dict[str, LinkSpec]
    route: Callable[[int, int], Route]
    gpus: int
    node_of: tuple[int, ...]
    reducers: Mapping[int, int] = field(default_factory=dict)


def service_time(size: int, bandwidth: Bandwidth, ticks: int = 1) -> int:
    """How long `size` bytes occupy a link: picoseconds, or so many ticks per picosecond, rounded once to the nearest.

    Raises:
        TooLongError: longer than a day.
    """
    if isinstance(bandwidth, TableBandwidth):
        return bandwidth.table.occupancy(size) * ticks
    if bandwidth is None:
        return 0
    if size > LONGEST_S * bandwidth:
        takes = f"a message of {size:,} bytes takes {float(size / bandwidth):.6g} s at {format_bandwidth(bandwidth)}"
        raise TooLongError(f"{takes}; was a unit such as GB/s forgotten?")
    return round(Fraction(size * PICOSECONDS_PER_SECOND * ticks) / bandwidth)
