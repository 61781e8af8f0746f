"""The section `model` of a scenario and how it is trained: overlap, and the shares of the peaks that are reached."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from hybrid_des.models import Model, catalogue, kinds
from hybrid_des.options import Flag, Reads, Section, Time, describe, read_quantity
from hybrid_des.scenario.plugins import Plugins, PluginSection
from hybrid_des.scenario.values import ModelKindName, PublishedName

ZERO = Fraction(0)


def _share(value: Any) -> Fraction:
    number = read_quantity(value, "number")
    if number > 1:
        raise ValueError(f"must be from 0 to 1, not {describe(number)}")
    return number


def _efficiency(value: Any) -> Fraction:
    number = _share(value)
    if not number:
        raise ValueError("must be more than 0")
    return number


def _loss(value: Any) -> Fraction:
    number = _share(value)
    if number == 1:
        raise ValueError("must be less than 1")
    return number


Share = Annotated[Fraction, Reads(_share, {"type": "number", "minimum": 0, "maximum": 1})]
Lost = Annotated[Fraction, Reads(_loss, {"type": "number", "minimum": 0, "exclusiveMaximum": 1})]
Reached = Annotated[Fraction, Reads(_efficiency, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})]


class ModelChoice(PluginSection):
    """The network: a published model, or the sizes of one."""

    plugins: ClassVar[Plugins] = Plugins("kind", kinds.names, kinds.find, kinds.DEFAULT)
    base: PublishedName | None = None
    """A published model whose sizes are the defaults."""
    kind: ModelKindName = kinds.DEFAULT
    """The kind of network."""

    @cached_property
    def network(self) -> Model:
        """Its layers.

        Raises:
            ModelRefusal: the sizes are inconsistent.
        """
        built: Model = kinds.find(self.kind).build(*self.arguments)
        return built


class Overlap(Section):
    """Communication hidden behind computation: its share, or whether it is."""

    tensor: Share = ZERO
    """Share of the tensor ranks' collectives that is hidden behind products."""
    experts: Share = ZERO
    """Share of the exchange of tokens with experts that is hidden."""
    parameters: Flag = False
    """Whether sharded parameters are gathered during computation. Default with zero-3: true."""


class Efficiency(Section):
    """Achieved shares of the GPU's peaks. Defaults from the GPU and the precision."""

    gemm: Reached
    """Matrix products of ideal shape: share of the peak FLOP/s."""
    gemm_16bit: Reached | None = None
    """The same for products that stay in 16 bits under fp8. Default from the GPU; without one, `gemm`."""
    attention: Reached
    """Flash attention: share of the peak 16-bit FLOP/s."""
    memory: Reached
    """Operations bound by memory: share of its bandwidth."""
    network: Reached = Fraction(1)
    """Share of every link's bandwidth."""
    collective_overhead: Time = ZERO
    """Added to each collective of tensor, context and expert ranks: launching it; a fifth more per further member."""
    layer_overhead: Time = ZERO
    """The least time of a layer's forward, and half of that of its backward: launching kernels."""
    slowed: Lost = Fraction(1, 4)
    """Share of its speed that computation loses during collectives of single layers (zero-2, zero-3)."""
    step_overhead: Time = ZERO
    """Added to every step: data loading, optimizer launches, logging."""


def expanded(value: Any) -> Any:
    """A model by name, or on a `base`, with all of its sizes; other values unchanged."""
    values = {"base": value} if isinstance(value, str) and value != "none" else value
    if not isinstance(values, Mapping) or values.get("base") not in catalogue.names():
        return values
    return {**catalogue.expanded(values), "base": values["base"]}


def _named_or_own(value: Any) -> Any:
    if value is None or value == "none":
        return None
    if not isinstance(value, Mapping | ModelChoice):
        raise ValueError(f"expected the name of a published model, or the sizes of one, found {describe(value)}")
    return value


PublishedOrOwn = Annotated[
    ModelChoice | None, BeforeValidator(_named_or_own, json_schema_input_type=str | ModelChoice | None)
]
