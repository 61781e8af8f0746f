"""Costs of a layer on one rank: times, traffic, memory and parameters, after parallelism has divided the layer.

A rank has m tokens of a micro-batch. Traffic per layer and micro-batch, in bytes of 2-byte elements:

    tensor       an all-reduce of 2mh before the residual, twice per block, forward and backward; with sequence
                 parallelism an all-gather and a reduce-scatter instead (Korthikanti et al., arXiv 2205.05198). More
                 ranks than heads of keys share a product evenly, gather its results, and each takes a head of keys
                 and its own of queries; gradients are scattered (Megatron-LM, core/transformer/attention.py)
    context      ring: c−1 steps that pass keys and values on, during attention on the block received before; twice
                 the bytes in the backward (Liu et al., arXiv 2310.01889). all-to-all: queries, keys, values and
                 outputs (Jacobs et al., arXiv 2309.14509). all-gather: keys and values; their gradients are scattered
    expert       tokens to their experts and back, forward and backward (Lepikhin et al., arXiv 2006.16668)

Recomputation: `full` repeats the forward of every block and its traffic before the backward and keeps the block's
input alone; `selective` repeats the attention core and does not keep the score matrices.

A backward holds most during that of its MLP or, where keys and values are gathered, during that of attention: what was
kept before that, and (`Stack.gathers`) keys, values and their gradients of whole samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple

from hybrid_des.collectives.token_exchange import TokenExchange
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.elementwise import is_array, larger, times_up
from hybrid_des.cost_model.kept_activations import UNCONVERTED, copied_keys, kept_bytes, weight_share
from hybrid_des.cost_model.losses import at_a_time, gathers_logits, logits_again, widest_bytes
from hybrid_des.cost_model.operation_times import EIGHT_BITS, ELEMENT, HEAD, OPERANDS, Device, ProductUse, Times
from hybrid_des.workload.models.amounts import NOTHING_KEPT, Parameters
from hybrid_des.workload.models.frozen import JOINED
from hybrid_des.workload.models.layer import Layer, Module, wider
from hybrid_des.workload.models.operations import (
    Attention,
    Elementwise,
    Gemm,
    Operation,
    Scan,
    Scores,
    SelectiveAttention,
)
from hybrid_des.workload.models.routing import Routing

Axis = Literal["tensor", "context", "expert"]
SUMS = ("all-reduce", "reduce-scatter")
COPIES = Elementwise("copies around collectives", 0, 0, "none")
ALIGNED = 8  # elements of 16 bits: tensor cores take rows of a multiple of 16 bytes
# how much longer products take without them: A100's peaks, 39 of 312 TFLOP/s in 16 bits (its datasheet; NVIDIA, "Matrix
# Multiplication Background", section "Requirements to use tensor cores"); assumed for other GPUs, and fitted to nothing
UNALIGNED = 8
WEIGHT = 4  # bytes of a router's weight (deepseek-ai/DeepEP, docs/Hybrid-EP_Implementation.md, section 4.2)
# of the 722 GB/s that NCCL counts on between GB200s: with 32 multiprocessors HybridEP's kernels send 614 to 668 GB/s to
# 7 to 35 other ranks, and 580 to 645 back (the same document's table of BF16, less what stays on a rank)
REACHED, REACHED_BY_FEW, FEW = 0.87, 0.8, 16
# multiprocessor-seconds per token and expert of PyTorch's operators: softmax, top-k and normalization of 16,384 tokens
# and 128 to 512 experts on an H100 take 137 to 458 us, met within 12 % (FlashML-org/FreeToken, pull request 319; one
# kernel takes a tenth); the loss that balances experts chooses them once more. Besides, bytes of forward and backward:
# the bias, 32-bit scores and weights of all experts, and maps of the chosen (NVIDIA/Megatron-LM, moe/moe_utils.py,
# topk_routing_with_score_function and compute_routing_scores_for_aux_loss)
CHOICE, CHOICE_BYTES = 2 * 8.0e-9, (86, 56)


class Exchange(NamedTuple):
    """A collective that an op waits for.

    Attributes:
        axis: the axis whose ranks take part.
        does: all-reduce, reduce-scatter, all-gather or all-to-all; pass-on: an all-gather, step by step; dispatch or
            combine, once per node.
        size: bytes of a member's buffer.
        repeats: number of times, one after the other.
        behind: seconds of concurrent computation, each time.
        weights: of these, seconds of weight gradients, which a split backward computes later.
        steps: of a ring whose steps are started one by one, between two members each; 0: it is started once.
        how: of an exchange once per node: how tokens are routed.
        counts: whether the host waits for the number of tokens that arrive.
        held: bytes of the buffer of each member, in their order; none: all have as many.
        back: whether members return what they were sent, so that each sends parts of the others' buffers.
    """

    axis: Axis
    does: str
    size: int
    repeats: int = 1
    behind: float = 0.0
    steps: int = 0
    how: TokenExchange | None = None
    weights: float = 0.0
    counts: bool = False
    held: tuple[int, ...] = ()
    back: bool = False


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
        attention_backward: bytes that exist only during the backward of attention, when there are no logits; 0: fewer
            than those.
        offloaded: bytes of `kept` that the host holds.
        message: bytes passed on to the next layer.
        parameters: numbers of trained ones held by the rank: those of experts, and others.
        frozen: the same of frozen ones.
    """

    operations: tuple[tuple[Operation, Times], ...]
    times: Times
    forward: tuple[Exchange, ...]
    message: int
    again: float = 0.0
    backward: tuple[Exchange, ...] = ()
    kept: int = 0
    weight_share: Fraction = Fraction(0)
    transient: int = 0
    widest: int = 0
    weight_gradients: int = 0
    attention_backward: int = 0
    parameters: tuple[int, int] = (0, 0)
    frozen: tuple[int, int] = (0, 0)
    offloaded: int = 0


def layer_costs(layer: Layer, basis: CostBasis, device: Device, received: int = 0) -> LayerCosts:
    """The costs of a layer on each of the ranks that share it; `received` are bytes per token of the layer before."""
    if (factor := basis.element // ELEMENT) > 1:
        layer, received = wider(layer, factor), factor * received
    if basis.empty:
        of_others = (one for one in layer.operations if getattr(one, "expert", False))  # sent to its experts
        layer = replace(layer, operations=tuple(of_others))
    parts = tuple((operation, _times(operation, layer, basis, device)) for operation in layer.operations)
    forward, backward = (tuple(_traffic(layer, basis, parts, received, which)) for which in (0, 1))
    if layer.passed:
        return _forward_only(layer, basis, parts, forward)
    if layer.batch_first:
        parts = (*parts, (COPIES, device.moving(_copied(forward), _copied(backward))))
    if basis.cuda_graphs == "layers" and layer.is_block:
        copied = _copied_by_graphs(layer)
        parts = (*parts, (copied, _times(copied, layer, basis, device)))
    times = Times(*(sum(column) for column in zip(*(took for _, took in parts), strict=True)))
    core = _core(parts)
    recompute = basis.recompute if layer.is_block else "none"
    full = recompute == "full"
    tiled = ("mlp",) if basis.operators.mlp_again else ()
    modules = _outermost(layer.modules, (*(recompute if isinstance(recompute, tuple) else ()), *tiled))
    scores = recompute != "selective" and not full
    counted = kept = kept_bytes(layer, basis, modules, scores=scores)
    whole = kept_bytes(layer, basis, (), scores=True) if modules or recompute == "selective" else kept
    more = basis.efficiency.kept if basis.efficiency is not None and layer.is_block else Fraction(1)
    kept = times_up(kept, more)
    inner, of_tile = _tiled(layer, basis)
    widest = widest_bytes(layer, basis) + of_tile
    inputs = -(-layer.output * layer.streams * basis.tokens // basis.regular)
    parameters = _parameters(layer.parameters, basis)
    gradients = basis.element * (sum(parameters) + copied_parameters(layer, basis))
    repeated = kept if full else times_up(whole - counted - inner, more)
    beside = gradients + repeated + _whole_inputs(layer, basis) + times_up(basis.tokens, Fraction(layer.gradient))
    keys = _gathered_keys(layer, basis)
    spared, sums = _last_product(forward, parts, device) if full and layer.batch_first else (0.0, 0)
    again = {"selective": core.forward, "full": times.forward - spared}
    repeats = _less(forward, sums) if full else _gathered_again(layer, forward, modules)
    return LayerCosts(
        operations=parts,
        times=times,
        again=logits_again(layer, basis, parts, full=full)
        + (_again(parts, modules, () if full else repeats, basis, device) if modules else 0.0)
        + again.get(str(recompute), 0.0),
        forward=forward,
        backward=(*repeats, *backward),
        kept=inputs if full else kept,
        weight_share=weight_share(layer, basis, inputs if full else counted),
        transient=widest + beside,
        attention_backward=beside + keys - times_up(_behind(layer, basis) - inner, more) if keys else 0,
        widest=widest,
        weight_gradients=gradients,
        message=-(-layer.output * layer.streams * basis.tokens // basis.parallel.tensor),
        parameters=parameters,
        frozen=_parameters(layer.frozen, basis),
        offloaded=_offloaded(layer, basis, modules, inputs if full else kept, more),
    )


def _copied_by_graphs(layer: Layer) -> Elementwise:
    """Inputs of graphs, and gradients of their outputs, that are copied into the graphs' buffers.

    A graph of a block without experts has one of each. One that ends before the experts has three results or two: the
    residual, the experts' input, and what shared experts compute (NVIDIA/TransformerEngine, pytorch/graph.py;
    NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_layer.py).
    """
    results = 1 if layer.routing is None else 2 + any(one.name == "shared_experts" for one in layer.modules)
    copied = 2 * layer.output * layer.streams
    return Elementwise("copies around graphs", copied, results * copied, "sequence")


def _tiled(layer: Layer, basis: CostBasis) -> tuple[int, int]:
    """Bytes inside an MLP that the backward computes again tile by tile, and those of a tile."""
    width = sum(one.kept.tensor for one in layer.modules if one.name == "mlp") if basis.operators.mlp_again else 0
    each = Fraction(width, basis.parallel.tensor)
    return times_up(basis.tokens, each), times_up(at_a_time(basis.operators.mlp_tile, basis), each)


def _behind(layer: Layer, basis: CostBasis) -> int:
    """Bytes of activations that a backward has freed when it comes to attention."""
    kept = layer.behind.kept + (layer.behind.eager if basis.operators.blocks == "eager" else NOTHING_KEPT)
    return times_up(basis.tokens, Fraction(kept.sequence, basis.regular) + Fraction(kept.tensor, basis.parallel.tensor))


def _gathered_keys(layer: Layer, basis: CostBasis) -> int:
    """Bytes of gathered keys and values, their gradients, and what the backward of attention sums; 0 without any."""
    cores = [one for one in layer.operations if isinstance(one, Attention) and not isinstance(one, SelectiveAttention)]
    if basis.context == 1 or basis.parallel.context_method != "all-gather" or not cores:
        return 0
    queries, own, each = basis.gathers
    core, scale = cores[0], Fraction(basis.element, ELEMENT * basis.parallel.tensor)
    keys = core.kv_heads * (core.key_size + core.value_size) * (own + each * basis.context)
    return times_up(basis.tokens, (core.heads * core.key_size * queries + keys) * scale)


def _offloaded(layer: Layer, basis: CostBasis, modules: Sequence[Module], kept: int, more: Fraction) -> int:
    """Bytes of a block's activations that the host holds: a share, or the inputs of modules."""
    asked = basis.offload.activations
    if not asked or not layer.is_block:
        return 0
    if isinstance(asked, Fraction):
        return round(asked * kept)
    moved = [one for one in layer.offloads if one.name in asked]
    scores = basis.recompute != "selective"
    return kept - times_up(kept_bytes(layer, basis, [*modules, *moved], scores=scores), more)


def _forward_only(layer: Layer, basis: CostBasis, parts: Parts, forward: Sequence[Exchange]) -> LayerCosts:
    """The costs of a layer before all that are trained: it keeps nothing."""
    return LayerCosts(
        operations=tuple((operation, Times(took.forward)) for operation, took in parts),
        times=Times(sum(took.forward for _, took in parts)),
        forward=tuple(forward),
        message=-(-layer.output * layer.streams * basis.tokens // basis.parallel.tensor),
        frozen=_parameters(layer.frozen, basis),
    )


def _times(operation: Operation, layer: Layer, basis: CostBasis, device: Device) -> Times:
    m, t = basis.tokens, basis.parallel.tensor
    if isinstance(operation, Gemm):
        took = _product(operation, layer, basis, device)
        eager = operation.name == "router" and basis.experts.router == "eager"
        return _with_choice(took, operation, basis, device) if eager else took
    if isinstance(operation, Attention):
        return _attention(operation, basis, device)
    if isinstance(operation, Scores):
        return device.scored(sum(flop for flop, *_ in basis.attended(operation)) * m)
    if isinstance(operation, Scan):
        scanned = float(operation.flop) * m / t / device.scans[operation.rate]
        return Times(scanned, operation.backward * scanned)
    if isinstance(operation, Elementwise):
        if operation.of_each and basis.experts.kernel == "fused":
            return Times()
        if operation.of_samples and not basis.interleaved:
            return Times()
        over = {"none": 1, "sequence": basis.regular, "tensor": t}[operation.split]
        if layer.place == "last" and operation.split == "tensor" and gathers_logits(basis):
            over = 1  # every rank computes the loss over the whole vocabulary
        busiest = float(layer.balance) if operation.expert else 1.0
        tokens = basis.routed if operation.expert else m
        if (known := device.passed(operation.name, operation.forward * tokens / over * busiest)) is not None:
            return known
        how = basis.operators.loss if layer.place == "last" else basis.operators.blocks
        forward, backward = (size * tokens / over * busiest for size in operation.moved(how))
        return device.moving(forward, backward, operation.rate)
    each = larger(float(operation.flop) * m / device.flops16, operation.bytes * m / device.memory)
    return Times(each, each, each if operation.weights else 0.0)


def _with_choice(took: Times, router: Gemm, basis: CostBasis, device: Device) -> Times:
    """A router's product, and the choice of experts by operators of PyTorch."""
    scores = router.n * basis.tokens / basis.regular
    there, back = CHOICE_BYTES
    moved, chosen = device.moving(there * scores, back * scores), CHOICE * scores / device.multiprocessors
    return Times(took.forward + chosen + moved.forward, took.input + moved.input, took.weight)


def _product(gemm: Gemm, layer: Layer, basis: CostBasis, device: Device) -> Times:
    """A product with weights; experts of other ranks send their tokens here."""
    n, k, count = gemm.n, gemm.k, gemm.count
    divides = basis.parallel.of_expert if gemm.expert else basis.parallel.tensor
    rows = float(gemm.rows) * (basis.routed if gemm.expert else basis.tokens)
    if gemm.expert:
        count = held_experts(layer, gemm, basis)
        rows *= basis.parallel.expert * float(layer.balance) * divides / basis.parallel.tensor
        rows *= gemm.count // basis.parallel.expert / count
    if gemm.split == "columns":
        n = ceil(n / divides)
    elif gemm.split == "rows":
        k = ceil(k / divides)
    elif gemm.split == "groups":
        count = ceil(count / divides)
    elif gemm.split == "sequence":
        rows /= basis.regular
    if gemm.expert:
        device = device.of_experts
    quantised = layer.in_few_bits and gemm.name not in UNCONVERTED
    use = ProductUse(quantised, converts=not gemm.shares, anew=layer.batch_first, trained=gemm.trained)
    return device.layer_product(larger(1.0, rows), n, k, count, use)


def held_experts(layer: Layer, gemm: Gemm, basis: CostBasis) -> int:
    """Experts that a rank holds, copies included; their rows are those of the experts that it holds without."""
    without = gemm.count // basis.parallel.expert
    return layer.routing.slots(basis.parallel.expert) if layer.routing is not None else without


def _attention(attention: Attention, basis: CostBasis, device: Device) -> Times:
    """The attention core over the heads of a tensor rank."""
    m, t = basis.tokens, basis.parallel.tensor
    if attention.flash:
        # of which a table may hold the time
        whole = not is_array(m) and basis.context == 1 and basis.reach(attention) == 1
        known = device.core(attention, t) if whole and not attention.local else None
        if known is not None:
            return Times(*(took * m / attention.sequence for took in known))
        together = basis.parallel.context_method == "all-to-all" or isinstance(attention, SelectiveAttention)
        over = 1 if together else basis.context
        cores = []
        forms = {"equal": (1.0, attention.value_size), "unequal": (device.latent, HEAD), "selected": (1.0, HEAD)}
        for flop, keys, form in basis.attended(attention):
            slower, size = forms[form]
            cores.append(device.flash(flop * m / t / slower, keys / over, size))
        if isinstance(attention, SelectiveAttention) and (lesson := attention.taught) is not None:
            for flop, keys, _ in basis.attended(lesson):
                cores.append(Times(0.0, device.flash(flop * m / t, keys, HEAD).forward))
        return cores[0] if len(cores) == 1 else Times(*map(sum, zip(*cores, strict=True)))
    products = 0.0
    for keys, documents in basis.documents(attention).items():
        queries, count = keys / basis.context, documents * attention.heads / t
        products += device.product(queries, keys, attention.key_size, count)
        products += device.product(queries, attention.value_size, keys, count)
    if any(size % ALIGNED for size in (attention.key_size, attention.value_size)):
        products *= UNALIGNED
    sizes = (size * basis.element // ELEMENT for size in attention.score_bytes)
    forward, backward = (size * float(basis.reach(attention)) * m / t for size in sizes)
    passes = device.moving(forward, backward)
    return Times(products + passes.forward, 2 * products + passes.input)


def _core(parts: Parts) -> Times:
    """The times of attention."""
    return Times(*(sum(c) for c in zip(*(took for one, took in parts if isinstance(one, Attention)), strict=True)))


def _traffic(layer: Layer, basis: CostBasis, parts: Parts, received: int, backward: int) -> Iterator[Exchange]:
    """The collectives of one pass over a layer."""
    if basis.alone:
        return
    own = layer.held
    divided = own.tensor + own.tied + (own.expert if basis.parallel.of_expert > 1 else 0)
    if basis.parallel.tensor > 1 and divided and not basis.empty:
        beside = _weight_products(parts) if backward and basis.overlap.weight_gradients else []
        yield from _tensor_traffic(layer, basis, received, backward, beside)
    attention = [one for one in layer.operations if isinstance(one, Attention)]
    if basis.context > 1:
        for core in attention:
            yield from _context_traffic(core, basis, _core(parts)[backward] / len(attention), backward)
        for scan in (one for one in layer.operations if isinstance(one, Scan)):
            for each in scan.exchanged(basis.parallel.tensor, basis.context):
                yield Exchange("context", "all-to-all", round(each * basis.tokens * basis.element // ELEMENT))
    if basis.parallel.expert > 1 and layer.dispatched:
        yield from _token_traffic(layer, basis, backward)


def _weight_products(parts: Parts) -> list[float]:
    """Seconds of the weight gradients of products by columns, per half of a block, or of the logits."""
    halves = [0.0]
    for part, took in parts:
        if isinstance(part, Gemm) and not (part.expert or part.inner):
            if part.split == "columns":
                halves[-1] += took.weight
            elif part.split == "rows":
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
    inside = layer.halves - _only_experts(layer, basis) if layer.is_block else 0  # around each half
    sums, gathers = (inside + of_end for of_end in ends)
    if not basis.parallel.sequence:
        gathers = 0
    if layer.place == "last" and not backward and gathers_logits(basis):
        columns = sum(one.n for one in layer.operations if isinstance(one, Gemm) and one.name == "logits")
        yield Exchange("tensor", "all-gather", basis.element * basis.tokens * columns)
    if copied_keys(layer, basis.parallel.tensor):
        joined = sum(one.n for one in layer.operations if isinstance(one, Gemm) and one.name == JOINED)
        yield Exchange("tensor", "reduce-scatter" if backward else "all-gather", basis.element * basis.tokens * joined)
    summing = "reduce-scatter" if basis.parallel.sequence else "all-reduce"
    gathered = size  # inputs of products, which are converted before (NVIDIA/TransformerEngine, pytorch/distributed.py)
    if layer.in_few_bits and basis.precision in OPERANDS:
        gathered = round(size * OPERANDS[basis.precision] / ELEMENT)
    if layer.gathered and basis.parallel.sequence and not backward:
        yield Exchange("tensor", "all-gather", layer.gathered * basis.tokens)
    for product in beside[:sums]:
        yield Exchange("tensor", summing, size, behind=product, weights=product)
    for does, each, count in (("all-gather", gathered, gathers), (summing, size, sums - len(beside[:sums]))):
        if count:
            yield Exchange("tensor", does, each, count)


def _copied(exchanges: Sequence[Exchange]) -> int:
    """Bytes moved by copies of what tensor ranks gather or scatter: read and written once.

    Collectives act on the first dimension (torch/distributed/_functional_collectives.py).
    """
    along = ("all-gather", "reduce-scatter")
    return sum(2 * one.size * one.repeats for one in exchanges if one.axis == "tensor" and one.does in along)


def _only_experts(layer: Layer, basis: CostBasis) -> bool:
    """Whether the last half of a block divides nothing over tensor ranks: whole experts, and no shared ones."""
    products = [one for one in layer.operations if isinstance(one, Gemm) and one.split == "rows" and not one.inner]
    return basis.parallel.of_expert == 1 and bool(products) and products[-1].expert


def _token_traffic(layer: Layer, basis: CostBasis, backward: int) -> Iterator[Exchange]:
    """Tokens to their experts and back, or gradients to where the results came from and back."""
    routing = layer.routing
    shown = routing is not None and not routing.is_plain  # the exchange shows the busiest
    there = EIGHT_BITS if basis.experts.dispatch == "fp8" else Fraction(1)
    if basis.experts.dispatcher == "per-node" and routing is not None:
        each = layer.dispatched * (Fraction(1) if shown else layer.balance) / routing.active / basis.regular
        how = TokenExchange(
            experts=routing.count, active=routing.active, groups=routing.groups, top_groups=routing.top_groups,
            loads=routing.loads, placed=routing.placed, capacity=routing.capacity, channels=basis.experts.channels,
            reach=_reached(basis.experts.multiprocessors) if basis.experts.library == "hybridep" else None,
        )  # fmt: skip
        out, home = each * there, each
        if basis.experts.library == "hybridep":
            busiest = (Fraction(1) if shown else layer.balance) / basis.regular
            weights = WEIGHT * busiest * _experts_of_node(routing, basis)  # of the router, and their gradients
            out, home = (out, home + weights) if backward else (out + weights, home)
            if not backward:
                maps = basis.tokens * busiest * routing.count * basis.parallel.expert
                yield Exchange("expert", "all-gather", round(maps))
        first, second = _exchange(basis, "dispatch", out), _exchange(basis, "combine", home)
        yield first._replace(how=how, counts=not backward)  # which a backward knows
        yield second._replace(how=how)
        return
    each = layer.dispatched * layer.balance / basis.regular
    first, second = _exchange(basis, "all-to-all", each * there), _exchange(basis, "all-to-all", each)
    if first == second and not first.held:
        yield first._replace(repeats=2)
    else:
        yield from (first, second._replace(back=bool(second.held)))


def _reached(multiprocessors: int | None) -> float:
    """The share of a port that HybridEP's kernels reach."""
    return REACHED_BY_FEW if multiprocessors and multiprocessors <= FEW else REACHED


def _exchange(basis: CostBasis, does: str, each: Fraction) -> Exchange:
    """An exchange with experts of so many bytes for each token of a rank."""
    routed = basis.load.routed if basis.load is not None else ()
    return Exchange("expert", does, round(basis.tokens * each), held=tuple(round(tokens * each) for tokens in routed))


def _experts_of_node(routing: Routing, basis: CostBasis) -> int:
    """Experts that the ranks of a node hold together, of one group that shares them."""
    group = basis.parallel.layout.groups("expert")[0]
    return routing.count * max(Counter(map(basis.cluster.node_of, group)).values()) // len(group)


def _context_traffic(attention: Attention, basis: CostBasis, core: float, backward: int) -> Iterator[Exchange]:
    """Keys and values of all heads of a tensor rank, or all four tensors of attention."""
    c, per_head = basis.context, basis.element * basis.tokens / basis.parallel.tensor
    if isinstance(attention, SelectiveAttention):
        does = "reduce-scatter" if backward else "all-gather"
        yield Exchange("context", does, basis.element * basis.tokens * attention.gathered * c)
        return
    key_value = round(per_head * attention.key_values(basis.parallel.tensor))
    if basis.parallel.context_method == "ring":
        behind = core * (c - 1) / c  # attention on the block held before, step by step
        yield Exchange("context", "pass-on", c * key_value << backward, behind=behind, steps=c - 1)
    elif basis.parallel.context_method == "all-gather":
        yield Exchange("context", "reduce-scatter" if backward else "all-gather", key_value * c)
    else:
        whole = round(per_head * attention.heads * (attention.key_size + attention.value_size)) + key_value
        yield Exchange("context", "all-to-all", whole)


def _again(
    parts: Parts, modules: Sequence[Module], repeats: Sequence[Exchange], basis: CostBasis, device: Device
) -> float:
    """Seconds of the forward of modules."""
    left = {name for one in modules for name in one.summed} if basis.parallel.tensor > 1 else set()
    names = {name for one in modules for name in one.operations} - left
    passes = sum(one.bytes for one in modules) * basis.tokens / basis.regular
    passes += _copied(repeats) if any(one is COPIES for one, _ in parts) else 0
    return sum(took.forward for one, took in parts if one.name in names) + device.moving(passes, 0).forward


def _last_product(forward: Sequence[Exchange], parts: Parts, device: Device) -> tuple[float, int]:
    """The last product of a block, whose result no backward needs: its seconds, and its sums over tensor ranks.

    PyTorch stops repeating when it has what the backward saved (torch/utils/checkpoint.py, early stop).
    """
    product = next(
        took.forward for one, took in reversed(parts) if isinstance(one, Gemm) and one.split == "rows" and not one.inner
    )
    sums = [one._replace(repeats=1) for one in forward if one.axis == "tensor" and one.does in SUMS]
    return product + device.moving(_copied(sums), 0).forward, len(sums)


def _less(forward: Sequence[Exchange], sums: int) -> tuple[Exchange, ...]:
    """The collectives of a forward without so many sums over tensor ranks."""
    each = (one._replace(repeats=one.repeats - sums * (one.axis == "tensor" and one.does in SUMS)) for one in forward)
    return tuple(one for one in each if one.repeats)


def _whole_inputs(layer: Layer, basis: CostBasis) -> int:
    """Bytes of a block's gathered input and of its gradient, before it is scattered, with sequence parallelism."""
    if not layer.is_block or basis.regular == 1:
        return 0
    return 2 * ceil(layer.output * basis.tokens * Fraction(basis.regular - 1, basis.regular))


def _outermost(modules: Sequence[Module], names: Sequence[str]) -> list[Module]:
    """The modules of these names that are not part of another of them."""
    named = [one for one in modules if one.name in names]
    sets = [{*one.operations} for one in named]
    return [one for one, own in zip(named, sets, strict=True) if not own or not any(own < other for other in sets)]


def _gathered_again(layer: Layer, forward: Sequence[Exchange], modules: Sequence[Module]) -> tuple[Exchange, ...]:
    """The gathers of a forward among tensor ranks, if its products need their inputs again.

    Of a second half that is repeated with its messages, all of them: those of one of the halves among tensor ranks.
    """
    if any(one.sends for one in modules):
        each = (one._replace(repeats=one.repeats // layer.halves) if one.axis == "tensor" else one for one in forward)
        return tuple(one for one in each if one.repeats and one.axis != "context")
    if not any(one.gathers for one in modules):
        return ()
    return tuple(one for one in forward if one.axis == "tensor" and one.does == "all-gather")


def _parameters(own: Parameters, basis: CostBasis) -> tuple[int, int]:
    """Numbers that a rank holds of these: those of experts, and others."""
    dense = -(-(own.tensor + own.tied) // basis.parallel.tensor) + own.replicated
    return -(-own.expert // (basis.parallel.expert * basis.parallel.of_expert)), dense


def copied_parameters(layer: Layer, basis: CostBasis) -> int:
    """The parameters of copies of experts that a rank holds in addition."""
    routing, ranks = layer.routing, basis.parallel.expert
    if routing is None:
        return 0
    copies = routing.slots(ranks) - routing.count // ranks
    return ceil(Fraction(copies * layer.parameters.expert, routing.count * basis.parallel.of_expert))


def tensor_sizes(tensors: Sequence[Parameters], basis: CostBasis, *, tied: bool) -> tuple[tuple[int, int], ...]:
    """What a rank holds of a layer's tensors, outside and in experts; with `tied`, also of those of the first layer.

    They sum to `LayerCosts.parameters`: a division that is not even leaves its rest to the first tensors.
    """
    sizes, t, of_experts = [], basis.parallel.tensor, basis.parallel.expert * basis.parallel.of_expert
    divided = experts = 0
    for tensor in tensors:
        before = -(-divided // t), -(-experts // of_experts)
        divided += tensor.tensor + (tensor.tied if tied else 0)
        experts += tensor.expert
        after = -(-divided // t), -(-experts // of_experts)
        sizes.append((after[0] - before[0] + tensor.replicated, after[1] - before[1]))
    return tuple(sizes)


def tied_parameters(layer: Layer, basis: CostBasis) -> int:
    """The parameters of the first layer that a rank needs for this layer; `LayerCosts.parameters` includes them."""
    own = layer.parameters
    return _parameters(own, basis)[1] - (-(-own.tensor // basis.parallel.tensor) + own.replicated)
