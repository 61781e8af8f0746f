"""Blocks of transformers: attention and MLP, each between a norm and a residual connection.

Symbols: hidden size h, heads a, MLP width f, width of its first product u = f (GELU) or 2f (SwiGLU), sequence s.
Bytes of memory-bound operations are reads and writes of 2-byte elements by Megatron-LM's fused kernels, chosen to meet
published iteration times: norms, residuals and dropout 22h forward and 30h backward per block, head layout 4h each,
activation 4f and 8f (GELU) or 6f and 12f (SwiGLU). Kept activations: Korthikanti et al., arXiv 2205.05198; models with
GELU are trained with dropout, those with SwiGLU without.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Literal

from hybrid_des.models.layer import (
    ELEMENT,
    Attention,
    Elementwise,
    Gemm,
    GemmSplit,
    Kept,
    Layer,
    Parameters,
    Part,
    layer_of,
)
from hybrid_des.options import MOST, Count, Factor, Flag, Section, whole

OrNone = Annotated[int, whole(0, MOST)]
Depth = Annotated[int, whole(1, 2**14)]  # a million layers would take minutes to plan


class Latent(Section):
    """Multi-head latent attention: queries, and keys with values, are projected from short vectors per token."""

    query: OrNone = 0
    """Length of the vector that queries are projected from; 0: they are projected from the hidden vector."""
    key_value: Count
    """Length of the vector that keys and values are projected from."""
    nope: Count
    """Size of a head's query and key without position."""
    rope: Count
    """Size of a head's query and key with rotary position; this key is shared by all heads."""
    value: Count
    """Size of a head's value."""


class Experts(Section):
    """Mixture of experts in place of the MLP."""

    count: Count
    """Number of routed experts."""
    active: Count
    """Routed experts per token."""
    ffn: Count
    """Width of one expert."""
    shared: OrNone = 0
    """Experts that every token passes."""
    dense_layers: OrNone = 0
    """Leading layers with an MLP instead."""
    balance: Factor = Fraction(1)
    """Tokens of the busiest expert rank divided by the mean."""
    router_bias: Flag = False
    """Whether the router has a bias per expert, as in DeepSeek-V3."""


@dataclass(frozen=True)
class BlockShape:
    """Sizes of a block; `head` is the size of a head, unused for latent attention."""

    hidden: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    mlp: Literal["gelu", "swiglu"]
    norm: Literal["layer", "rms"]
    bias: bool
    sequence: int
    causal: bool
    flash: bool
    latent: Latent | None = None

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of the hidden vector."""
        return self.hidden * (2 if self.norm == "layer" else 1)


def block(shape: BlockShape, name: str, experts: Experts | None = None) -> Layer:
    """One block, with experts or an MLP."""
    h = shape.hidden
    norms = Part(
        (Elementwise("norms and residuals", 22 * h, 30 * h, "sequence"),),
        Parameters(replicated=2 * shape.norm_parameters),
        Kept(sequence=2 * ELEMENT * h + (2 * h if shape.mlp == "gelu" else 0)),  # two inputs, two masks of dropout
    )
    attention = _latent_attention(shape, shape.latent) if shape.latent else _attention(shape)
    if experts is None:
        return layer_of(name, (norms, attention, _mlp(shape, shape.ffn)), ELEMENT * h)
    parts = [norms, attention, _routed(shape, experts)]
    if experts.shared:
        parts.append(_mlp(shape, experts.shared * experts.ffn, "shared "))
    else:
        parts.append(Part(kept=Kept(sequence=ELEMENT * h)))  # the router's input
    return layer_of(name, parts, ELEMENT * h, dispatched=ELEMENT * experts.active * h, balance=experts.balance)


def blocks(count: int, shape: BlockShape, experts: Experts | None = None, dense: int = 0) -> list[Layer]:
    """Blocks with experts, the first `dense` of them with an MLP instead; equal ones share their parts."""
    unnamed = [block(shape, "")] * min(dense, count) + [block(shape, "", experts)] * max(count - dense, 0)
    return [replace(one, name=f"block {i}") for i, one in enumerate(unnamed)]


def linear(
    name: str, inputs: int, outputs: int, split: GemmSplit, *, bias: bool = False, rows: Fraction = Fraction(1)
) -> Part:
    """A product with weights and optionally a bias, whose input is counted elsewhere."""
    weights = inputs * outputs
    own = Parameters(tensor=weights) if split in ("columns", "rows") else Parameters(replicated=weights)
    if bias:
        own += Parameters(tensor=outputs) if split == "columns" else Parameters(replicated=outputs)
    return Part((Gemm(name, outputs, inputs, split, rows),), own)


def norm(name: str, size: int, parameters: int) -> Part:
    """A norm on its own: reads and writes its input; the backward reads it again, with the gradient."""
    return Part(
        (Elementwise(name, 2 * ELEMENT * size, 3 * ELEMENT * size, "sequence"),),
        Parameters(replicated=parameters),
        Kept(sequence=ELEMENT * size),
    )


def _attention(shape: BlockShape) -> Part:
    """Multi-head or grouped-query attention."""
    h, size = shape.hidden, shape.head
    width = (shape.heads + 2 * shape.kv_heads) * size
    return (
        linear("queries, keys, values", h, width, "columns", bias=shape.bias)
        + Part(kept=Kept(sequence=ELEMENT * h, tensor=ELEMENT * width))
        + _core(shape, shape.kv_heads, size, size)
        + linear("attention output", shape.heads * size, h, "rows", bias=shape.bias)
    )


def _latent_attention(shape: BlockShape, latent: Latent) -> Part:
    """Multi-head latent attention (DeepSeek-AI, arXiv 2405.04434, section 2.1): down-projections are not divided."""
    h, a, q, kv = shape.hidden, shape.heads, latent.query, latent.key_value
    key = latent.nope + latent.rope
    part = Part(kept=Kept(sequence=ELEMENT * h))
    if q:
        part += linear("queries down", h, q, "sequence") + norm("query norm", q, q)
        part += Part(kept=Kept(sequence=ELEMENT * q))
    part += linear("queries up" if q else "queries", q or h, a * key, "columns")
    part += linear("keys and values down", h, kv + latent.rope, "sequence") + norm("key and value norm", kv, kv)
    part += linear("keys and values up", kv, a * (latent.nope + latent.value), "columns")
    part += Part(kept=Kept(sequence=ELEMENT * (kv + latent.rope), tensor=ELEMENT * a * (2 * key + latent.value)))
    return part + _core(shape, a, key, latent.value) + linear("attention output", a * latent.value, h, "rows")


def _core(shape: BlockShape, kv_heads: int, key: int, value: int) -> Part:
    """Attention without its projections, with the copy between both layouts of heads."""
    a, s = shape.heads, shape.sequence
    core = Attention("attention", a, kv_heads, key, value, s, shape.causal, shape.flash)
    scores = 0 if shape.flash else 5 * a * s  # softmax, dropout mask, dropout
    layout = Elementwise("head layout", 4 * a * value, 4 * a * value, "tensor")
    return Part((core, layout), kept=Kept(tensor=ELEMENT * a * value, scores=scores))


def _mlp(shape: BlockShape, ffn: int, prefix: str = "") -> Part:
    """Two products around an activation; their input is counted."""
    h, up = shape.hidden, _up(shape, ffn)
    return (
        linear(f"{prefix}MLP up", h, up, "columns", bias=shape.bias)
        + Part((_activation(shape, f"{prefix}activation", ffn),))
        + linear(f"{prefix}MLP down", ffn, h, "rows", bias=shape.bias)
        + Part(kept=Kept(sequence=ELEMENT * h, tensor=ELEMENT * (up + ffn)), transient=ELEMENT * (up + ffn))
    )


def _routed(shape: BlockShape, experts: Experts) -> Part:
    """Router, copies of tokens in the order of their experts and back, and the routed experts."""
    h, ffn, up = shape.hidden, experts.ffn, _up(shape, experts.ffn)
    count, active = experts.count, experts.active
    share = Fraction(active, count)
    inner = ELEMENT * active * (up + ffn)
    each = (up + ffn) * h + (up + h if shape.bias else 0)
    copies = 2 * 2 * ELEMENT * active * h  # read and written, there and back
    products = (
        Elementwise("routing", copies, copies, "sequence", expert=True),
        Gemm("experts up", up, h, "columns", share, count, expert=True),
        _activation(shape, "experts' activation", active * ffn, expert=True),
        Gemm("experts down", h, ffn, "rows", share, count, expert=True),
    )
    own = Parameters(expert=count * each, idle=(count - active) * each)
    kept = Kept(received=ELEMENT * active * h, expert=inner)
    return linear("router", h, count, "sequence", bias=experts.router_bias) + Part(products, own, kept, inner)


def _activation(shape: BlockShape, name: str, ffn: int, *, expert: bool = False) -> Elementwise:
    forward = 6 if shape.mlp == "swiglu" else 4
    return Elementwise(name, forward * ffn, 2 * forward * ffn, "tensor", expert)


def _up(shape: BlockShape, ffn: int) -> int:
    """Width of the first product: SwiGLU has a gate in addition to the values."""
    return 2 * ffn if shape.mlp == "swiglu" else ffn
