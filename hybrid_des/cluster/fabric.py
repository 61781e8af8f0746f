"""The result of a topology: links with bandwidths, and routes with latencies; for one job, or across sites."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeVar, overload

from hybrid_des.units import collected

Item = TypeVar("Item")


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


class ByGpu(Sequence[Item]):
    """A value per GPU, computed from its number: nothing is stored per GPU."""

    def __init__(self, gpus: int, of: Callable[[int], Item]) -> None:
        self._gpus = range(gpus)
        self._of = of

    def __len__(self) -> int:
        return len(self._gpus)

    @overload
    def __getitem__(self, gpu: int) -> Item: ...
    @overload
    def __getitem__(self, gpu: slice) -> list[Item]: ...
    def __getitem__(self, gpu: int | slice) -> Item | list[Item]:
        """The value of a GPU, or of each GPU in a slice."""
        if isinstance(gpu, slice):
            return [self._of(one) for one in self._gpus[gpu]]
        return self._of(self._gpus[gpu])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


@dataclass(frozen=True)
class ClusterSpec:
    """The input of a topology besides its options: the nodes, possibly heterogeneous; GPUs are numbered across them."""

    nodes: tuple[NodeSpec, ...]

    @cached_property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return len(self.nodes) * self.nodes[0].gpus if self.isomorphic else sum(node.gpus for node in self.nodes)

    @cached_property
    def isomorphic(self) -> bool:
        """Whether all nodes share one specification."""
        return all(node is self.nodes[0] for node in self.nodes)

    @cached_property
    def node_of(self) -> Sequence[int]:
        """The node of each GPU."""
        return ByGpu(self.gpus, self.nodes[0].gpus.__rfloordiv__ if self.isomorphic else self._node)

    @cached_property
    def places(self) -> Sequence[tuple[int, int]]:
        """(node, index in the node) of each GPU."""
        return ByGpu(self.gpus, self.nodes[0].gpus.__rdivmod__ if self.isomorphic else self._place)

    def first_gpu(self, node: int) -> int:
        """The first GPU of a node."""
        return self._starts[node]

    @cached_property
    def _starts(self) -> Sequence[int]:
        """The first GPU of each node."""
        if self.isomorphic:
            return range(0, self.gpus, self.nodes[0].gpus)
        return [0, *accumulate(node.gpus for node in self.nodes[:-1])]

    def _node(self, gpu: int) -> int:
        return bisect_right(self._starts, gpu) - 1

    def _place(self, gpu: int) -> tuple[int, int]:
        node = self._node(gpu)
        return node, gpu - self._starts[node]

    def latency(self, node: int, other: int) -> int:
        """NIC-to-NIC latency in picoseconds: the larger one of the two nodes'."""
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

    @property
    def beyond_nodes(self) -> bool:
        """Whether it belongs to an adapter, or to a switch between nodes, by the names of the package's topologies."""
        owner, _, part = self.name.partition("/")
        return part.startswith("nic") if owner.startswith("node") else owner.startswith(("leaf", "rail"))


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
        return LinksByOwner(lambda owner: map(change, self._of_owner(owner)), self._every)  # which names them


class ChangedLinks(Mapping[str, LinkSpec]):
    """The links of a wiring, each with a change applied when it is first asked for; large runs use few of them.

    Args:
        links: the table.
        change: what becomes of a link, whose name stays.
    """

    def __init__(self, links: Mapping[str, LinkSpec], change: Callable[[LinkSpec], LinkSpec]) -> None:
        self._links, self._change = links, change
        self._made: dict[str, LinkSpec] = {}

    def __getitem__(self, name: str) -> LinkSpec:
        """The link of this name."""
        link = self._made.get(name)
        if link is None:
            link = self._made[name] = self._change(self._links[name])
        return link

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)


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
    """The wiring of a cluster, or a job's view of it: all links, and the route between any two GPUs.

    Attributes:
        links: by name.
        route: maps two GPUs (sender, receiver) to a route; raises `UsageError` if there is none.
        gpus: number of GPUs.
        node_of: the node of each GPU.
        reducers: node → index of its switch with in-network reduction, if it has one: a number after those of the
            GPUs, accepted by `route`.
        blocks: the equal blocks that it consists of, if any.
        placement: in a job's view, the GPU of each rank; None if their numbers are equal.
        reached: the shares of nominal bandwidths that links within and beyond nodes have.
        linked: "mesh" if there is a link between each two GPUs of a node, "wires" if the user gives links one by one.
        nccl: the release of NCCL on its nodes, major and minor.
        nccl_allows: the algorithms and the protocols that it may take; empty: all.
        found: what has been found out about it and is asked for again; a changed wiring begins with nothing.
    """

    links: Mapping[str, LinkSpec]
    route: Callable[[int, int], Route]
    gpus: int
    node_of: Sequence[int]
    reducers: Mapping[int, int] = field(default_factory=dict)
    blocks: Blocks | None = None
    placement: Sequence[int] | None = None
    reached: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1))
    linked: Literal["", "mesh", "wires"] = ""
    nccl: tuple[int, int] = (2, 29)
    nccl_allows: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    found: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, find: Callable[[], Item]) -> Item:
        """What `find` returns, found once for each key."""
        if key not in self.found:
            self.found[key] = find()
        known: Item = self.found[key]
        return known

    def apart(self, gpus: Iterable[int]) -> bool:
        """Whether GPUs are on several nodes."""
        nodes = (self.node_of[gpu] for gpu in gpus)
        first = next(nodes, None)
        return any(node != first for node in nodes)

    def point(self, gpu: int) -> str:
        """The point of a GPU, or of a rank, such as "gpu3"; links name it as their source or target."""
        return f"gpu{gpu if self.placement is None else self.placement[gpu]}"


def by_node(nodes: Iterable[int]) -> dict[int, list[int]]:
    """The places at which each node stands in a list, in the order in which nodes appear."""
    return collected((node, gpu) for gpu, node in enumerate(nodes))


def placed(fabric: Fabric, gpus: Sequence[int]) -> Fabric:
    """A job's view of a fabric: its ranks 0 … n−1 are these GPUs, in this order; links and nodes keep their names."""
    points = [*gpus, *fabric.reducers.values()]
    reducers = {node: len(gpus) + number for number, node in enumerate(fabric.reducers)}

    def route(sender: int, receiver: int) -> Route:
        return fabric.route(points[sender], points[receiver])

    nodes = [fabric.node_of[gpu] for gpu in gpus]
    blocks = _blocks_of_job(fabric, gpus)
    return replace(
        fabric, route=route, gpus=len(gpus), node_of=nodes, reducers=reducers, blocks=blocks, placement=tuple(gpus)
    )


def _blocks_of_job(fabric: Fabric, gpus: Sequence[int]) -> Blocks | None:
    """The blocks that a job's GPUs fill, in the order of its ranks; None if they do not fill blocks one by one."""
    if (blocks := fabric.blocks) is None:
        return None
    whole, size = blocks, blocks.size
    firsts = gpus[::size]
    filled = [first + place for first in firsts for place in range(size)]
    if filled != list(gpus) or any(first % size for first in firsts):
        return None
    number: dict[int | None, int] = {first // size: new for new, first in enumerate(firsts)}
    return Blocks(size, lambda link: number.get(whole.of(link)))
