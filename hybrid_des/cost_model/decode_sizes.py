"""What a rank of an engine holds of a model, and what it reads and computes for a decode step.

Of t tensor ranks, each has 1/t of the products that tensor parallelism divides and all of the others; experts are
divided over all ranks of a replica. Keys are divided by heads, and copied where ranks are more than heads, with their
weights (vLLM, QKVParallelLinear in model_executor/layers/linear.py); a latent vector is on every rank. Windows and
states of linear mixers are counted whole for every sequence, however short it is.
Left out: embeddings, norms and convolutions are held, but not read; modules of multi-token prediction are neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hybrid_des.cost_model.operation_times import OPERANDS
from hybrid_des.errors import Refusal
from hybrid_des.scenario.sections.cluster import WIDE
from hybrid_des.workload.models.amounts import ELEMENT
from hybrid_des.workload.models.frozen import JOINED
from hybrid_des.workload.models.layer import Layer, Model
from hybrid_des.workload.models.operations import (
    Attention,
    Cache,
    Gemm,
    Kernel,
    Operation,
    Scan,
    Scores,
    SelectiveAttention,
)

STATE = 4  # bytes of an element of a linear mixer's state: mamba_ssm_dtype in the config.json of Qwen3.5
DIVIDED = ("columns", "rows", "groups")


class Amounts(NamedTuple):
    """Of one rank, of a layer or of several.

    Attributes:
        weights: bytes that it holds.
        read: bytes of products that every token reads.
        flop, flop16: per token, of products in the precision and in 16 bits; without logits.
        logits: FLOP per token of the logits, in 16 bits.
        cached: bytes that a token adds to the cache.
        cache_read, cache_flop: bytes and FLOP of a step for each cached token.
        state: bytes that a sequence holds beside: states, and keys of windows.
        state_moved: bytes of a step for them.
        sums, summed: how often tensor ranks sum, and elements per token of all sums.
        mixes, mixed: the same of layers with experts, whose tokens data ranks gather and scatter.
    """

    weights: float = 0.0
    read: float = 0.0
    flop: float = 0.0
    flop16: float = 0.0
    logits: float = 0.0
    cached: float = 0.0
    cache_read: float = 0.0
    cache_flop: float = 0.0
    state: float = 0.0
    state_moved: float = 0.0
    sums: float = 0.0
    summed: float = 0.0
    mixes: float = 0.0
    mixed: float = 0.0


class ExpertSizes(NamedTuple):
    """The experts of a layer: all, those of a token, and on one rank bytes of all, and FLOP for one token."""

    experts: int
    active: int
    bytes: float
    flop: float


@dataclass(frozen=True)
class DecodeSizes:
    """What each rank has of a model.

    Attributes:
        amounts: of all layers.
        experts: of layers with experts, and how many layers have the same.
        layers: number of blocks.
    """

    amounts: Amounts
    experts: Mapping[ExpertSizes, int]
    layers: int


class Division(NamedTuple):
    """How a replica divides a model, and in how many bits it has it.

    Attributes:
        tensor: tensor ranks.
        ranks: all ranks.
        precision: of the weights of blocks.
        cache: bytes of an element of cached keys and values.
    """

    tensor: int
    ranks: int
    precision: str
    cache: float

    def element(self, layer: Layer) -> float:
        """Bytes of a weight of a product."""
        if self.precision in WIDE:
            return 4
        return OPERANDS.get(self.precision, ELEMENT) if layer.in_few_bits else ELEMENT


def decode_sizes(network: Model, division: Division) -> DecodeSizes:
    """What each rank has of a model.

    Raises:
        Refusal: an operation of the model is not modelled, or cannot be divided; one line.
    """
    layers = [layer for layer in network.unnamed if not layer.predicts]
    _check(network, layers, division.tensor)
    amounts, experts = Amounts(), Counter[ExpertSizes]()
    for layer, times in Counter(layers).items():
        amounts = Amounts(*(a + times * b for a, b in zip(amounts, _amounts(layer, division), strict=True)))
        if products := _of_experts(layer):
            experts[_experts(products, division, division.element(layer))] += times
    return DecodeSizes(amounts, experts, sum(layer.is_block for layer in layers))


def _check(network: Model, layers: Sequence[Layer], tensor: int) -> None:
    if network.sample != "sequence":
        raise Refusal(f"a model on {network.sample}s generates no tokens; expected one on sequences")
    for layer in set(layers):
        for operation in layer.operations:
            if what := _unknown(operation):
                raise Refusal(f"generation with {what} is not modelled")
            if isinstance(operation, Attention | Scan) and operation.heads % tensor:
                raise Refusal(f"{operation.heads} heads cannot be divided over {tensor} tensor ranks")


def _unknown(operation: Operation) -> str:
    """What of an operation decode steps are not known for; nothing if they are."""
    if isinstance(operation, SelectiveAttention | Scores):
        return "attention to selected or compressed keys (an indexer, as in DeepSeek-V3.2)"
    if isinstance(operation, Attention) and not operation.causal:
        return "attention to later tokens (an encoder)"
    if isinstance(operation, Kernel) or (isinstance(operation, Scan) and not operation.state):
        return f'"{operation.name}", whose state per sequence is not known,'
    return ""


def _amounts(layer: Layer, division: Division) -> Amounts:
    """All but the experts' FLOP and reads."""
    products = [one for one in layer.operations if isinstance(one, Gemm) and not one.expert]
    element, t = division.element(layer), division.tensor
    copies = _copies(layer, t)
    sizes = {
        one: (one.n + copies.get(one.name, 0)) * one.k * one.count / (t if one.split in DIVIDED else 1)
        for one in products
    }
    logits = sum(2 * size for one, size in sizes.items() if layer.place == "last" and not layer.is_block)
    read = sum(sizes.values())
    held = layer.held.tensor / t + layer.held.replicated
    held += sum(copies.get(one.name, 0) * one.k for one in products) / t
    wide = 4 if division.precision in WIDE else ELEMENT
    weights = wide * held - (wide - element) * min(read, held) + element * layer.held.expert / division.ranks
    flop = 0 if logits else sum(2 * size * float(one.rows) for one, size in sizes.items())
    few = layer.in_few_bits
    branches = layer.halves if layer.is_block else 0
    routed = int(bool(_of_experts(layer)))
    width = layer.output // ELEMENT
    return Amounts(
        weights, element * read, flop if few else 0.0, 0.0 if few else flop, logits,
        *_cache(layer, division), branches, branches * width, routed, routed * width,
    )  # fmt: skip


def _copies(layer: Layer, tensor: int) -> dict[str, int]:
    """By product, columns of copies of keys and values, on all tensor ranks together."""
    caches = [core.cache for core in layer.operations if isinstance(core, Attention) and core.cache]
    if not caches or layer.shares is not None:
        return {}
    more, (_, keys, values) = max(0, tensor - caches[0].heads), caches[0]
    return {JOINED: more * (keys + values), "keys": more * keys, "values": more * values}


def _cache(layer: Layer, division: Division) -> tuple[float, float, float, float, float]:
    """Bytes that a token adds, bytes and FLOP of a step for each, and bytes held and moved for each sequence."""
    cached = read = flop = state = moved = 0.0
    for core in layer.operations:
        if isinstance(core, Scan):
            mine = STATE * core.state / division.tensor
            state, moved = state + mine, moved + 2 * mine  # read and written
        if not isinstance(core, Attention):
            continue
        cache = core.cache or Cache(core.kv_heads, core.key_size, core.value_size)
        heads = cache.heads / min(division.tensor, cache.heads)
        token = division.cache * heads * (cache.keys + cache.values)
        own = token if layer.shares is None else 0.0  # others read the cache of an earlier block
        if most := core.window or core.chunk:
            state, moved = state + most * own, moved + most * token
            continue
        cached, read = cached + own, read + token
        flop += 2 * core.heads / division.tensor * (cache.keys + (cache.values or cache.keys))
    return cached, read, flop, state, moved


def _of_experts(layer: Layer) -> list[Gemm]:
    return [one for one in layer.operations if isinstance(one, Gemm) and one.expert]


def _experts(products: Sequence[Gemm], division: Division, element: float) -> ExpertSizes:
    each = sum(one.n * one.k for one in products) / division.ranks
    experts, active = products[0].count, round(products[0].rows * products[0].count)
    return ExpertSizes(experts, active, element * experts * each, 2 * active * each)
