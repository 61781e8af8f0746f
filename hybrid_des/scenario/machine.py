"""The machine of a scenario: GPUs, links, and how many of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from hybrid_des import catalogue
from hybrid_des.errors import UsageError
from hybrid_des.scenario.section import MOST, Section
from hybrid_des.scenario.values import Bandwidth, Bytes, Compute, Text, Time, choice, describe, registered, whole


class Gpu(Section):
    """A kind of GPU."""

    name: Text = "custom"
    """What reports call it."""
    memory: Bytes
    """Memory in bytes."""
    peak: Compute | None = None
    """Dense half-precision rate in FLOP/s."""


class Link(Section):
    """A kind of link: both figures are for one direction."""

    bandwidth: Bandwidth
    """Bytes a second; inf for a free link. Default from the GPU."""
    latency: Time
    """From end to end, once. Default from the GPU."""


class Network(Link):
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
        if not isinstance(value, Mapping | Gpu):
            raise ValueError(f"expected a name such as {catalogue.DEFAULT}, or its figures, found {describe(value)}")
        return value


class Cluster(Section):
    """The machine."""

    gpu: Annotated[Gpu, CatalogueName()]
    """A name of the catalogue (default a100-80gb) or a mapping {memory: 80 GB, peak: 312 TFLOP/s}."""
    nodes: Annotated[int, whole(1, MOST)] = 1
    """Number of nodes."""
    gpus_per_node: Annotated[int, whole(1, MOST)] = 8
    """GPUs in each node."""
    nvlink: Link
    """Each GPU's port to the others of its node."""
    infiniband: Network
    """Each network adapter of a node."""
    topology: Annotated[str, registered("topologies")] = "nodes"
    """How GPUs and nodes are wired: `nodes` is an NVSwitch in each node and a non-blocking network between NICs."""
    sharing: Annotated[str, choice("fifo", "fair")] = "fifo"
    """Who gets how much of a link. fifo: one message at a time; fair: messages share its bandwidth."""

    @property
    def gpus(self) -> int:
        """Number of GPUs in all nodes."""
        return self.nodes * self.gpus_per_node
