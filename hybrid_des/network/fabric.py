"""The result of a topology: links with bandwidths, and routes over them with latencies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, overload

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
        return len(self.nodes) * self.nodes[0].gpus if self.alike else sum(node.gpus for node in self.nodes)

    @cached_property
    def alike(self) -> bool:
        """Whether all nodes share one specification."""
        return all(node is self.nodes[0] for node in self.nodes)

    @cached_property
    def node_of(self) -> Sequence[int]:
        """The node of each GPU."""
        return NodeOfGpu(self._starts, self.gpus)

    @cached_property
    def places(self) -> Sequence[tuple[int, int]]:
        """(node, index in the node) of each GPU."""
        return PlaceOfGpu(self._starts, self.gpus)

    def first_gpu(self, node: int) -> int:
        """The first GPU of a node."""
        return self._starts[node]

    @cached_property
    def _starts(self) -> Sequence[int]:
        """The first GPU of each node."""
        if self.alike:
            return range(0, self.gpus, self.nodes[0].gpus)
        return [0, *accumulate(node.gpus for node in self.nodes[:-1])]

    def latency(self, node: int, other: int) -> int:
        """NIC-to-NIC latency in picoseconds: the larger one of the two nodes'."""
        return max(self.nodes[node].infiniband.latency, self.nodes[other].infiniband.latency)


class _ByGpu(Sequence[Any]):
    """Values derived from a GPU's number and the first GPU of each node; nothing is stored per GPU."""

    def __init__(self, starts: Sequence[int], gpus: int) -> None:
        self._starts = starts
        self._gpus = range(gpus)

    def __len__(self) -> int:
        return len(self._gpus)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self._starts))


class NodeOfGpu(_ByGpu):
    """The node of each GPU."""

    @overload
    def __getitem__(self, gpu: int) -> int: ...
    @overload
    def __getitem__(self, gpu: slice) -> list[int]: ...
    def __getitem__(self, gpu: int | slice) -> int | list[int]:
        """The node of a GPU, or of each GPU in a slice."""
        if isinstance(gpu, slice):
            return [self[one] for one in self._gpus[gpu]]
        return bisect_right(self._starts, self._gpus[gpu]) - 1


class PlaceOfGpu(_ByGpu):
    """(node, index in the node) of each GPU."""

    @overload
    def __getitem__(self, gpu: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, gpu: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, gpu: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        """The place of a GPU, or of each GPU in a slice."""
        if isinstance(gpu, slice):
            return [self[one] for one in self._gpus[gpu]]
        number = self._gpus[gpu]
        node = bisect_right(self._starts, number) - 1
        return node, number - self._starts[node]


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


class LinksByOwner(Mapping[str, LinkSpec]):
    """Links by name; those of one owner, the first part of their names such as "node3", are made on first use.

    Args:
        of_owner: owner → its links; none, if there is no such owner.
        every: returns all links, in the order of the table.
    """

    def __init__(self, of_owner: Callable[[str], Iterable[LinkSpec]], every: Callable[[], Iterable[LinkSpec]]) -> None:
        self._of_owner = of_owner
        self._every = every
        self._made: dict[str, dict[str, LinkSpec]] = {}

    def __getitem__(self, name: str) -> LinkSpec:
        """The link of this name."""
        owner = name.partition("/")[0]
        links = self._made.get(owner)
        if links is None:
            links = self._made[owner] = {link.name: link for link in self._of_owner(owner)}
        return links[name]

    def __iter__(self) -> Iterator[str]:
        return (link.name for link in self._every())

    def __len__(self) -> int:
        return sum(1 for _ in self._every())

    def changed(self, change: Callable[[LinkSpec], LinkSpec]) -> LinksByOwner:
        """A table of the same links, each with a change applied."""
        return LinksByOwner(lambda owner: map(change, self._of_owner(owner)), lambda: map(change, self._every()))


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
class Blocks:
    """Equal blocks of consecutive GPUs, such as nodes.

    Any exchange of blocks in which every GPU keeps its place in its block maps routes to routes, and each link of a
    block to the same link of the block that takes its place.

    Attributes:
        size: GPUs per block.
        of: name of a link → number of the block that it belongs to; None if it belongs to none.
    """

    size: int
    of: Callable[[str], int | None]


@dataclass(frozen=True)
class Fabric:
    """The wiring of a cluster: all links, and the route between any two GPUs.

    Attributes:
        links: by name.
        route: maps two global GPU indices (sender, receiver) to a route; raises `UsageError` if there is none.
        gpus: number of GPUs.
        node_of: the node of each GPU.
        reducers: node → index of its switch with in-network reduction, if it has one: a number after those of the
            GPUs, accepted by `route`.
        blocks: the equal blocks that it consists of, if any.
    """

    links: Mapping[str, LinkSpec]
    route: Callable[[int, int], Route]
    gpus: int
    node_of: Sequence[int]
    reducers: Mapping[int, int] = field(default_factory=dict)
    blocks: Blocks | None = None
