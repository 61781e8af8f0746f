"""Costs of a layer on one rank: its part under parallelism, and the times of its operations on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Literal, NamedTuple

from hybrid_des.collectives.all_to_all import TokenExchange
from hybrid_des.models import Attention, Elementwise, Gemm, Layer
from hybrid_des.models.layer import Module, Operation
from hybrid_des.workload.costs import CostBasis

# Times of operations on one GPU, from the rates that its units achieve.
#
#     product (m × k) · (k × n)     max(2mnk / (FLOP/s · shape(m, n, k)), bytes / memory bandwidth)
#     conversion to 8 bits          4 bytes per element / memory bandwidth: of a product's input, of its output's
#                                   gradient; mxfp8 4 + 1/16, nvfp4 3 + 1/8
#     flash attention               FLOP / (FLOP/s of attention); the backward 2.5 times the FLOP at 0.78 of the rate
#     memory-bound operation        bytes / memory bandwidth
#
# FLOP/s and bandwidth are the GPU's peaks times the efficiencies of the scenario. `shape` is the efficiency of
# tiling: for the best of the tiles 256×128 … 64×64, the product of
#
#     useful       the share of the padded tiles, in whole waves over the multiprocessors, that is part of the result;
#                  less than one wave is split along k, at 0.75 at best
#     reuse        (1 + τ·x₀)/(1 + τ·x), where x is the mean of 1/rows and 1/columns of a tile, x₀ that of 256×128
#     depth        k/(k + k₀): filling and draining the pipeline of each tile
#
# τ and k₀ fit 183 GEMMs measured on an A100 within 3.9 % on average (a constant efficiency: 6.7 %). Wave quantisation:
# NVIDIA, Matrix Multiplication Background User's Guide. Backward of flash attention: Dao, arXiv 2307.08691.


# Costs of a layer on one rank: times, traffic, memory and parameters, after parallelism has divided the layer.
#
# A rank has m tokens of a micro-batch. Traffic per layer and micro-batch, in bytes of 2-byte elements:
#
#     tensor       an all-reduce of 2mh before the residual, twice per block, forward and backward; with sequence
#                  parallelism an all-gather and a reduce-scatter instead (Korthikanti et al., arXiv 2205.05198)
#     context      ring: c−1 steps that pass keys and values on, during attention on the block received before; twice
#                  the bytes in the backward (Liu et al., arXiv 2310.01889). all-to-all: queries, keys, values and
#                  outputs (Jacobs et al., arXiv 2309.14509). all-gather: keys and values; their gradients are scattered
#     expert       tokens to their experts and back, forward and backward (Lepikhin et al., arXiv 2006.16668)
#
# Recomputation: `full` repeats the forward of every block and its traffic before the backward and keeps the block's
# input alone; `selective` repeats the attention core and does not keep the score matrices.


TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
REUSE = 127  # τ
DEPTH = 145  # k₀
SPLIT = 0.75
IDEAL = (1 / 256 + 1 / 128) / 2  # x₀
ATTENTION_BACKWARD = (2.5, 0.78)  # times the FLOP, and share of the forward's rate
ELEMENT = 2  # bytes
EIGHT_BITS = Fraction(1, 2) + Fraction(4, 2 * 128)  # of 16: an 8-bit element, and a 4-byte scale per 128 (DeepEP)
# bytes per element of an operand in few bits, with its scales: none in fp8 (one per tensor), a byte per 32 elements in
# mxfp8 (OCP Microscaling Formats 1.0), a byte per 16 in nvfp4 (NVIDIA, arXiv 2509.25149)
OPERANDS = {"fp8": 1.0, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}


class Times(NamedTuple):
    """Seconds of the forward, of the gradient of the input, and of the gradient of the weights."""

    forward: float = 0.0
    input: float = 0.0
    weight: float = 0.0


@dataclass(frozen=True)
class Device:
    """Rates that one GPU achieves.

    Attributes:
        flops: FLOP/s of products of ideal shape, in the precision of most products.
        flops16: the same in 16 bits, for products that are not quantised.
        attention: FLOP/s of flash attention.
        memory: bytes per second of its memory.
        multiprocessors: number of them.
        operand: bytes per element of the operands of products in few bits; None: all are in 16 bits.
        accumulating: bytes per weight of the product that also adds a micro-batch's gradients to earlier ones.
        adding: bytes moved per weight by an addition after the product.
        grouped, latent: shares of the rate that products of experts, and latent attention, reach.
    """

    flops: float
    flops16: float
    attention: float
    memory: float
    multiprocessors: int
    operand: float | None = None
    accumulating: float = ELEMENT
    adding: float = 0.0
    grouped: float = 1.0
    latent: float = 1.0

    def product(
        self, m: float, n: float, k: float, count: float = 1, *, quantised: bool = False, result: float = ELEMENT
    ) -> float:
        """Seconds of `count` products (m × k) · (k × n), with `result` bytes moved per element of the result."""
        flops, operand = (self.flops, self.operand or 1) if quantised else (self.flops16, ELEMENT)
        moved = (operand * (m * k + k * n) + result * m * n) * count
        return max(2 * m * n * k * count / (flops * shape(m, n, k, count, self.multiprocessors)), moved / self.memory)

    def layer_product(self, m: float, n: float, k: float, count: float = 1, *, quantised: bool = False) -> Times:
        """A product with weights (k × n), and its two gradients.

        In few bits, its input and the gradient of its output are converted, once each; weights once per step.
        """
        quantised = quantised and self.operand is not None
        forward, inward = (self.product(m, *sides, count, quantised=quantised) for sides in ((n, k), (k, n)))
        weights = self.product(k, n, m, count, quantised=quantised, result=self.accumulating)
        if quantised:
            moved = ELEMENT + 2 * (self.operand or 1)  # read once, written in both layouts
            forward += moved * m * k * count / self.memory
            inward += moved * m * n * count / self.memory
        return Times(forward, inward, weights + self.adding * n * k * count / self.memory)

    def slower(self, share: float) -> Device:
        """The same GPU with products at a share of their rate."""
        return self if share == 1 else replace(self, flops=self.flops * share, flops16=self.flops16 * share)

    def moving(self, forward: float, backward: float) -> Times:
        """A memory-bound operation that moves these bytes."""
        return Times(forward / self.memory, backward / self.memory)

    def flash(self, flop: float) -> Times:
        """Flash attention with `flop` FLOP in the forward."""
        more, slower = ATTENTION_BACKWARD
        forward = flop / self.attention
        return Times(forward, forward * more / slower)


@lru_cache(maxsize=1 << 14)
def shape(m: float, n: float, k: float, count: float, multiprocessors: int) -> float:
    """The share of the ideal rate that products of this shape achieve."""
    return max(_useful(m, n, count, tile, multiprocessors) * _reuse(tile) for tile in TILES) * k / (k + DEPTH)


def _useful(m: float, n: float, count: float, tile: tuple[int, int], multiprocessors: int) -> float:
    rows, columns = tile
    tiles = ceil(m / rows) * ceil(n / columns) * count
    full = tiles / (ceil(tiles / multiprocessors) * multiprocessors)
    return m * n * count / (tiles * rows * columns) * (max(full, SPLIT) if tiles < multiprocessors else full)


def _reuse(tile: tuple[int, int]) -> float:
    return (1 + REUSE * IDEAL) / (1 + REUSE * (1 / tile[0] + 1 / tile[1]) / 2)


Axis = Literal["tensor", "context", "expert"]


class Exchange(NamedTuple):
    """A collective that an op waits for.

    Attributes:
        axis: the axis whose ranks take part.
        does: all-reduce, reduce-scatter, all-gather or all-to-all; dispatch or combine, once per node.
        size: bytes of a member's buffer.
        repeats: number of times, one after the other.
        behind: seconds of concurrent computation, each time.
        weights: of these, seconds of weight gradients, which a split backward computes later.
        steps: of a ring whose steps are started one by one, between two members each; 0: it is started once.
        how: of an exchange once per node: how tokens are routed.
    """

    axis: Axis
    does: str
    size: int
    repeats: int = 1
    behind: float = 0.0
    steps: int = 0
    how: TokenExchange | None = None
    weights: float = 0.0


Parts = Sequence[tuple[Operation, Times]]


@dataclass(frozen=True)
class LayerCosts:
    """Costs of one layer and micro-batch on one rank.

    Attributes:
        operations: computation alone, operation by operation.
        times: the sum of these.
        again: seconds of the forward that are repeated before the backward.
        forward, backward: traffic.
        kept: bytes of activations kept for the backward.
        weight_share: share of `kept` that weight gradients need after the input gradient.
        transient: bytes that exist only while the layer's backward runs.
        widest: the part of them that is gradients of activations.
        weight_gradients: the part of them that is 16-bit gradients of weights.
        message: bytes passed on to the next layer.
        parameters: numbers held by the rank: those of experts, and others.
    """

    operations: tuple[tuple[Operation, Times], ...]
    times: Times
    again: float
    forward: tuple[Exchange, ...]
    backward: tuple[Exchange, ...]
    kept: int
    weight_share: Fraction
    transient: int
    widest: int
    weight_gradients: int
    message: int
    parameters: tuple[int, int]


def layer_costs(layer: Layer, basis: CostBasis, device: Device, received: int = 0) -> LayerCosts:
    """The costs of a layer on each of the ranks that share it; `received` are bytes per token of the layer before."""
    parts = tuple((operation, _times(operation, layer, basis, device)) for operation in layer.operations)
    times = Times(*(sum(column) for column in zip(*(took for _, took in parts), strict=True)))
    forward, backward = (tuple(_traffic(layer, basis, parts, received, which)) for which in (0, 1))
    core = _core(parts)
    recompute = basis.recompute if layer.is_block else "none"
    full = recompute == "full"
    modules = [one for one in layer.modules if one.name in recompute] if isinstance(recompute, tuple) else []
    counted = kept = _kept(layer, basis, modules, scores=recompute != "selective" and not full)
    if basis.efficiency is not None and layer.is_block:
        kept = ceil(kept * basis.efficiency.kept)
    widest = ceil(layer.transient * basis.tokens / basis.parallel.tensor)
    inputs = -(-layer.output * basis.tokens // basis.regular)
    parameters = _parameters(layer, basis)
    gradients = ELEMENT * sum(parameters)
    again = {"selective": core.forward, "full": times.forward}
    return LayerCosts(
        operations=parts,
        times=times,
        again=_again(parts, modules, basis, device) if modules else again.get(str(recompute), 0.0),
        forward=forward,
        backward=(*forward, *backward) if full else backward,
        kept=inputs if full else kept,
        weight_share=_weight_share(layer, basis, inputs if full else counted),
        transient=widest + gradients + (kept if full else 0),
        widest=widest,
        weight_gradients=gradients,
        message=-(-layer.output * basis.tokens // basis.parallel.tensor),
        parameters=parameters,
    )


def _times(operation: Operation, layer: Layer, basis: CostBasis, device: Device) -> Times:
    m, t = basis.tokens, basis.parallel.tensor
    if isinstance(operation, Gemm):
        return _product(operation, layer, basis, device)
    if isinstance(operation, Attention):
        return _attention(operation, basis, device)
    if isinstance(operation, Elementwise):
        over = {"none": 1, "sequence": basis.regular, "tensor": t}[operation.split]
        busiest = float(layer.balance) if operation.expert else 1.0
        return device.moving(operation.forward * m / over * busiest, operation.backward * m / over * busiest)
    took = max(float(operation.flop) * m / device.flops16, operation.bytes * m / device.memory)
    return Times(took, took, took if operation.weights else 0.0)


def _product(gemm: Gemm, layer: Layer, basis: CostBasis, device: Device) -> Times:
    """A product with weights; experts of other ranks send their tokens here."""
    n, k, count = gemm.n, gemm.k, gemm.count
    divides = basis.parallel.of_expert if gemm.expert else basis.parallel.tensor
    rows = float(gemm.rows) * basis.tokens
    if gemm.expert:
        count = gemm.count // basis.parallel.expert
        rows *= basis.parallel.expert * float(layer.balance) * divides / basis.parallel.tensor
    if gemm.split == "columns":
        n = ceil(n / divides)
    elif gemm.split == "rows":
        k = ceil(k / divides)
    elif gemm.split == "sequence":
        rows /= basis.regular
    if gemm.expert:
        device = device.slower(device.grouped)
    return device.layer_product(max(1.0, rows), n, k, count, quantised=layer.is_block and gemm.name != "logits")


def _attention(attention: Attention, basis: CostBasis, device: Device) -> Times:
    """The attention core over the heads of a tensor rank."""
    m, t = basis.tokens, basis.parallel.tensor
    if attention.flash:
        slower = device.latent if attention.key_size != attention.value_size else 1.0
        return device.flash(float(attention.flop) * m / t / slower)
    keys, queries = attention.sequence, attention.sequence / basis.parallel.context
    count = m / queries * attention.heads / t
    products = device.product(queries, keys, attention.key_size, count)
    products += device.product(queries, attention.value_size, keys, count)
    forward, backward = (size * m / t for size in attention.score_bytes)
    passes = device.moving(forward, backward)
    return Times(products + passes.forward, 2 * products + passes.input)


def _core(parts: Parts) -> Times:
    """The times of attention."""
    return Times(*(sum(c) for c in zip(*(took for one, took in parts if isinstance(one, Attention)), strict=True)))


def _traffic(layer: Layer, basis: CostBasis, parts: Parts, received: int, backward: int) -> Iterator[Exchange]:
    """The collectives of one pass over a layer."""
    if basis.parallel.tensor > 1 and layer.parameters.tensor + layer.parameters.tied:
        beside = _weight_products(parts) if backward and basis.overlap.weight_gradients else []
        yield from _tensor_traffic(layer, basis, received, backward, beside)
    attention = [one for one in layer.operations if isinstance(one, Attention)]
    if basis.parallel.context > 1 and attention:
        yield from _context_traffic(attention[0], basis, _core(parts)[backward], backward)
    if basis.parallel.expert > 1 and layer.dispatched:
        yield from _token_traffic(layer, basis, backward)


def _weight_products(parts: Parts) -> list[float]:
    """Seconds of the weight gradients of products by columns, per half of a block, or of the logits."""
    halves = [0.0]
    for one, took in parts:
        if isinstance(one, Gemm) and not one.expert:
            if one.split == "columns":
                halves[-1] += took.weight
            elif one.split == "rows":
                halves.append(0.0)
    return [half for half in halves if half]


def _tensor_traffic(
    layer: Layer, basis: CostBasis, received: int, backward: int, beside: Sequence[float]
) -> Iterator[Exchange]:
    """Partial outputs are summed, and with sequence parallelism inputs gathered: twice per block.

    `beside` has the seconds of weight gradients that overlap each reduction of a backward.
    """
    size = basis.tokens * (layer.output or received)
    ends = {"block": (0, 0), "first": (1 - backward, backward), "last": (backward, 1 - backward)}[layer.place]
    inside = (1 if _only_experts(layer, basis) else 2) if layer.is_block else 0  # around attention, and around the MLP
    sums, gathers = (inside + of_end for of_end in ends)
    if not basis.parallel.sequence:
        gathers = 0
    summing = "reduce-scatter" if basis.parallel.sequence else "all-reduce"
    for product in beside[:sums]:
        yield Exchange("tensor", summing, size, behind=product, weights=product)
    for does, count in (("all-gather", gathers), (summing, sums - len(beside[:sums]))):
        if count:
            yield Exchange("tensor", does, size, count)


def _only_experts(layer: Layer, basis: CostBasis) -> bool:
    """Whether the second half of a block divides nothing over tensor ranks: whole experts, and no shared ones."""
    products = [one for one in layer.operations if isinstance(one, Gemm) and one.split == "rows"]
    return basis.parallel.of_expert == 1 and sum(not one.expert for one in products) == 1 < len(products)


def _token_traffic(layer: Layer, basis: CostBasis, backward: int) -> Iterator[Exchange]:
    """Tokens to their experts and back, or gradients to where the results came from and back."""
    routing = layer.routing
    busiest = layer.balance if routing is None or not routing.loads else Fraction(1)  # else the exchange shows them
    tokens = basis.tokens * busiest / basis.regular
    halved = basis.experts.dispatch == "fp8"
    if basis.experts.dispatcher == "per-node" and routing is not None:
        once = layer.dispatched * tokens / routing.active
        how = TokenExchange(
            experts=routing.count, active=routing.active, groups=routing.groups, top_groups=routing.top_groups,
            loads=routing.loads, channels=basis.experts.channels,
        )  # fmt: skip
        yield Exchange("expert", "dispatch", round(once * EIGHT_BITS if halved else once), how=how)
        yield Exchange("expert", "combine", round(once), how=how)
        return
    size = layer.dispatched * basis.tokens * layer.balance / basis.regular
    if halved:
        yield Exchange("expert", "all-to-all", round(size * EIGHT_BITS))
        yield Exchange("expert", "all-to-all", round(size))
    else:
        yield Exchange("expert", "all-to-all", round(size), 2)


def _context_traffic(attention: Attention, basis: CostBasis, core: float, backward: int) -> Iterator[Exchange]:
    """Keys and values of all heads of a tensor rank, or all four tensors of attention."""
    c, per_head = basis.parallel.context, ELEMENT * basis.tokens / basis.parallel.tensor
    key_value = round(per_head * attention.kv_heads * (attention.key_size + attention.value_size))
    if basis.parallel.context_method == "ring":
        behind = core * (c - 1) / c  # attention on the block held before, step by step
        yield Exchange("context", "all-gather", c * key_value << backward, behind=behind, steps=c - 1)
    elif basis.parallel.context_method == "all-gather":
        yield Exchange("context", "reduce-scatter" if backward else "all-gather", key_value * c)
    else:
        whole = round(per_head * attention.heads * (attention.key_size + attention.value_size)) + key_value
        yield Exchange("context", "all-to-all", whole)


def _again(parts: Parts, modules: Sequence[Module], basis: CostBasis, device: Device) -> float:
    """Seconds of the forward of modules."""
    names = {name for one in modules for name in one.operations}
    passes = sum(one.bytes for one in modules) * basis.tokens / basis.regular
    return sum(took.forward for one, took in parts if one.name in names) + device.moving(passes, 0).forward


def _kept(layer: Layer, basis: CostBasis, modules: Sequence[Module], *, scores: bool) -> int:
    kept, t = layer.kept, basis.parallel.tensor
    for one in modules:
        kept -= one.kept
    inner = kept.tensor + (kept.scores / basis.parallel.context if scores else 0)
    routed = (kept.received * Fraction(basis.parallel.of_expert, t) + Fraction(kept.expert, t)) * layer.balance
    return ceil(basis.tokens * (kept.sequence / basis.regular + inner / t + routed))


def _weight_share(layer: Layer, basis: CostBasis, kept: int) -> Fraction:
    """The share that weight gradients need: inputs and output gradients of products (Qi et al., arXiv 2401.10241)."""
    needed = Fraction(0)
    for gemm in (one for one in layer.operations if isinstance(one, Gemm)):
        inner, regular = basis.parallel.tensor, basis.regular
        of_input, of_output = {"columns": (regular, inner), "rows": (inner, regular)}.get(
            gemm.split, (regular, regular)
        )
        needed += ELEMENT * gemm.rows * gemm.count * (Fraction(gemm.k, of_input) + Fraction(gemm.n, of_output))
    return min(Fraction(1), needed * basis.tokens / kept) if kept else Fraction(0)


def _parameters(layer: Layer, basis: CostBasis) -> tuple[int, int]:
    own = layer.parameters
    dense = -(-(own.tensor + own.tied) // basis.parallel.tensor) + own.replicated
    return -(-own.expert // (basis.parallel.expert * basis.parallel.of_expert)), dense


def tensor_sizes(layer: Layer, basis: CostBasis, *, tied: bool) -> tuple[tuple[int, int], ...]:
    """What a rank holds of each tensor, outside and in experts; with `tied`, also of those of the first layer.

    They sum to `LayerCosts.parameters`: a division that is not even leaves its rest to the first tensors.
    """
    found, t, of_experts = [], basis.parallel.tensor, basis.parallel.expert * basis.parallel.of_expert
    divided = experts = 0
    for one in layer.tensors:
        before = -(-divided // t), -(-experts // of_experts)
        divided += one.tensor + (one.tied if tied else 0)
        experts += one.expert
        after = -(-divided // t), -(-experts // of_experts)
        found.append((after[0] - before[0] + one.replicated, after[1] - before[1]))
    return tuple(found)


def tied_parameters(layer: Layer, basis: CostBasis) -> int:
    """The parameters of the first layer that a rank needs for this layer; `LayerCosts.parameters` includes them."""
    own = layer.parameters
    return _parameters(layer, basis)[1] - (-(-own.tensor // basis.parallel.tensor) + own.replicated)
