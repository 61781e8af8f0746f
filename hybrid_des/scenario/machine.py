"""The machine of a scenario: GPUs, links, and how many of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import core_schema

from hybrid_des import hardware as catalogue
from hybrid_des.errors import UsageError
from hybrid_des.scenario.points import Course, Two
from hybrid_des.scenario.section import MOST, Section
from hybrid_des.scenario.tables import Table
from hybrid_des.scenario.values import (
    Bandwidth,
    Bytes,
    Compute,
    Factor,
    Flag,
    Text,
    Time,
    choice,
    describe,
    registered,
    whole,
)


class GpuKind(Section):
    """A kind of GPU."""

    name: Text = "custom"
    """What reports call it."""
    memory: Bytes
    """Memory in bytes."""
    peak: Compute | None = None
    """Dense half-precision rate in FLOP/s."""


class LinkFigures(Section):
    """A kind of link: both figures are for one direction."""

    bandwidth: Bandwidth = None
    """Bytes a second; inf for a free link. Default from the GPU."""
    latency: Time = Fraction(0)
    """From end to end, once. Default from the GPU."""
    table: Table = None
    """Instead of both: a CSV file message size → time, such as `hybrid-des calibrate --link` makes.

    Under `sharing: fair` messages that meet slow each other down as on a link of the rate of its largest entries."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> LinkFigures:
        if self.table is not None and self.model_fields_set & {"bandwidth", "latency"}:
            raise ValueError("a table stands instead of bandwidth and latency; give it or them")
        return self


class NvLink(LinkFigures):
    """The links in a node."""

    in_switch: Flag = False
    """Whether the NVSwitch adds up what it carries. Default from the GPU."""


class InfiniBand(LinkFigures):
    """The links between nodes."""

    nics_per_node: Annotated[int, whole(1, MOST)]
    """Adapters in a node; GPU i of g uses NIC floor(i·nics/g). Default from the GPU."""


class CatalogueName:
    """Lets a GPU be given by its catalogue name or as a mapping."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Turn a name into the mapping it stands for."""
        return core_schema.no_info_before_validator_function(self._look_up, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Offer the names."""
        return {"anyOf": [{"enum": catalogue.names()}, handler(schema)]}

    def _look_up(self, value: Any) -> Any:
        if isinstance(value, str):
            try:
                part = catalogue.part(value)
            except UsageError as error:
                raise ValueError(str(error)) from None
            return {"name": part.name, "memory": part.memory, "peak": part.peak}
        if not isinstance(value, Mapping | GpuKind):
            raise ValueError(f"expected a name such as {catalogue.DEFAULT}, or its figures, found {describe(value)}")
        return value


class NodeKind(Section):
    """Nodes of one kind, where a cluster has several; what is not given is the cluster's, or the node's own GPU's."""

    count: Annotated[int, whole(1, MOST)] = 1
    """How many of them follow each other."""
    gpu: Annotated[GpuKind, CatalogueName()]
    """As in `cluster`."""
    gpus_per_node: Annotated[int, whole(1, MOST)]
    """As in `cluster`."""
    nvlink: NvLink
    """As in `cluster`."""
    infiniband: InfiniBand
    """As in `cluster`; a message between two kinds of nodes takes the larger latency."""
    speed: Factor = Fraction(1)
    """How fast its GPUs compute: ops take the workload's times divided by it."""


class NumberOrNodes:
    """Lets nodes be given by their number or, where they differ, as a list."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Read a list as nodes and anything else as a number."""
        kinds = handler.generate_schema(tuple[NodeKind, ...])
        return core_schema.no_info_wrap_validator_function(self._read, kinds)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Offer both."""
        return {"anyOf": [_COUNT.schema(), {**handler(schema), "minItems": 1}]}

    def _read(self, value: Any, handler: core_schema.ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, list | tuple):
            return _COUNT.read(value)
        if not value:
            raise ValueError("an empty list; expected a number, or a list of kinds of nodes")
        return handler(value)


_COUNT = whole(1, MOST)


class Wire(Section):
    """A link between two points, for `topology: links`."""

    between: Two
    """Two points: gpu0, gpu1 … are GPUs, counted through all nodes; every other name is a switch."""
    bandwidth: Bandwidth
    """Bytes a second each way; inf for a free link."""
    latency: Time = Fraction(0)
    """Each way."""
    one_way: Flag = False
    """Only from the first point to the second."""


class Cluster(Section):
    """The machine."""

    gpu: Annotated[GpuKind, CatalogueName()]
    """A name of the catalogue (default a100-80gb) or a mapping {memory: 80 GB, peak: 312 TFLOP/s}."""
    nodes: Annotated[int | tuple[NodeKind, ...], NumberOrNodes()] = 1
    """Number of nodes; or, where they differ, a list such as [{count: 2}, {gpus_per_node: 4, speed: 0.5}]."""
    gpus_per_node: Annotated[int, whole(1, MOST)] = 8
    """GPUs in each node."""
    nvlink: NvLink
    """Each GPU's port to the others of its node."""
    infiniband: InfiniBand
    """Each network adapter of a node."""
    topology: Annotated[str, registered("network.topologies")] = "nodes"
    """How GPUs and nodes are wired: `nodes` is an NVSwitch in each node and a non-blocking network between NICs."""
    sharing: Annotated[str, choice("fifo", "fair")] = "fifo"
    """Who gets how much of a link. fifo: one message at a time; fair: messages share its bandwidth."""
    oversubscription: Factor | None = None
    """leaf-spine, rails: bandwidth below a switch divided by its bandwidth towards the spine. Default 1."""
    leaf_size: Annotated[int, whole(1, MOST)] | None = None
    """leaf-spine: nodes on a leaf. Default 1."""
    cross_rail: Annotated[str, choice("nvlink", "spine")] | None = None
    """rails: how a message gets to another rail; nvlink (default): first to the GPU of the node that is on it."""
    pcie: LinkFigures | None = None
    """pcie: each GPU's port, and each switch's way up. Default from the GPU."""
    gpus_per_switch: Annotated[int, whole(1, MOST)] | None = None
    """pcie: GPUs under a switch. Default 4."""
    links: tuple[Wire, ...] | None = None
    """links: every link, such as {between: [gpu0, switch0], bandwidth: 25 GB/s, latency: 1 us}."""
    routes: tuple[Course, ...] | None = None
    """links: routes that are not the shortest path, point by point, such as [gpu0, switch1, gpu5]."""

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

    def each_gpu(self) -> Iterator[NodeKind]:
        """The kind of node that each GPU is in, in the order of ranks."""
        return (kind for kind in self.kinds for _ in range(kind.count * kind.gpus_per_node))
