"""The machine of a scenario: GPUs, links, and how many of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, WithJsonSchema

from hybrid_des import hardware as catalogue
from hybrid_des.errors import UsageError
from hybrid_des.network import topologies
from hybrid_des.network.fabric import ClusterSpec, NodeSpec
from hybrid_des.network.figures import LinkFigures
from hybrid_des.options import MOST, Bytes, Compute, Count, Factor, Flag, Section, Text, choice, describe, whole
from hybrid_des.scenario.plugins import Plugins, PluginSection
from hybrid_des.scenario.values import TopologyName

NODES = "nodes"


class GpuKind(Section):
    """A kind of GPU."""

    name: Text = "custom"
    """What reports call it."""
    memory: Bytes
    """Memory in bytes."""
    peak: Compute | None = None
    """Dense half-precision rate in FLOP/s."""


class NvLink(LinkFigures):
    """The links in a node."""

    in_switch: Flag = False
    """Whether the NVSwitch adds up what it carries. Default from the GPU."""


class InfiniBand(LinkFigures):
    """The links between nodes."""

    nics_per_node: Count
    """Adapters in a node; GPU i of g uses NIC floor(i·nics/g). Default from the GPU."""


def _look_up(value: Any) -> Any:
    """Turn a name of the catalogue into the figures that it stands for."""
    if isinstance(value, str):
        try:
            part = catalogue.part(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return {"name": part.name, "memory": part.memory, "peak": part.peak}
    if not isinstance(value, Mapping | GpuKind):
        raise ValueError(f"expected a name such as {catalogue.DEFAULT}, or its figures, found {describe(value)}")
    return value


GpuName = Annotated[str, WithJsonSchema({"enum": catalogue.names()})]
Gpu = Annotated[GpuKind, BeforeValidator(_look_up, json_schema_input_type=GpuName | GpuKind)]


class NodeKind(Section):
    """Nodes of one kind, where a cluster has several; what is not given is the cluster's, or the node's own GPU's."""

    count: Count = 1
    """How many of them follow each other."""
    gpu: Gpu
    """As in `cluster`."""
    gpus_per_node: Count
    """As in `cluster`."""
    nvlink: NvLink
    """As in `cluster`."""
    infiniband: InfiniBand
    """As in `cluster`; a message between two kinds of nodes takes the larger latency."""
    speed: Factor = Fraction(1)
    """How fast its GPUs compute: ops take the workload's times divided by it."""

    @property
    def spec(self) -> NodeSpec:
        """What a topology may know of one of them."""
        return NodeSpec(
            gpus=self.gpus_per_node,
            nvlink=self.nvlink.port,
            infiniband=self.infiniband.port,
            nics=self.infiniband.nics_per_node,
            in_switch=self.nvlink.in_switch,
        )


_COUNT = whole(1, MOST)
_KINDS = TypeAdapter(tuple[NodeKind, ...])


def _nodes(value: Any) -> int | tuple[NodeKind, ...]:
    """Read a list as kinds of nodes and anything else as a number."""
    if not isinstance(value, list | tuple):
        count: int = _COUNT.read(value)
        return count
    if not value:
        raise ValueError("an empty list; expected a number, or a list of kinds of nodes")
    return _KINDS.validate_python(value)


Nodes = Annotated[
    int | tuple[NodeKind, ...],
    PlainValidator(
        _nodes,
        json_schema_input_type=Annotated[int, _COUNT] | Annotated[tuple[NodeKind, ...], Field(min_length=1)],
    ),
]


class Cluster(PluginSection):
    """The machine."""

    plugins: ClassVar[Plugins] = Plugins("topology", topologies.names, topologies.find, NODES)

    gpu: Gpu
    """A name of the catalogue (default a100-80gb) or a mapping {memory: 80 GB, peak: 312 TFLOP/s}."""
    nodes: Nodes = 1
    """Number of nodes; or, where they differ, a list such as [{count: 2}, {gpus_per_node: 4, speed: 0.5}]."""
    gpus_per_node: Count = 8
    """GPUs in each node."""
    nvlink: NvLink
    """Each GPU's port to the others of its node."""
    infiniband: InfiniBand
    """Each network adapter of a node."""
    topology: TopologyName = NODES
    """How GPUs and nodes are wired: `nodes` is an NVSwitch in each node and a non-blocking network between NICs."""
    sharing: Annotated[str, choice("fifo", "fair")] = "fifo"
    """Who gets how much of a link. fifo: one message at a time; fair: messages share its bandwidth."""

    @property
    def kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of nodes, each with its count."""
        if not isinstance(self.nodes, int):
            return self.nodes
        same = {name: getattr(self, name) for name in ("gpu", "gpus_per_node", "nvlink", "infiniband")}
        return (NodeKind.model_construct(count=self.nodes, **same),)

    @property
    def gpus(self) -> int:
        """Number of GPUs in all nodes."""
        return sum(kind.count * kind.gpus_per_node for kind in self.kinds)

    @property
    def spec(self) -> ClusterSpec:
        """What a topology may know of it."""
        return ClusterSpec(tuple(node for kind in self.kinds for node in (kind.spec,) * kind.count))

    def each_gpu(self) -> Iterator[NodeKind]:
        """The kind of node that each GPU is in, in the order of ranks."""
        return (kind for kind in self.kinds for _ in range(kind.count * kind.gpus_per_node))
