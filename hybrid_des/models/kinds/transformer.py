"""Transformers on tokens: decoders such as GPT and Llama, mixtures of experts, and encoders such as BERT.

    embedding ─► block 0 ─► … ─► block L−1 ─► norm, logits, loss
    block: norm ─► attention ─► + ─► norm ─► MLP or experts ─► +

With plain attention, a forward of one sequence takes 24·L·s·h²·(1 + s/(6h)) + 2·s·h·V FLOP for GPT (Narayanan et al.,
arXiv 2104.04473, appendix); causal flash attention takes half of the s² term. Kept per token: 10h + (24h + 5as)/t for
GPT, where 10h is divided by t too with sequence parallelism (Korthikanti et al., arXiv 2205.05198).
"""

from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal

from hybrid_des.models.block import BlockShape, Depth, Experts, Latent, OrNone, blocks, linear, norm
from hybrid_des.models.kinds import ModelRefusal, kind
from hybrid_des.models.layer import ELEMENT, Elementwise, Gemm, Kept, Layer, Model, Parameters, Part, layer_of
from hybrid_des.options import Count, Flag, Options, choice

Mlp = Annotated[Literal["gelu", "swiglu"], choice("gelu", "swiglu")]
Norm = Annotated[Literal["layer", "rms"], choice("layer", "rms")]
Positions = Annotated[Literal["learned", "rotary"], choice("learned", "rotary")]
AttentionKind = Annotated[Literal["plain", "flash"], choice("plain", "flash")]


class Transformer(Options):
    """Sizes of a transformer; the defaults are those of Llama."""

    layers: Depth
    """Number of blocks."""
    hidden: Count
    """Length of the vector of a token."""
    heads: Count
    """Attention heads."""
    kv_heads: Count | None = None
    """Heads of keys and values, each shared by several queries. Default: as many as heads."""
    head_size: Count | None = None
    """Size of a head. Default: hidden divided by heads."""
    ffn: Count
    """Width of the MLP."""
    mlp: Mlp = "swiglu"
    """gelu: two matrices and dropout; swiglu: three matrices (a gate), no dropout."""
    vocab: Count
    """Number of tokens known, perhaps padded."""
    sequence: Count
    """Tokens per sample."""
    tied: Flag = False
    """Whether logits use the matrix of the embedding."""
    attention: AttentionKind = "flash"
    """plain: score matrices are written to memory; flash: they are not."""
    causal: Flag = True
    """Whether a token attends only to those before it."""
    norm: Norm = "rms"
    """layer: weight and bias; rms: weight only."""
    post_norm: Flag = False
    """Whether norms come after the residual connections: one after the embedding, none before the logits."""
    bias: Flag = False
    """Whether products have biases."""
    positions: Positions = "rotary"
    """learned: a vector per place in the sequence; rotary: no parameters."""
    token_types: OrNone = 0
    """Kinds of segments with a vector each, as in BERT."""
    pooler: Flag = False
    """Whether the first token of a sample passes one more product, as in BERT."""
    latent: Latent | None = None
    """Multi-head latent attention, such as {query: 1536, key_value: 512, nope: 128, rope: 64, value: 128}."""
    experts: Experts | None = None
    """Mixture of experts, such as {count: 8, active: 2, ffn: 14336}."""


@kind("transformer", summary="decoders and encoders on tokens, dense or with experts", options=Transformer)
@lru_cache(maxsize=16)  # many scenarios of one model, as in sweeps and searches
def transformer(options: Transformer) -> Model:
    """Embedding, blocks, and logits with loss."""
    _check(options)
    shape = _shape(options)
    experts = options.experts
    inner = blocks(options.layers, shape, experts, dense=experts.dense_layers if experts else 0)
    return Model(options.sequence, (_embedding(options, shape), *inner, _logits(options, shape)), "sequence")


def check_heads(hidden: int, heads: int) -> None:
    """Refuse a hidden vector that heads cannot share."""
    if hidden % heads:
        raise ModelRefusal("heads", f"hidden size {hidden} is not divisible by {heads} heads")


def _check(options: Transformer) -> None:
    latent, experts = options.latent, options.experts
    if latent is not None:
        for name in ("kv_heads", "head_size"):
            if getattr(options, name) is not None:
                raise ModelRefusal(name, "has no meaning with latent attention")
    elif options.head_size is None:
        check_heads(options.hidden, options.heads)
    if options.kv_heads is not None and options.heads % options.kv_heads:
        raise ModelRefusal(
            "kv_heads", f"{options.heads} heads cannot share {options.kv_heads} heads of keys and values"
        )
    if experts is not None:
        if experts.active > experts.count:
            raise ModelRefusal("experts.active", f"{experts.active} of only {experts.count} experts per token")
        if experts.dense_layers > options.layers:
            raise ModelRefusal("experts.dense_layers", f"{experts.dense_layers} of only {options.layers} layers")
        if experts.balance < 1:
            raise ModelRefusal("experts.balance", "the busiest rank has at least the mean; expected 1 or more")


def _shape(options: Transformer) -> BlockShape:
    return BlockShape(
        hidden=options.hidden,
        heads=options.heads,
        kv_heads=options.kv_heads or options.heads,
        head=options.head_size or options.hidden // options.heads,
        ffn=options.ffn,
        mlp=options.mlp,
        norm=options.norm,
        bias=options.bias,
        sequence=options.sequence,
        causal=options.causal,
        flash=options.attention == "flash",
        latent=options.latent,
    )


def _embedding(options: Transformer, shape: BlockShape) -> Layer:
    """Vectors of tokens, positions and segments; the backward adds to the rows it reads."""
    h = options.hidden
    places = options.sequence if options.positions == "learned" else 0
    lookup = Part(
        (Elementwise("embedding", 2 * ELEMENT * h, 3 * ELEMENT * h, "none"),),
        Parameters(tensor=options.vocab * h, replicated=(places + options.token_types) * h),
    )
    parts = [lookup, norm("norm", h, shape.norm_parameters)] if options.post_norm else [lookup]
    return layer_of("embedding", parts, ELEMENT * h, "first")


def _logits(options: Transformer, shape: BlockShape) -> Layer:
    """The last norm, one number per known token, and the loss on 4-byte elements."""
    h, vocab = options.hidden, options.vocab
    own = Parameters(tied=vocab * h) if options.tied else Parameters(tensor=vocab * h)
    logits = Part(
        (Gemm("logits", vocab, h, "columns"), Elementwise("loss", 10 * vocab, 10 * vocab, "tensor")),
        own,
        Kept(sequence=ELEMENT * h),
        transient=8 * vocab,  # logits and their gradient
    )
    parts = [logits] if options.post_norm else [norm("norm", h, shape.norm_parameters), logits]
    if options.pooler:
        parts.append(linear("pooler", h, h, "none", bias=shape.bias, rows=Fraction(1, options.sequence)))
    return layer_of("logits", parts, 0, "last")
