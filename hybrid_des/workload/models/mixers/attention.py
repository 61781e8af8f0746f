"""Multi-head and grouped-query attention, and what variants add.

    h ─► queries, keys, values[, gate] ─► core ─► × gate ─► output

With a query heads, k heads of keys and values, d the size of a head and v that of a value:

    parameters   h·a·d + h·k·(d + v) + a·v·h; gate `element` h·a·v, `head` h·a; qk_norm `head` 2d, `layer` (a + k)·d;
                 sinks a; keys_values `one`: without h·k·v; `shared`: without h·k·(d + v)
    kept         h, a·d + k·(d + v), a·v and the gate

The gate multiplies the heads' results (Qiu et al., arXiv 2505.06708); sinks are a logit per head (OpenAI, arXiv
2508.10925); `one` and `shared` are Gemma 4's (transformers, models/gemma4). Tensor ranks divide the heads; the norm of
a whole `layer` of heads would add 4 bytes per token and rank to an all-reduce, which is left out.
"""

from __future__ import annotations

from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.kinds.pytorch_llama import separate_heads
from hybrid_des.workload.models.layer import Module, Part, linear, offload, weights
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.operations import Attention, Cache, Elementwise, Gemm


@mixer("attention", summary="multi-head or grouped-query attention")
def attention(block: Block) -> Part:
    """Products, norms of queries and keys, the core, and the gate."""
    h, a, d, k = block.hidden, block.heads, block.head, block.kv_heads or block.heads
    value = block.value_size or d
    queries = a * d
    keys = 0 if block.keys_values == "shared" else k * d
    values = 0 if block.keys_values else k * value
    gate = {"element": a * value, "head": a}.get(block.gate or "", 0)
    width = queries + keys + values + gate
    if block.pytorch:
        inputs = separate_heads(h, queries, keys, bias=block.bias, copies=not block.autograd)
    else:
        inputs = linear("queries, keys, values", h, width, "columns", bias=block.bias)
    return (
        inputs
        + Part(kept=Kept(sequence=ELEMENT * h, tensor=ELEMENT * width))
        + offload("qkv_linear", *(one.name for one in inputs.operations if isinstance(one, Gemm)), sequence=h)
        + _norms(block, queries, keys)
        + core(block, k, d, value, Cache(k, d, 0 if block.keys_values == "one" else value))
        + gating(a * value, gate)
        + (weights(Parameters(tensor=a)) if block.sinks else Part())
        + linear("attention output", a * value, h, "rows", bias=block.bias, keeps=False)
    )


def _norms(block: Block, queries: int, keys: int) -> Part:
    """Norms of queries and keys: of each head, whose weights all share, or of all heads together."""
    if not block.qk_norm:
        return Part()
    width = queries + keys
    passes = Elementwise("query and key norms", 2 * ELEMENT * width, 3 * ELEMENT * width, "tensor")
    sizes = [size for size in (queries, keys) if size]
    whole = [Parameters(tensor=size) for size in sizes]
    own = whole if block.qk_norm == "layer" else [Parameters(replicated=block.head)] * len(sizes)
    kept = Kept(tensor=ELEMENT * width)
    return Part((passes,), kept=kept, eager=kept * block.norm_saves) + weights(*own)


def gating(width: int, gate: int) -> Part:
    """The product of `width` results of heads with a sigmoid of `gate` elements; no gate has none."""
    passes = Elementwise("output gate", ELEMENT * (2 * width + gate), ELEMENT * (3 * width + 2 * gate), "tensor")
    return Part((passes,) if gate else ())


def core(block: Block, kv_heads: int, key: int, value: int, cache: Cache) -> Part:
    """Attention without its projections, with the copy between both layouts of heads."""
    a, s, flash = block.heads, block.sequence, block.attention == "flash"
    sent, chunk = a if block.pytorch and not block.autograd else kv_heads, block.attention_chunk
    scored = Attention("attention", a, sent, key, value, s, block.causal, flash, block.window, chunk, cache)
    scores = 0 if flash else 5 * a * s  # softmax, dropout mask, dropout
    return scored_by(scored, a * value, scores)


def scored_by(scored: Attention, width: int, scores: int = 0) -> Part:
    """A core whose heads have results of `width` elements together, and that keeps so many bytes of scores."""
    layout = Elementwise("head layout", 4 * width, 4 * width, "tensor")
    again = Module("core_attn", ("attention",), Kept(scores=scores))
    part = Part((scored, layout), kept=Kept(tensor=ELEMENT * width, scores=scores), modules=(again,))
    heads = scored.heads * scored.key_size + scored.kv_heads * (scored.key_size + scored.value_size)
    return part + offload("core_attn", tensor=heads) + offload("attn_proj", "attention output", tensor=width)
