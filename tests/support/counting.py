"""What a rank computes of a layer, in FLOP instead of seconds."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.layer_costs import LayerCosts, layer_costs
from hybrid_des.cost_model.operation_times import Times
from hybrid_des.scenario.definition import Scenario


@dataclass(frozen=True)
class Counting:
    """A device of one FLOP per second, whatever the shape, and of memory that takes no time."""

    flops16: float = 1.0
    memory: float = float("inf")
    latent: float = 1.0
    scans: Mapping[str, float] = field(default_factory=lambda: defaultdict(lambda: 1.0))

    @property
    def of_experts(self) -> "Counting":
        return self

    def layer_product(self, m: float, n: float, k: float, count: float = 1, use: Any = None) -> Times:
        return Times(*[2 * m * n * k * count] * 3)

    def flash(self, flop: float, keys: float, head: float) -> Times:
        return Times(flop, 2.5 * flop)

    def scored(self, flop: float) -> Times:
        return Times(flop, 2 * flop)

    def moving(self, forward: float, backward: float, rate: str = "") -> Times:
        return Times()

    def passed(self, name: str, size: float) -> None:
        return None

    def core(self, attention: object, tensor: int) -> None:
        return None


def counted(scenario: Scenario, place: int) -> LayerCosts:
    """The costs of a layer of a scenario's model on each rank, with FLOP as seconds."""
    layers = scenario.model.network.layers
    return layer_costs(layers[place], CostBasis.of(scenario), Counting(), layers[place - 1].output)
