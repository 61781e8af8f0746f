"""Costs of a layer on one rank: times, traffic, memory and parameters, after parallelism has divided the layer.

A rank has m tokens of a micro-batch. Traffic per layer and micro-batch, in bytes of 2-byte elements:

    tensor       an all-reduce of 2mh before the residual, twice per block, forward and backward; with sequence
                 parallelism an all-gather and a reduce-scatter instead (Korthikanti et al., arXiv 2205.05198)
    context      ring: c−1 steps that pass keys and values on, during attention on the block received before; twice the
                 bytes in the backward (Liu et al., arXiv 2310.01889). all-to-all: queries, keys, values and outputs
                 (Jacobs et al., arXiv 2309.14509). all-gather: keys and values; their gradients are scattered
    expert       tokens to their experts and back, forward and backward (Lepikhin et al., arXiv 2006.16668)

Recomputation: `full` repeats the forward of every block and its traffic before the backward and keeps the block's input
alone; `selective` repeats the attention core and does not keep the score matrices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple

from hybrid_des.models import Attention, Elementwise, Gemm, Layer
from hybrid_des.models.layer import Operation
from hybrid_des.workload.device import ELEMENT, Device, Times

Axis = Literal["tensor", "context", "expert"]
Recompute = Literal["none", "selective", "full"]


class Exchange(NamedTuple):
    """A collective that an op waits for.

    Attributes:
        axis: the axis whose ranks take part.
        does: all-reduce, reduce-scatter, all-gather or all-to-all.
        size: bytes of a member's buffer.
        repeats: number of times, one after the other.
        behind: seconds of concurrent computation, each time.
        steps: of a ring whose steps are started one by one, between two members each; 0: it is started once.
    """

    axis: Axis
    does: str
    size: int
    repeats: int = 1
    behind: float = 0.0
    steps: int = 0


@dataclass(frozen=True)
class Division:
    """How a model is divided, and what is recomputed.

    Attributes:
        tokens: of a micro-batch on one rank.
        sequence: whether norms and residuals are divided by tensor ranks too (sequence parallelism).
        method: how context ranks share attention: ring, all-to-all or all-gather.
    """

    tokens: int
    tensor: int = 1
    sequence: bool = False
    context: int = 1
    method: str = "ring"
    expert: int = 1
    recompute: Recompute = "none"

    @property
    def regular(self) -> int:
        """The number of ranks that divide norms and residuals."""
        return self.tensor if self.sequence else 1


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


def layer_costs(layer: Layer, division: Division, device: Device, received: int = 0) -> LayerCosts:
    """The costs of a layer on each of the ranks that share it; `received` are bytes per token of the layer before."""
    parts = tuple((operation, _times(operation, layer, division, device)) for operation in layer.operations)
    times = Times(*(sum(column) for column in zip(*(took for _, took in parts), strict=True)))
    core = Times(*(sum(c) for c in zip(*(took for one, took in parts if isinstance(one, Attention)), strict=True)))
    forward, backward = (tuple(_traffic(layer, division, core, received, which)) for which in (0, 1))
    recompute = division.recompute if layer.place == "block" else "none"
    full = recompute == "full"
    kept = _kept(layer, division, scores=recompute == "none")
    widest = ceil(layer.transient * division.tokens / division.tensor)
    inputs = -(-layer.output * division.tokens // division.regular)
    parameters = _parameters(layer, division)
    gradients = ELEMENT * sum(parameters)
    return LayerCosts(
        operations=parts,
        times=times,
        again={"none": 0.0, "selective": core.forward, "full": times.forward}[recompute],
        forward=forward,
        backward=(*forward, *backward) if full else backward,
        kept=inputs if full else kept,
        weight_share=_weight_share(layer, division, inputs if full else kept),
        transient=widest + gradients + (kept if full else 0),
        widest=widest,
        weight_gradients=gradients,
        message=-(-layer.output * division.tokens // division.tensor),
        parameters=parameters,
    )


def _times(operation: Operation, layer: Layer, division: Division, device: Device) -> Times:
    m, t = division.tokens, division.tensor
    if isinstance(operation, Gemm):
        return _product(operation, layer, division, device)
    if isinstance(operation, Attention):
        return _attention(operation, division, device)
    if isinstance(operation, Elementwise):
        over = {"none": 1, "sequence": division.regular, "tensor": t}[operation.split]
        busiest = float(layer.balance) if operation.expert else 1.0
        return device.moving(operation.forward * m / over * busiest, operation.backward * m / over * busiest)
    took = max(float(operation.flop) * m / device.flops16, operation.bytes * m / device.memory)
    return Times(took, took, took if operation.weights else 0.0)


def _product(gemm: Gemm, layer: Layer, division: Division, device: Device) -> Times:
    """A product with weights; experts of other ranks send their tokens here."""
    n, k, count = gemm.n, gemm.k, gemm.count
    rows = float(gemm.rows) * division.tokens
    if gemm.expert:
        count, rows = gemm.count // division.expert, rows * division.expert * float(layer.balance)
    if gemm.split == "columns":
        n = ceil(n / division.tensor)
    elif gemm.split == "rows":
        k = ceil(k / division.tensor)
    elif gemm.split == "sequence":
        rows /= division.regular
    return device.layer_product(max(1.0, rows), n, k, count, quantised=layer.place == "block")


def _attention(attention: Attention, division: Division, device: Device) -> Times:
    """The attention core over the heads of a tensor rank."""
    m, t = division.tokens, division.tensor
    if attention.flash:
        return device.flash(float(attention.flop) * m / t)
    keys, queries = attention.sequence, attention.sequence / division.context
    count = m / queries * attention.heads / t
    products = device.product(queries, keys, attention.key_size, count)
    products += device.product(queries, attention.value_size, keys, count)
    forward, backward = (size * m / t for size in attention.score_bytes)
    passes = device.moving(forward, backward)
    return Times(products + passes.forward, 2 * products + passes.input)


def _traffic(layer: Layer, division: Division, core: Times, received: int, backward: int) -> Iterator[Exchange]:
    """The collectives of one pass over a layer."""
    m = division.tokens
    if division.tensor > 1 and layer.parameters.tensor + layer.parameters.tied:
        yield from _tensor_traffic(layer, division, received, backward)
    attention = [one for one in layer.operations if isinstance(one, Attention)]
    if division.context > 1 and attention:
        yield from _context_traffic(attention[0], division, core[backward], backward)
    if division.expert > 1 and layer.dispatched:
        size = round(layer.dispatched * m * layer.balance / division.regular)
        yield Exchange("expert", "all-to-all", size, 2)


def _tensor_traffic(layer: Layer, division: Division, received: int, backward: int) -> Iterator[Exchange]:
    """Partial outputs are summed, and with sequence parallelism inputs gathered: twice per block."""
    size = division.tokens * (layer.output or received)
    sums, gathers = {"block": (2, 2), "first": (1 - backward, backward), "last": (backward, 1 - backward)}[layer.place]
    if not division.sequence:
        gathers = 0
    for does, count in (("all-gather", gathers), ("reduce-scatter" if division.sequence else "all-reduce", sums)):
        if count:
            yield Exchange("tensor", does, size, count)


def _context_traffic(attention: Attention, division: Division, core: float, backward: int) -> Iterator[Exchange]:
    """Keys and values of all heads of a tensor rank, or all four tensors of attention."""
    c, per_head = division.context, ELEMENT * division.tokens / division.tensor
    key_value = round(per_head * attention.kv_heads * (attention.key_size + attention.value_size))
    if division.method == "ring":
        behind = core * (c - 1) / c  # attention on the block held before, step by step
        yield Exchange("context", "all-gather", c * key_value << backward, behind=behind, steps=c - 1)
    elif division.method == "all-gather":
        yield Exchange("context", "reduce-scatter" if backward else "all-gather", key_value * c)
    else:
        whole = round(per_head * attention.heads * (attention.key_size + attention.value_size)) + key_value
        yield Exchange("context", "all-to-all", whole)


def _kept(layer: Layer, division: Division, *, scores: bool) -> int:
    kept, t = layer.kept, division.tensor
    inner = kept.tensor + (kept.scores / division.context if scores else 0)
    routed = (kept.received + kept.expert / t) * layer.balance
    return ceil(division.tokens * (kept.sequence / division.regular + inner / t + routed))


def _weight_share(layer: Layer, division: Division, kept: int) -> Fraction:
    """The share that weight gradients need: inputs and output gradients of products (Qi et al., arXiv 2401.10241)."""
    needed = Fraction(0)
    for gemm in (one for one in layer.operations if isinstance(one, Gemm)):
        inner, regular = division.tensor, division.regular
        of_input, of_output = {"columns": (regular, inner), "rows": (inner, regular)}.get(
            gemm.split, (regular, regular)
        )
        needed += ELEMENT * gemm.rows * gemm.count * (Fraction(gemm.k, of_input) + Fraction(gemm.n, of_output))
    return min(Fraction(1), needed * division.tokens / kept) if kept else Fraction(0)


def _parameters(layer: Layer, division: Division) -> tuple[int, int]:
    own = layer.parameters
    dense = -(-(own.tensor + own.tied) // division.tensor) + own.replicated
    return -(-own.expert // (division.expert * division.tensor)), dense


def tied_parameters(layer: Layer, division: Division) -> int:
    """The parameters of the first layer that a rank needs for this layer; `LayerCosts.parameters` includes them."""
    own = layer.parameters
    return _parameters(layer, division)[1] - (-(-own.tensor // division.tensor) + own.replicated)


def total(times: Sequence[Times]) -> Times:
    """The sum of times of operations that run one after the other."""
    return Times(*(sum(column) for column in zip(*times, strict=True))) if times else Times()
