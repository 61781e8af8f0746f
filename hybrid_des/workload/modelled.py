"""Costs from a model: the `model` section of a scenario, on its GPUs and wiring.

    layer ─► its part on a rank (division) ─► seconds on the GPU (device) and on the wiring (replay) ─► StageCosts

Bytes per parameter: 2 for 16-bit weights, 2 or 4 for gradients as they are reduced, 12 for a 32-bit copy and Adam's two
moments; `sharding` divides the optimizer's (zero-1), also the gradients (zero-2), also the weights (zero-3) over the
ranks that hold the same parameters (Rajbhandari et al., arXiv 1910.02054). The optimizer step moves 40 bytes for each
parameter that a rank updates.

Weight gradients of several micro-batches are added up: with fp16 gradients by a kernel of its own, otherwise in 32 bits
by the product that makes them (as Megatron-LM does with bf16: accumulation in fp32, fused into the product). With few
tokens per micro-batch and large matrices a kernel of its own takes 5 to 10 % of a step.

A collective takes what its messages take alone on the wiring, and `collective_overhead`·(1 + (n−1)/5) for n members:
all-reduces of 2, 4 and 8 A100s on NVLink take about 35, 45 and 85 µs besides bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil

from hybrid_des import hardware
from hybrid_des.collectives import codecs
from hybrid_des.errors import Refusal
from hybrid_des.layout import Layout
from hybrid_des.models import Layer, Model
from hybrid_des.models.cutting import cut
from hybrid_des.network.fabric import Fabric
from hybrid_des.scenario import Scenario
from hybrid_des.scenario.recipe import Efficiency
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_picoseconds
from hybrid_des.workload.costs import RankCosts, StageCosts, sum_of
from hybrid_des.workload.device import ELEMENT, Device
from hybrid_des.workload.division import Division, Exchange, layer_costs
from hybrid_des.workload.replay import Replay

WEIGHTS, MOMENTS = 2, 12  # bytes per parameter
UPDATE = 40  # bytes moved per updated parameter
ADDITION = 6  # bytes per weight: two 16-bit gradients are read, their sum is written
ACCUMULATION = 8  # bytes per weight: a 32-bit sum is read and written
OVERHEAD_OF_MEMBERS = 0.2  # of a collective's overhead, for each member but the first


@dataclass(frozen=True)
class Sharding:
    """Over how many ranks the parts of a parameter's memory are divided."""

    weights: int = 1
    gradients: int = 1
    optimizer: int = 1

    @classmethod
    def of(cls, name: str, ranks: int) -> Sharding:
        """The division that `sharding: name` means for a group of ranks."""
        level = {"none": 0, "zero-1": 1, "zero-2": 2, "zero-3": 3}[name]
        return cls(*(ranks if level >= needed else 1 for needed in (3, 2, 1)))

    def bytes(self, parameters: int, gradient: float) -> int:
        """Bytes that a rank holds for so many parameters."""
        return ceil(parameters * (WEIGHTS / self.weights + gradient / self.gradients + MOMENTS / self.optimizer))


def model_costs(scenario: Scenario, fabric: Fabric) -> RankCosts:
    """Costs of the scenario's model, per layer and per pipeline rank.

    Raises:
        Refusal: the model cannot be divided over so many ranks or stages.
    """
    assert scenario.model is not None  # the planner asks for models only
    assert scenario.efficiency is not None
    model, ranks = scenario.model.network, scenario.parallel.pipeline
    costing = _Costing(scenario, model, fabric)
    received = (0, *(layer.output for layer in model.layers))
    alike = [replace(layer, name="") for layer in model.layers]  # blocks are: costs are computed once
    layers = tuple(map(cache(costing.of), alike, received))
    took = [layer.forward + layer.backward for layer in layers]

    def cut_into(stages: int) -> list[range]:
        try:
            return cut(model.layers, stages, scenario.parallel.stages, took)
        except Refusal as refusal:
            raise Refusal(f"parallel.stages: {refusal}") from None

    if scenario.schedule.chunks == 1:
        whole = [sum_of([layers[place] for place in held]) for held in cut_into(ranks)]
    else:  # which stages a rank holds, the plan will say; no schedule with chunks plans with times
        whole = [sum_of(layers)] * ranks
    sums = ("forward", "backward", "weight", "message")
    columns = {name: tuple(getattr(one, name) for one in whole) for name in sums}
    nothing = (0,) * ranks
    return RankCosts(
        **columns,
        optimizer=(to_picoseconds(scenario.efficiency.step_overhead),) * ranks,
        parameters=nothing,
        per_parameter=(Fraction(0),) * ranks,
        kept=nothing,
        layers=layers,
        cut=cut_into,
    )


class _Costing:
    """Costs of single layers under a scenario's precision, parallelism and efficiencies."""

    def __init__(self, scenario: Scenario, model: Model, fabric: Fabric) -> None:
        parallel, layout = scenario.parallel, scenario.parallel.layout
        assert scenario.efficiency is not None
        self._floor = float(scenario.efficiency.layer_overhead)
        self._overhead = float(scenario.efficiency.collective_overhead)
        self._device = device_of(scenario, scenario.efficiency)
        self._division = Division(
            tokens=model.tokens * scenario.schedule.microbatch_size // parallel.context,
            tensor=parallel.tensor,
            sequence=parallel.sequence,
            context=parallel.context,
            method=parallel.context_method,
            expert=parallel.expert,
            recompute=scenario.recompute,
        )
        self._replay = Replay(fabric, scenario.cluster.sharing)
        self._groups = {axis: groups_along(layout, axis, parallel.expert) for axis in ("tensor", "context", "expert")}
        self._hidden = {"tensor": scenario.overlap.tensor, "expert": scenario.overlap.experts, "context": 0}
        holders = parallel.data * parallel.context
        self._dense = Sharding.of(scenario.sharding, holders)
        self._experts = Sharding.of(scenario.sharding, max(1, holders // parallel.expert))
        self._gradient = float(codecs.find(scenario.gradients.codec).build().bytes_per_element)

    def of(self, layer: Layer, received: int) -> StageCosts:
        """The costs of a layer; `received` are bytes per token of the layer before."""
        costs = layer_costs(layer, self._division, self._device, received)
        floor = self._floor if layer.place == "block" else 0.0
        forward = max(costs.times.forward, floor) + self._exposed(costs.forward)
        computed = costs.times.input + costs.times.weight + costs.again
        backward = max(computed, 2 * floor + (floor if costs.again else 0.0)) + self._exposed(costs.backward)
        experts, dense = costs.parameters
        reserved = costs.widest if layer.place == "last" else 0  # logits beside whatever another layer's backward needs
        updated = dense / self._dense.optimizer + experts / self._experts.optimizer
        return StageCosts(
            forward=round(forward * PICOSECONDS_PER_SECOND),
            backward=round(backward * PICOSECONDS_PER_SECOND),
            weight=round(costs.times.weight * PICOSECONDS_PER_SECOND),
            message=costs.message,
            kept=costs.kept,
            parameters=dense,
            experts=experts,
            resident=self._dense.bytes(dense, self._gradient) + self._experts.bytes(experts, self._gradient) + reserved,
            transient=costs.transient - reserved,
            optimizer=round(updated * UPDATE / self._device.memory * PICOSECONDS_PER_SECOND),
        )

    def _exposed(self, exchanges: Sequence[Exchange]) -> float:
        """Seconds that an op waits for its collectives."""
        waited = 0.0
        for exchange in exchanges:
            took = self._seconds(exchange)
            waited += exchange.repeats * max(0.0, took - exchange.behind) * (1 - float(self._hidden[exchange.axis]))
        return waited

    def _seconds(self, exchange: Exchange) -> float:
        """Seconds of a collective in the slowest of the groups along its axis, with the overhead of starting it."""
        groups = self._groups[exchange.axis]
        n = len(groups[0])
        if exchange.does == "pass on":  # a step of an all-gather in which every member holds so many bytes
            whole = max(self._replay.duration("all-gather", group, n * exchange.size) for group in groups)
            took, members = whole / (n - 1), 2
        else:
            took, members = max(self._replay.duration(exchange.does, group, exchange.size) for group in groups), n
        return took / PICOSECONDS_PER_SECOND + self._overhead * (1 + OVERHEAD_OF_MEMBERS * (members - 1))


def groups_along(layout: Layout, axis: str, expert: int) -> list[list[int]]:
    """The groups of ranks along an axis; experts are divided over successive ranks along context and data."""
    axes = ("context", "data") if axis == "expert" else (axis,)
    starts = (rank for rank in range(layout.ranks) if not any(layout.coordinate(rank, along) for along in axes))
    whole = (layout.group(start, *axes) for start in starts)
    size = expert if axis == "expert" else layout.sizes[axis]
    return [group[first : first + size] for group in whole for first in range(0, len(group), size)]


def device_of(scenario: Scenario, efficiency: Efficiency) -> Device:
    """What the scenario's GPUs reach; its checks refuse GPUs that differ or lack a figure."""
    gpu, quantised = scenario.cluster.kinds[0].gpu, scenario.precision == "fp8"
    peak, memory, reached = float(gpu.peak or 0), float(gpu.bandwidth or 0), float(efficiency.gemm)
    whole = scenario.sharding in ("none", "zero-1")  # otherwise each micro-batch's gradients are scattered at once
    many, halves = whole and scenario.schedule.microbatches > 1, scenario.gradients.codec == "fp16"
    known = quantised and gpu.name in hardware.names()  # what 8 bits reach says little about 16
    return Device(
        flops=float(gpu.peak_fp8 or 0 if quantised else peak) * reached,
        flops16=peak * (hardware.part(gpu.name).efficiency["bf16"]["gemm"] if known else reached),
        attention=peak * float(efficiency.attention),
        memory=memory * float(efficiency.memory),
        multiprocessors=gpu.multiprocessors or 1,
        quantised=quantised,
        accumulating=ACCUMULATION if many and not halves else ELEMENT,
        adding=ADDITION if many and halves else 0,
    )
