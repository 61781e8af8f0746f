"""Which operators of which shapes a model's step consists of on one rank: what its prediction asks a table for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.devices import device_of
from hybrid_des.cost_model.expert_loads import expert_layers
from hybrid_des.cost_model.layer_costs import layer_costs
from hybrid_des.cost_model.operation_times import Device, Times
from hybrid_des.scenario.definition import Scenario
from hybrid_des.workload.models.operations import Attention


@dataclass
class Needed:
    """Operators of a step on one rank.

    Attributes:
        products: (m, n, k) of products of one matrix with another, in 16 bits.
        cores: (length, heads, heads of keys, their size, whether causal) of attention, of one sample.
        passes: bytes that the forward of each operation bound by memory moves, by its name.
        parameters: that a rank holds.
        tokens: of a micro-batch.
    """

    products: set[tuple[int, int, int]] = field(default_factory=set)
    cores: set[tuple[int, ...]] = field(default_factory=set)
    passes: set[tuple[str, int]] = field(default_factory=set)
    parameters: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class NotingDevice(Device):
    """A device that notes what it is asked for."""

    needed: Needed = field(default_factory=Needed, compare=False)

    def product(
        self, m: float, n: float, k: float, count: float = 1, *, quantised: bool = False, result: float | None = None
    ) -> float:
        """Note a single product of whole sizes."""
        if count == 1 and not quantised and m == int(m):
            self.needed.products.add((int(m), int(n), int(k)))
        return super().product(m, n, k, count, quantised=quantised, result=result)

    def passed(self, name: str, size: float) -> Times | None:
        """Note a pass over memory."""
        if size >= 1:
            self.needed.passes.add((name, round(size)))
        return super().passed(name, size)

    def core(self, attention: Attention, tensor: int) -> Times | None:
        """Note a flash attention whose keys are as long as its values."""
        if attention.key_size == attention.value_size:
            self.needed.cores.add((
                attention.sequence, attention.heads // tensor, max(1, attention.kv_heads // tensor), attention.key_size,
                int(attention.causal),
            ))  # fmt: skip
        return super().core(attention, tensor)


def needed_by(scenario: Scenario) -> Needed:
    """The operators of a scenario with a `model`, on each rank."""
    basis = CostBasis.of(scenario)
    assert basis.efficiency is not None
    plain = device_of(basis, basis.efficiency)
    device = NotingDevice(**{one.name: getattr(plain, one.name) for one in fields(plain)})
    received = 0
    for layer in expert_layers(basis):
        costs = layer_costs(layer, basis, device, received)
        device.needed.parameters += sum(costs.parameters)
        received = layer.output
    device.needed.tokens = basis.tokens
    return device.needed
