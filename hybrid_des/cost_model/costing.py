"""Costs of single layers of a model, on the GPUs and the wiring of a scenario.

    layer ─► its part on a rank (division) ─► seconds on the GPU (device) and on the wiring (times) ─► StageCosts

Bytes per parameter: 2 for 16-bit weights, 2 or 4 for gradients as they are reduced, 12 for a 32-bit copy and Adam's two
moments; `sharding` divides the optimizer's (zero-1), also the gradients (zero-2), also the weights (zero-3) over the
ranks that hold the same parameters (Rajbhandari et al., arXiv 1910.02054). The optimizer step moves 40 bytes for each
parameter that a rank updates.

Weight gradients of several micro-batches are summed: with fp16 gradients by a separate kernel, otherwise in 32 bits by
the product that computes them (as Megatron-LM does with bf16: accumulation in fp32, fused into the product). With few
tokens per micro-batch and large matrices a separate kernel takes 5 to 10 % of a step.

A collective takes the time of its messages alone on the wiring plus `collective_overhead`·(1 + (n−1)/5) for n members:
all-reduces of 2, 4 and 8 A100s on NVLink take about 35, 45 and 85 µs in addition to bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import cache, cached_property, partial

from hybrid_des.cluster.self_contention import Groups
from hybrid_des.cluster.symmetry import nonisomorphic, nonisomorphic_along
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import NOTHING
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.cost_model.devices import device_of, host_bandwidth
from hybrid_des.cost_model.documents import Load
from hybrid_des.cost_model.elementwise import is_any, larger, rounded
from hybrid_des.cost_model.expert_loads import expert_layers
from hybrid_des.cost_model.layer_collectives import ALGORITHMS, LayerCollective, traffic_of
from hybrid_des.cost_model.layer_costs import (
    Exchange,
    LayerCosts,
    copied_parameters,
    held_experts,
    layer_costs,
    tensor_sizes,
    tied_parameters,
)
from hybrid_des.cost_model.operation_times import ELEMENT, OPERANDS, Times
from hybrid_des.cost_model.rank_costs import ModelStates, Sharding, StageCosts, without_work
from hybrid_des.cost_model.slowdown import NONE_LOST, Slowdown
from hybrid_des.cost_model.update import Divisions, Orthogonalisation, matrices_of
from hybrid_des.layout import Layout
from hybrid_des.scenario.overhead import Overhead
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_picoseconds
from hybrid_des.workload.models.amounts import Parameters
from hybrid_des.workload.models.layer import Layer
from hybrid_des.workload.models.operations import Attention, Elementwise, Gemm
from hybrid_des.workload.optimizers import Matrix

# kernels of forward and backward for each block of keys but the rank's own: attention, then the logarithms of sums and
# the outputs, or the gradients of queries and of keys and values, are merged with earlier blocks', a kernel each
# (NVIDIA/TransformerEngine, AttnFuncWithCPAndKVP2P in attention/dot_product_attention/context_parallel.py)
RING_STEP = (1 + 2, 3 + 2)
# further operators of routing where the host reads how many tokens each expert receives. In the forward only, as counts
# have no gradients: two sums, the gather of all ranks' counts, and copies to the host. Both ways, where a rank holds
# several experts: tokens are sorted by expert before these, and back behind them; each time they are split and joined,
# and their probabilities too (NVIDIA/Megatron-LM, MoEAlltoAllTokenDispatcher in moe/token_dispatcher.py).
# Three steps of two sources ask for 0.7 times as many, those of Qwen3-30B alone for 1.3, Mixtral alone for none
COUNTING, SORTING = 4, 2 * 3
# operators that the host launches after tokens have arrived, besides those of experts: of the six of routing only the
# two that permute; the combine, the residual's sum, and the next graph (NVIDIA/Megatron-LM, moe/moe_layer.py)
AFTER_TOKENS = 2 - 6 + 3
KERNEL = 13.5 / 115  # of an operator's launch: a kernel of PyTorch (NVIDIA/TransformerEngine, issue 2053)
OF_EACH = (2, 5)  # kernels for each expert of what is done expert by expert, in forward and backward
# of an operator's launch: calling the product of one expert takes 8.6 to 9.3 us, the least that products of 128 to 308
# rows took (SimuMax, b200_bf16_ceperm.json); ten steps of four sources ask for 7, with any left out for 6.5 to 7
EXPERT_CALL = 9 / 115
# of an operator's launch: one of 256 conversions, an expert each, takes 4.5 us, one of 128 smaller ones 4.8, on AMD's
# GPUs (ROCm/TransformerEngine, pull request 598); NVIDIA's launches each too (pytorch/csrc/extensions/cast.cpp)
EXPERT_CONVERSION = 4.5 / 115
OVERHEAD_OF_MEMBERS = 0.2  # of a collective's overhead, for each member but the first


def costs_of_layer(basis: CostBasis, times: CollectiveTimes, layer: Layer, number: int) -> StageCosts:
    """The costs of a layer in the place of the model's layer of this number, with what it costs more than that."""
    assert basis.model is not None
    layers = basis.model.network.layers
    received = layers[number - 1].output if number else 0
    return Costing(basis, times).of(layer, received, 0, layers[number])


def layer_parts(basis: CostBasis) -> list[LayerCosts]:
    """Computation, traffic and memory of every layer of a model, on each of the ranks that share it."""
    costing, layers = Costing(basis, None), expert_layers(basis)
    return list(map(costing.parts, layers, (0, *(layer.output for layer in layers))))


def _moving(costs: LayerCosts) -> Fraction:
    """The share of computation in operations that memory bounds."""
    whole = sum(costs.times)
    moved = sum(sum(took) for one, took in costs.operations if isinstance(one, Elementwise))
    return Fraction(moved / whole).limit_denominator(1000) if whole else Fraction(0)


class Costing:
    """Costs of single layers of a model under its precision, parallelism and efficiencies."""

    def __init__(self, basis: CostBasis, times: CollectiveTimes | None) -> None:
        assert basis.model is not None  # the planner asks for models only
        assert basis.efficiency is not None
        self.model, self.efficiency = basis.model.network, basis.efficiency
        parallel, layout = basis.parallel, basis.parallel.layout
        self._device = device_of(basis, basis.efficiency)
        self.basis = basis
        self._collective, self._states = cache(self._measured), cache(self._states_of)
        self._times = times
        self._groups = cache(partial(_groups_of, times, layout))
        self._lanes = basis.load.lanes if basis.load else None  # that share documents along context
        self._hidden = {"tensor": basis.overlap.tensor, "expert": basis.overlap.experts, "context": Fraction(0)}
        holders = basis.together * parallel.context
        self._orthogonal = basis.optimizer.iterations(basis.sharding)
        once, state = basis.accumulation.once, basis.optimizer.beside_matrices
        of_experts = max(1, holders * parallel.tensor // (parallel.expert * parallel.of_expert))
        updates = basis.shards.outside == "zero-1"  # whether all groups together divide the optimizer's state
        self._dense, self._experts = (
            Sharding.of(basis.sharding, group or whole, once=once, updating=whole if updates else None)._replace(
                state=state, weight=basis.element
            )
            for whole, group in ((holders, basis.shards.ranks), (of_experts, basis.shards.of_experts(parallel)))
        )
        self._gradient = codecs.find(basis.accumulation.codec).build().bytes_per_element
        self._host = host_bandwidth(basis.cluster)
        reached = basis.efficiency
        self._slowdown = Slowdown.of(reached.slowed, reached.slowed_network, reached.slowed_memory)

    def loaded(self, load: Load) -> Costing:
        """The same for micro-batches that hold other documents; collectives and what parameters take are known."""
        costing = copy(self)
        costing.basis, costing._lanes = self.basis._replace(load=load), load.lanes
        return costing

    def stacks(self, load: Load) -> bool:
        """Whether the layers' costs of micro-batches with such loads are computed at once, as arrays.

        Collectives are measured size by size, tables of operators have single shapes, attention in windows, or as
        products, goes over the documents one by one, and what is recomputed in some blocks only costs twice.
        """
        basis = self.basis._replace(load=load)
        divided = self.gathered or self.scattered  # whose passes need the costs of each layer
        return bool(load.tokens) and basis.alone and not divided and self._in_formulas

    @cached_property
    def _in_formulas(self) -> bool:
        cores = [one for layer in self.model.layers for one in layer.operations if isinstance(one, Attention)]
        whole = all(core.flash and not core.local for core in cores)
        alike = self.efficiency.table is None and self.basis.recompute_layers is None
        return whole and alike and not self.basis.offload.activations

    @property
    def gathered(self) -> bool:
        """Whether ranks divide the weights among themselves."""
        return self._dense.weights > 1

    @property
    def scattered(self) -> Fraction:
        """Bytes of a parameter's gradient where they are scattered layer by layer."""
        return self._gradient if self._dense.gradients > 1 else Fraction(0)

    def tied(self, layer: Layer) -> int:
        """The parameters of the first layer that a rank needs for this layer."""
        return tied_parameters(layer, self.basis)

    def of(
        self, layer: Layer, received: int, later: int, plain: Layer | None = None, like: StageCosts | None = None
    ) -> StageCosts:
        """The costs of a layer.

        Args:
            layer: the layer, as its experts are wanted.
            received: bytes per token of the layer before.
            later: as in `StageCosts`.
            plain: the layer if its experts were equally wanted, and where the model has them.
            like: its costs with other documents, if they are known.
        """
        costs = self._of(layer, received, later, like)
        if plain is None or layer == plain:
            return costs
        equal = self._of(plain, received, later, like)
        more = costs.forward + costs.backward - equal.forward - equal.backward
        return replace(costs, imbalance=more)

    def _of(self, layer: Layer, received: int, later: int, like: StageCosts | None = None) -> StageCosts:
        if like is not None and self.basis.empty and not (self.basis.routed and layer.dispatched):
            return without_work(like)
        costs = self.parts(layer, received)
        moved = costs.offloaded
        forward, backward = self._passes(layer, costs)
        host = forward - costs.times.forward, backward - (costs.times.input + costs.times.weight + costs.again)
        moving = like.moving if like else _moving(costs)
        collectives = tuple(self._among(costs.forward, moving)), tuple(self._among(costs.backward, moving))
        waits = [sum(one.repeats * one.waits for one in way) for way in collectives]
        chunked = self.basis.operators.loss == "chunked" and self.basis.parallel.pipeline == 1
        between = chunked and layer.place == "last" and not layer.is_block  # held between forward and backward only
        reserved = costs.widest if layer.place == "last" and not between else 0  # during another layer's backward
        kept, more = (0, costs.kept) if between else (costs.kept - moved, moved)
        held, copied = (costs.parameters, costs.frozen), copied_parameters(layer, self.basis)
        shared = ELEMENT * later if self._dense.gradients > 1 else 0  # whole until both gradients are added
        return StageCosts(
            states=self._states(held, copied, layer.tensors, later, self._matrices(layer)),
            forward=rounded(forward * PICOSECONDS_PER_SECOND) + waits[0],
            backward=rounded(backward * PICOSECONDS_PER_SECOND) + waits[1],
            weight=rounded(costs.times.weight * PICOSECONDS_PER_SECOND),
            message=costs.message,
            kept=kept,
            weight_share=costs.weight_share,
            reserved=reserved + max(0, shared),
            transient=costs.transient + more - reserved - abs(shared),
            transients=(
                costs.transient + more - costs.weight_gradients - reserved,
                costs.transient + more - costs.widest - abs(shared),
            ),
            again=rounded(costs.again * PICOSECONDS_PER_SECOND),
            traffic=traffic_of(*collectives),
            collectives=collectives,
            later=later,
            inner=_inner(costs),
            moving=moving,
            end=not layer.is_block,
            passed=layer.passed,
            host_times=Overhead(*(rounded(each * PICOSECONDS_PER_SECOND) for each in host)),
            attention_backward=costs.attention_backward + moved if costs.attention_backward else 0,
        )

    def _among(self, exchanges: Sequence[Exchange], moving: Fraction) -> Iterator[LayerCollective]:
        for exchange in exchanges:
            yield self._collective(exchange, moving, self._lanes if exchange.axis == "context" else None)

    def _matrices(self, layer: Layer) -> tuple[Matrix, ...]:
        """The matrices of a layer that the optimizer orthogonalises, as a rank holds them."""
        how, parallel = self._orthogonal, self.basis.parallel
        if how is None:
            return ()
        held = partial(held_experts, layer, basis=self.basis)
        return tuple(matrices_of(layer, how, held, tensor=parallel.tensor, of_expert=parallel.of_expert))

    def _division(self, expert: bool) -> Sharding:
        """How ranks divide what experts hold, or what others do."""
        return self._experts if expert else self._dense

    def orthogonalised(self) -> Orthogonalisation | None:
        """What the optimizer's products with matrices take, if it has any."""
        how, parallel = self._orthogonal, self.basis.parallel
        if how is None:
            return None
        among = [
            Divisions(ranks, self._division(expert).weights, self._division(expert).optimizer)
            for expert, ranks in ((False, parallel.tensor), (True, parallel.of_expert))
        ]
        holders = cache(partial(_holding, self._times, parallel.layout))

        def collective(does: str, size: int, expert: bool) -> int:
            if self._times is None:
                return 0
            groups, name = holders(among[expert], expert), ALGORITHMS[self.basis.layer_collectives][does]
            return self._starting(len(groups[0]) - 1) + max(self._times(name, size, one).duration for one in groups)

        return Orthogonalisation(how, among, self._device, collective, self.basis.optimizer.state_bytes)

    def _starting(self, further: int) -> int:
        """Picoseconds to start a collective among so many members besides the first."""
        overhead = float(self.efficiency.collective_overhead) * (1 + OVERHEAD_OF_MEMBERS * further)
        return round(overhead * PICOSECONDS_PER_SECOND)

    def _states_of(
        self,
        held: tuple[tuple[int, int], tuple[int, int]],
        copied: int,
        tensors: Sequence[Parameters],
        later: int,
        matrices: tuple[Matrix, ...],
    ) -> ModelStates:
        (experts, dense), (frozen_experts, frozen) = held
        dense -= max(0, later)
        copies = self._experts.parts(copied, self._gradient)
        parts = self._dense.parts(dense, self._gradient), self._experts.parts(experts, self._gradient), copies
        weights, gradients = map(sum, zip(*parts, strict=True))
        each = self.basis.element
        fixed = each * frozen // self._dense.weights + each * frozen_experts // self._experts.weights
        updated = dense / self._dense.optimizer + experts / self._experts.optimizer
        lighter = self._dense.state - self.basis.optimizer.state_bytes
        saved = lighter * sum(Fraction(one.elements, self._division(one.expert).optimizer) for one in matrices)
        away = int(self.basis.offload.optimizer * round(self._dense.state * updated - saved))
        on_host = [int(self.basis.offload.parameters * size) for size in (weights + fixed, gradients)]
        resident = self._dense.bytes(dense, self._gradient) + self._experts.bytes(experts, self._gradient)
        state = float(self._dense.state - saved / Fraction(updated)) if saved else float(self._dense.state)
        took = max(self._device.update(float(updated), state), away / self._host)
        return ModelStates(
            parameters=dense,
            experts=experts,
            resident=resident + fixed + sum(copies) - away - int(saved) - sum(on_host),
            weights=weights + fixed - on_host[0],
            gradients=gradients - on_host[1],
            optimizer=round(took * PICOSECONDS_PER_SECOND),
            frozen=frozen,
            frozen_experts=frozen_experts,
            tensors=tensor_sizes(tensors, self.basis, tied=later <= 0),
            matrices=matrices,
        )

    def _copied(self, costs: LayerCosts) -> tuple[float, float]:
        """Bytes that cross the link to the host in forward and backward: activations, weights, then gradients too."""
        share = self.basis.offload.parameters
        divided = list(zip((self._experts, self._dense), costs.parameters, costs.frozen, strict=True))
        weights = sum(Fraction(self.basis.element * (own + fixed), by.weights) for by, own, fixed in divided)
        gradients = sum(self._gradient * own / by.gradients for by, own, _ in divided)
        there = costs.offloaded + float(share * weights)
        return there, there + float(share * gradients)

    def _passes(self, layer: Layer, costs: LayerCosts) -> tuple[float, float]:
        """Seconds of forward and backward: of computation, its launches, or copies to and from the host, beside it."""
        there, back = self._launching(layer, costs) if self.basis.cuda_graphs != "full" else (0.0, 0.0)
        computed = costs.times.input + costs.times.weight + costs.again
        copies = [size / self._host for size in self._copied(costs)]
        before = 0.0
        if self._loses_lead(layer):
            inside = [took.forward for one, took in costs.operations if getattr(one, "expert", False)]
            before = costs.times.forward - sum(inside)
        forward = before + larger(costs.times.forward - before, max(there, copies[0]))
        return forward, 0.0 if layer.passed else larger(computed, max(back, copies[1]))

    def _launching(self, layer: Layer, costs: LayerCosts) -> tuple[float, float]:
        """Seconds in which the host launches forward and backward; of those that lose its lead, what comes after."""
        launched, shares = self._launched(layer)
        overhead = float(self.efficiency.layer_overhead) if layer.place == "block" else 0.0
        floors = [overhead * share * (1 + way) for way, share in enumerate(shares)]
        further = self._merging(costs), self._for_experts(layer), self._converting(layer)
        kernels = [sum(each) for each in zip(launched, *further, strict=True)]
        calls = self._calls(costs)
        if is_any(costs.again):
            kernels[1] += kernels[0]
            floors[1] += floors[0]
        if self._loses_lead(layer):
            calls = AFTER_TOKENS, calls[1]
        launches = [float(self.efficiency.launch) * sum(each) for each in zip(kernels, calls, strict=True)]
        return max(floors[0], launches[0]), max(floors[1], launches[1])

    def _loses_lead(self, layer: Layer) -> bool:
        """Whether the host launches experts only after their tokens have arrived; graphs launch all else.

        It waits for their number, by which it calls each expert's product (NVIDIA-NeMo/Megatron-Bridge,
        perf_recipes/nemotronh/gb300: counts that stay on the GPU keep the host ahead of it).
        """
        experts = self.basis.experts
        waits = experts.kernel == "per-expert" and not experts.pad
        return layer.routing is not None and self.basis.cuda_graphs == "layers" and waits

    def _calls(self, costs: LayerCosts) -> tuple[int, int]:
        """Collectives of forward and backward that the host launches; with graphs of layers, those of experts."""
        axes = ("tensor", "context", "expert") if self.basis.cuda_graphs == "none" else ("expert",)
        forward, backward = (
            sum(one.repeats * max(1, one.steps) for one in way if one.axis in axes)
            for way in (costs.forward, costs.backward)
        )
        return forward, backward

    def _merging(self, costs: LayerCosts) -> tuple[int, int]:
        """Kernels that the host launches for the further blocks of keys in a ring, unless a graph does."""
        steps = max((one.steps for one in costs.forward), default=0) if self.basis.cuda_graphs == "none" else 0
        return steps * RING_STEP[0], steps * RING_STEP[1]

    def _for_experts(self, layer: Layer) -> tuple[float, float]:
        """What the host does for experts in forward and backward besides launching kernels, in kernels' launches."""
        experts, graphs = self.basis.experts, self.basis.cuda_graphs
        if layer.routing is None:
            return 0.0, 0.0
        products = [one for one in layer.operations if isinstance(one, Gemm) and one.expert]
        held = held_experts(layer, products[0], self.basis)
        counted = experts.dispatcher == "all-to-all" and not experts.pad and graphs == "none"
        sorts = SORTING * (counted and held > 1)
        each = sum(isinstance(one, Elementwise) and one.of_each for one in layer.operations)
        calls, kernels = len(products) * held * EXPERT_CALL, each * held * KERNEL
        converted = len(products) * held * EXPERT_CONVERSION * self._converts(layer)
        if experts.kernel == "fused":
            calls = kernels = converted = 0.0
        forward, backward = OF_EACH
        there, back = calls + converted + forward * kernels, 2 * calls + converted + backward * kernels
        return COUNTING * counted + sorts + there, sorts + back

    def _converts(self, layer: Layer) -> bool:
        """Whether operands of products are converted to few bits."""
        return layer.in_few_bits and self.basis.precision in OPERANDS

    def _converting(self, layer: Layer) -> tuple[int, int]:
        """Conversions to few bits that the host launches: of products' inputs, and of gradients of their results.

        TransformerEngine's Linear takes its host more than twice as long in 8 bits (its issue 761); a router stays in
        16 or 32 bits.
        """
        if not self._converts(layer):
            return 0, 0
        products = [one for one in layer.operations if isinstance(one, Gemm) and one.name != "router"]
        launched = [one for one in products if one.expert or self.basis.cuda_graphs == "none"]
        return sum(not one.shares for one in launched), len(launched)

    def _launched(self, layer: Layer) -> tuple[tuple[int, int], tuple[float, float]]:
        """Kernels of forward and backward that the host launches, not a graph; and their shares of all."""
        whole = layer.kernels()
        if self.basis.cuda_graphs == "none":
            return whole, (1.0, 1.0)
        some = layer.kernels(of_experts=True)
        forward, backward = (one / max(1, of) for one, of in zip(some, whole, strict=True))
        return some, (forward, backward)

    def parts(self, layer: Layer, received: int) -> LayerCosts:
        """The computation, traffic and memory of a layer."""
        return layer_costs(layer, self.basis, self._device, received)

    def _measured(self, exchange: Exchange, moving: Fraction, lanes: tuple[int, int] | None) -> LayerCollective:
        """A collective in the slowest of the groups along its axis, or in some lanes, with the time to start it."""
        axis, does, size, repeats, behind, steps, how, weights, _, held, back = exchange
        groups, name = self._groups(axis, lanes), ALGORITHMS[self.basis.layer_collectives][does]
        launch, outcome = 0, NOTHING
        if self._times is not None:
            known = partial(self._times.of_unequal, held, back=back) if held else self._times
            outcome = max((known(name, size, group, how) for group in groups), key=lambda each: each.duration)
            launch = max(1, steps) * self._starting(1 if steps else len(groups[0]) - 1)
            if how is not None:
                waits = {"none": True, "layers": exchange.counts, "full": False}[self.basis.cuda_graphs]
                launch = to_picoseconds(self.efficiency.exchange_overhead) if waits else 0
            elif not steps and (measured := self._in_table(does, groups, size)) is not None:
                launch, outcome = 0, outcome._replace(duration=measured)
        overlapped = round(behind * PICOSECONDS_PER_SECOND)
        overlapped += round(max(0, launch + outcome.duration - overlapped) * self._hidden[axis])
        sent = outcome.messages, outcome.bytes, outcome.even, how
        lost = self._lost(axis, groups, Fraction(0) if weights else moving, engines=axis == "tensor" and not weights)
        beside = round(weights * PICOSECONDS_PER_SECOND)
        amounts = size, repeats, launch, outcome.duration, overlapped
        return LayerCollective(axis, name, *amounts, *sent, lost, beside, held, back)

    def _in_table(self, does: str, groups: Groups, size: int) -> int | None:
        """Picoseconds that were measured of such a collective in the slowest of some groups; None if none was."""
        if self.efficiency.collectives is None or self._times is None:
            return None
        node_of = self._times.fabric.node_of
        shapes = {(len(group), len({node_of[rank] for rank in group})) for group in groups}
        times = [self.efficiency.collectives.time(does, ranks, nodes, size) for ranks, nodes in shapes]
        return None if None in times else max(time for time in times if time is not None)

    def _lost(self, axis: str, groups: Groups, moving: Fraction, *, engines: bool) -> Fraction:
        """The share of its speed that computation beside a collective loses; none if copy engines carry it."""
        if engines or self._times is None:
            return NONE_LOST
        taken, of = self.basis.experts.multiprocessors, self._device.multiprocessors
        if axis == "expert" and taken is not None:
            return Fraction(min(taken, of - 1), of)
        beyond = any(map(self._times.fabric.apart, groups))
        return self._slowdown.lost(beyond=beyond, moving=Fraction(0) if axis == "context" else moving)


def _groups_of(times: CollectiveTimes | None, layout: Layout, axis: str, lanes: tuple[int, int] | None) -> Groups:
    """The groups of ranks along an axis, or in some lanes; of those with the same wiring, only one."""
    if times and lanes is None:
        return nonisomorphic_along(times.fabric, layout, axis)
    groups = layout.groups(axis) if lanes is None else layout.in_lanes(*lanes)
    return nonisomorphic(times.fabric, groups) if times else groups


def _holding(times: CollectiveTimes | None, layout: Layout, among: Divisions, expert: bool) -> Groups:
    """The groups of ranks that divide a matrix; of those with the same wiring, only one.

    Where weights are divided too, those are the tensor ranks of all that hold the same parameters.
    """
    size = among.tensor * among.weights
    if among.weights == 1:
        groups = [line[first : first + size] for line in layout.groups("tensor") for first in range(0, len(line), size)]
    else:
        held = layout.expert_holders if expert and layout.apart else layout.holders
        step = layout.expert if expert and layout.apart else 1
        parts = [sorted(rank for holders in held[first::step] for rank in holders) for first in range(step)]
        groups = [one[first : first + size] for one in parts for first in range(0, len(one), size)]
    return nonisomorphic(times.fabric, groups) if times else groups


def _inner(costs: LayerCosts) -> tuple[int, int, int]:
    """Picoseconds of the operations on tokens that other ranks sent."""
    of_experts = [took for one, took in costs.operations if getattr(one, "expert", False)]
    if not of_experts:
        return 0, 0, 0
    forward, inputs, weights = (
        rounded(sum(column) * PICOSECONDS_PER_SECOND) for column in zip(Times(), *of_experts, strict=True)
    )
    return forward, inputs, weights
