"""The `cluster` section of a scenario: GPUs, nodes and links; and the GPUs on which its ranks are placed."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, TypeAdapter, WithJsonSchema

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.cluster import topologies
from hybrid_des.cluster.fabric import ClusterSpec, NodeSpec, PortSpec
from hybrid_des.cluster.link_figures import LinkFigures
from hybrid_des.cluster.purposes import Purpose
from hybrid_des.cluster.time_table import TableBandwidth
from hybrid_des.collectives import allowed
from hybrid_des.engine.recorder import TimeRangeError
from hybrid_des.errors import TooLongError, UsageError
from hybrid_des.options import (
    MOST,
    Bytes,
    ComputeRate,
    Count,
    Factor,
    Flag,
    LinkBandwidth,
    Reads,
    ReadsAs,
    Section,
    Text,
    choice,
    describe,
    quantity,
    whole,
)
from hybrid_des.scenario.sections.plugins import Plugins, PluginSection
from hybrid_des.scenario.sections.values import Numbers, TopologyName

NODES = "nodes"
WITHOUT_PRIORITIES = {"priority": "fifo", "priority-fair": "fair"}  # what these are if all priorities are equal
MOST_URGENT = 2**20 - 1
WIDE: Mapping[str, str] = {"tf32": "peak_tf32", "fp32": "peak_fp32"}  # precision of 4-byte elements → its peak
QUANTISED: Mapping[str, tuple[str, ...]] = {  # precision of few bits → the peaks that a GPU with it has
    "fp8": ("peak_fp8",),
    "fp8-current": ("peak_fp8",),
    "fp8-blockwise": ("peak_fp8",),
    "mxfp8": ("peak_fp8", "peak_fp4"),  # blocks of 32 with a scale came with products in 4 bits
    "nvfp4": ("peak_fp4",),
}
NO_LINK = 10**5  # bytes per second; no link of a cluster is as slow


MemoryBandwidth = Annotated[Fraction, quantity("bandwidth")]


class GpuKind(Section):
    """A kind of GPU."""

    name: Text = "custom"
    """Name in reports."""
    memory: Bytes
    """Memory in bytes."""
    peak: ComputeRate | None = None
    """Dense half-precision rate in FLOP/s."""
    peak_fp8: ComputeRate | None = None
    """Dense 8-bit rate in FLOP/s."""
    peak_fp4: ComputeRate | None = None
    """Dense 4-bit rate in FLOP/s."""
    peak_tf32: ComputeRate | None = None
    """Dense rate of `precision: tf32` in FLOP/s."""
    peak_fp32: ComputeRate | None = None
    """Rate of `precision: fp32` in FLOP/s."""
    bandwidth: MemoryBandwidth | None = None
    """Bytes per second of its memory."""
    multiprocessors: Count | None = None
    """Number of streaming multiprocessors."""

    def peak_in(self, precision: str) -> float:
        """Dense FLOP/s in a precision; 0 if unknown."""
        few = QUANTISED.get(precision, ("peak",))[0]
        return float(getattr(self, WIDE.get(precision, few)) or 0)


class NvLink(LinkFigures):
    """The links within a node."""

    in_switch: Flag = False
    """Whether the NVSwitch supports in-network reduction. Default from the GPU."""


class InfiniBand(LinkFigures):
    """The links between nodes."""

    nics_per_node: Count
    """NICs per node; GPU i of g uses NIC floor(i·nics/g). Default from the GPU."""

    @property
    def port(self) -> PortSpec:
        """These figures as a topology's `PortSpec`; an adapter's share of a table that all of a node carried."""
        if self.table is None or self.table.adapters is None:
            return super().port
        table = self.table.divided(self.nics_per_node)
        return PortSpec(TableBandwidth(table), table.latency)


def _look_up(value: object) -> object:
    """Replace a name from the catalogue with its figures."""
    if isinstance(value, str):
        try:
            part = catalogue.part(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return {key: getattr(part, key) for key in GpuKind.model_fields}
    if not isinstance(value, Mapping | GpuKind):
        raise ValueError(f"expected a name such as {catalogue.DEFAULT}, or its figures, found {describe(value)}")
    return value


GpuName = Annotated[str, WithJsonSchema({"enum": catalogue.names()})]
GpuChoice = Annotated[GpuKind, BeforeValidator(_look_up, json_schema_input_type=GpuName | GpuKind)]


class NodeKind(Section):
    """Nodes of one kind in a heterogeneous cluster; defaults come from the node's own GPU, else from the cluster."""

    count: Count = 1
    """Number of consecutive nodes of this kind."""
    gpu: GpuChoice
    """As in `cluster`."""
    gpus_per_node: Count
    """As in `cluster`."""
    nvlink: NvLink
    """As in `cluster`."""
    infiniband: InfiniBand
    """As in `cluster`; messages between two kinds of nodes see the larger latency."""
    speed: Factor = Fraction(1)
    """Relative compute speed: ops take the workload's times divided by it."""

    @property
    def spec(self) -> NodeSpec:
        """The view of one such node that topologies get."""
        return NodeSpec(
            gpus=self.gpus_per_node,
            nvlink=self.nvlink.port,
            infiniband=self.infiniband.port,
            nics=self.infiniband.nics_per_node,
            in_switch=self.nvlink.in_switch,
        )


_COUNT = whole(1, MOST)
_KINDS = TypeAdapter(tuple[NodeKind, ...], config=ConfigDict(defer_build=True))


def _nodes(value: object) -> int | tuple[NodeKind, ...]:
    """Read a list of kinds of nodes, or else a number."""
    if not isinstance(value, list | tuple):
        count: int = _COUNT.read(value)
        return count
    if not value:
        raise ValueError("an empty list; expected a number, or a list of kinds of nodes")
    return _KINDS.validate_python(value)


Nodes = Annotated[
    int | tuple[NodeKind, ...],
    ReadsAs(_nodes, Annotated[int, _COUNT] | Annotated[tuple[NodeKind, ...], Field(min_length=1)]),
]


class Site(Section):
    """A data center."""

    nodes: Numbers
    """Its nodes, by number: 0-63, or a list."""


Priority = Annotated[int, whole(0, MOST_URGENT)]


RELEASE = r"^\d+\.\d+\.\d+$"


def _release(value: object) -> str:
    """Read a release; a number would say 2.3 for 2.30."""
    if not isinstance(value, str) or not re.match(RELEASE, value):
        raise ValueError(f"expected a release such as 2.29.2, found {describe(value)}")
    return value


Release = Annotated[str, Reads(_release, {"type": "string", "pattern": RELEASE})]


Algorithms = Annotated[str, allowed.listed(allowed.ALGORITHMS, allowed.OTHERS)]
Protocols = Annotated[str, allowed.listed(allowed.PROTOCOLS)]


class Priorities(Section):
    """How urgent messages are by purpose, higher first; those not given are as urgent as the least urgent given one."""

    pipeline: Priority | None = None
    """Activations and their gradients, from stage to stage."""
    gradients: Priority | None = None
    """Gradients that replicas reduce."""
    parameters: Priority | None = None
    """Sharded parameters that replicas gather."""
    tensor: Priority | None = None
    """Collectives of tensor ranks, if sent as messages."""
    context: Priority | None = None
    """Collectives of context ranks, if sent as messages."""
    expert: Priority | None = None
    """Collectives of expert ranks, if sent as messages."""

    @cached_property
    def of(self) -> Mapping[str, int]:
        """The priority of each purpose, by key."""
        given = {key: value for key, value in self if value is not None}
        return {key: given.get(key, min(given.values(), default=0)) for key, _ in self}


BEHIND_JOBS = -1  # the priority of what is less urgent than any job


def urgency_of(job: int, purpose: int = 0) -> int:
    """The priority of messages on links: that of the job first, then that of their purpose."""
    return job * (MOST_URGENT + 1) + purpose


class Cluster(PluginSection):
    """The machine."""

    plugins: ClassVar[Plugins] = Plugins("topology", topologies.names, topologies.find, NODES)
    _placement: tuple[int, ...] | None = PrivateAttr(default=None)
    _urgency: int = PrivateAttr(default=0)
    _rivals: tuple[int, ...] = PrivateAttr(default=())

    gpu: GpuChoice
    """A name from the catalogue (default a100-80gb) or a mapping {memory: 80 GB, peak: 312 TFLOP/s}."""
    nodes: Nodes = 1
    """Number of nodes or, if they differ, a list such as [{count: 2}, {gpus_per_node: 4, speed: 0.5}]."""
    gpus_per_node: Count = 8
    """GPUs in each node, which share an NVLink domain. Default 8, or 72 of GB200 and GB300."""
    nvlink: NvLink
    """Each GPU's port to the other GPUs of its node."""
    infiniband: InfiniBand
    """Each NIC of a node."""
    host: LinkBandwidth = None
    """Each GPU's bandwidth to the memory of its host, per direction. Default from the GPU: PCIe, or NVLink-C2C."""
    topology: TopologyName = NODES
    """How GPUs and nodes are wired: `nodes` is an NVSwitch in each node and a non-blocking network between NICs.

    Default from the GPU: `nodes`, or `direct` where GPUs are linked to each other."""
    sharing: Annotated[str, choice("fifo", "fair", "priority", "priority-fair")] = "fifo"
    """How messages share a link. fifo: one at a time; fair: all concurrently, with max-min fair bandwidth.

    priority: one at a time, of those that wait the most urgent first; priority-fair: all concurrently, the most urgent
    ones before all others, which they preempt."""
    nccl: Release = "2.29.2"
    """The release of NCCL whose rules hold: before 2.29, or since. Where Blackwell's rings leave LL128 for Simple, and
    sends LL, changed then."""
    nccl_algorithm: Algorithms | None = None
    """What NCCL's all-reduces may take, as NCCL_ALGO: `Ring`, `Tree`, `NVLS`, `NVLSTree`; several as `Ring,Tree`, or
    `^Tree` for all others. Default: all."""
    nccl_protocol: Protocols | None = None
    """What NCCL's collectives around rings, along trees and through switches may take, as NCCL_PROTO: `LL`, `LL128`,
    `Simple`. Default: all."""
    sites: tuple[Site, ...] = ()
    """Data centers that divide the nodes; one is the same as none."""
    wan: LinkFigures | None = None
    """The link from each site to each other, per direction, which all traffic between the two shares."""
    priorities: Priorities = Field(default_factory=Priorities)
    """With `priority` and `priority-fair`: how urgent messages are by purpose."""

    @cached_property
    def kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of nodes, each with its count."""
        if not isinstance(self.nodes, int):
            return self.nodes
        same = {name: getattr(self, name) for name in ("gpu", "gpus_per_node", "nvlink", "infiniband")}
        return (NodeKind.model_construct(count=self.nodes, **same),)

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return sum(kind.count * kind.gpus_per_node for kind in self.kinds)

    @cached_property
    def spec(self) -> ClusterSpec:
        """The view of the cluster that topologies get."""
        return ClusterSpec(tuple(node for kind in self.kinds for node in (kind.spec,) * kind.count))

    @cached_property
    def site_of(self) -> Sequence[int]:
        """The site of each node; all are at one, if there are none."""
        sites = [0] * len(self.spec.nodes)
        for number, site in enumerate(self.sites):
            for node in site.nodes:
                sites[node] = number
        return sites

    @property
    def unit_question(self) -> str:
        """A question, if a link's bandwidth is so low that its unit was probably forgotten; else empty."""
        for kind in self.kinds:
            for name in ("nvlink", "infiniband"):
                bandwidth = getattr(kind, name).bandwidth
                if bandwidth is not None and bandwidth < NO_LINK:
                    number = f"{float(bandwidth):g}"
                    return f"cluster.{name}.bandwidth is {number} B/s; was {number} Gb/s meant?"
        return ""

    @contextmanager
    def unit_asked_for(self) -> Iterator[None]:
        """Ask for a forgotten unit of a bandwidth where simulated time becomes implausibly long."""
        try:
            yield
        except (TooLongError, TimeRangeError) as error:
            if not self.unit_question:
                raise
            what = str(error).partition("; ")[0]  # without its own question
            raise type(error)(f"{what}; {self.unit_question}") from None

    @property
    def release(self) -> tuple[int, int]:
        """The release of NCCL, major and minor."""
        major, minor = self.nccl.split(".")[:2]
        return int(major), int(minor)

    @property
    def nccl_allows(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The algorithms and the protocols that NCCL may take; empty: all."""
        forced = self.nccl_algorithm, self.nccl_protocol
        algorithms, protocols = (() if names is None else tuple(names.split(",")) for names in forced)
        return algorithms, protocols

    @property
    def placement(self) -> Sequence[int]:
        """The GPU of each rank: ranks fill the nodes in order, unless they were placed."""
        return range(self.gpus) if self._placement is None else self._placement

    def placed(self, gpus: Sequence[int]) -> Cluster:
        """The same machine for a job whose ranks 0 … n−1 are on these GPUs.

        Raises:
            UsageError: there is no such GPU, or one is given twice.
        """
        if len(set(gpus)) < len(gpus) or not set(gpus) <= set(range(self.gpus)):
            raise UsageError(f"expected different GPUs out of 0 … {self.gpus - 1}, found {describe(list(gpus))}")
        view = self.model_copy()
        view._placement = tuple(gpus)
        return view

    def urgent(self, priority: int, among: Iterable[int] = ()) -> Cluster:
        """The same machine for a job of this priority, with the priorities of all jobs that share it."""
        view = self.model_copy()
        view._urgency, view._rivals = priority, tuple(among)
        return view

    @property
    def urgency(self) -> int:
        """The priority of the job among those that share the machine."""
        return self._urgency

    def priority_of(self, purpose: Purpose) -> int:
        """The priority of a job's messages: that of the job first, then that of their purpose."""
        return urgency_of(self._urgency, self.priorities.of.get(purpose.key, 0))

    @property
    def service(self) -> str:
        """The model by which links are shared: `sharing`, or what that is if all priorities are equal."""
        equal = len({*self.priorities.of.values()}) == 1 and len({self._urgency, *self._rivals}) == 1
        return WITHOUT_PRIORITIES.get(self.sharing, self.sharing) if equal else self.sharing

    @property
    def alone(self) -> str:
        """The model by which one collective shares links with itself: all of its messages are equally urgent."""
        return WITHOUT_PRIORITIES.get(self.sharing, self.sharing)

    def node_of(self, rank: int) -> int:
        """The number of a rank's node."""
        return self.spec.node_of[self.placement[rank]]

    def nodes_of(self, ranks: Iterable[int]) -> list[NodeKind]:
        """The kind of node of each given rank."""
        behind = list(accumulate(kind.count * kind.gpus_per_node for kind in self.kinds))
        placement = self.placement
        return [self.kinds[bisect_right(behind, placement[rank])] for rank in ranks]

    def nodes_for(self, ranks: int) -> list[NodeKind]:
        """The kind of each node that a number of ranks fills, in order."""
        nodes: list[NodeKind] = []
        for kind in self.kinds:
            used = min(kind.count, -(-ranks // kind.gpus_per_node))
            nodes += [kind] * used
            ranks -= used * kind.gpus_per_node
        return nodes

    def gpus_of(self, ranks: Iterable[int]) -> list[GpuKind]:
        """The kind of GPU of each given rank."""
        return [node.gpu for node in self.nodes_of(ranks)]
