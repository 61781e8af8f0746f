"""Transformers: decoders such as GPT and Llama, mixtures of experts, encoders such as BERT, and those on images.

    embedding ─► block 0 ─► … ─► block L−1 ─► norm, logits, loss
    block: norm ─► attention ─► + ─► norm ─► MLP or experts ─► +

With plain attention, a forward of one sequence takes 24·L·s·h²·(1 + s/(6h)) + 2·s·h·V FLOP for GPT (Narayanan et al.,
arXiv 2104.04473, appendix); causal flash attention takes half of the s² term. Kept per token: 10h + (24h + 5as)/t for
GPT, where 10h is divided by t too with sequence parallelism (Korthikanti et al., arXiv 2205.05198).

Symbols: hidden size h, heads a, MLP width f, width of its first product u = f (GELU) or 2f (SwiGLU), sequence s.
Bytes of memory-bound operations are reads and writes of 2-byte elements by Megatron-LM's fused kernels, chosen to meet
published iteration times: norms, residuals and dropout 22h forward and 30h backward per block, head layout 4h each,
activation 4f and 8f (GELU) or 6f and 12f (SwiGLU). Kept activations: Korthikanti et al., arXiv 2205.05198; models with
GELU are trained with dropout, those with SwiGLU without.

Vision transformers (Dosovitskiy et al., arXiv 2010.11929): patches of an image are the tokens of an encoder.

    patches ─► block 0 ─► … ─► block L−1 ─► norm, classes of the first token

s = 1 + (image/patch)² tokens: one is learned, and the classes are computed from it. Blocks are those of the
transformer, not causal, with GELU, layer norms and biases. Counts of parameters and FLOP are those of torchvision.
"""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal

from hybrid_des.options import MOST, Count, Factor, Flag, Options, Section, TokenCount, choice, whole
from hybrid_des.workload.models.kinds.pytorch_llama import (
    checkpointed,
    checkpointed_experts,
    eager_norms,
    separate_heads,
)
from hybrid_des.workload.models.kinds.registration import ModelRefusal, kind
from hybrid_des.workload.models.layer import (
    ELEMENT,
    Attention,
    Elementwise,
    Gemm,
    Kept,
    Layer,
    Model,
    Module,
    Parameters,
    Part,
    layer_of,
    linear,
    weights,
)
from hybrid_des.workload.models.routing import Routing

OrNone = Annotated[int, whole(0, MOST)]
DEEPEST = 2**14  # a million layers would take minutes to plan
Depth = Annotated[int, whole(1, DEEPEST)]
Mlp = Annotated[Literal["gelu", "swiglu"], choice("gelu", "swiglu")]
Norm = Annotated[Literal["layer", "rms"], choice("layer", "rms")]
Positions = Annotated[Literal["learned", "rotary"], choice("learned", "rotary")]
Written = Annotated[
    Literal["megatron", "pytorch", "compiled", "deepspeed", "jax"],
    choice("megatron", "pytorch", "compiled", "deepspeed", "jax"),
]
AttentionKind = Annotated[Literal["plain", "flash"], choice("plain", "flash")]


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
    groups: Count = 1
    """Groups of neighbouring experts, of which a token uses only some, as in DeepSeek-V3."""
    top_groups: Count | None = None
    """Groups whose experts a token may use. Default: all."""

    @property
    def routing(self) -> Routing:
        """How a token's experts are chosen."""
        return Routing(self.count, self.active, self.groups, self.top_groups or self.groups)


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
    sequence: TokenCount
    """Tokens per sample."""
    tied: Flag = False
    """Whether logits use the matrix of the embedding."""
    attention: AttentionKind = "flash"
    """plain: score matrices are written to memory; flash: they are not."""
    window: TokenCount | None = None
    """Tokens that a token of every `window_every`-th block attends to at most. Default: all."""
    window_every: Count = 2
    """With `window`: it holds for one of so many blocks, the first, and all others attend to the whole sequence."""
    causal: Flag = True
    """Whether a token attends only to those before it."""
    norm: Norm = "rms"
    """layer: weight and bias; rms: weight only."""
    post_norm: Flag = False
    """Whether norms come after the residual connections: one after the embedding, none before the logits."""
    bias: Flag = False
    """Whether linear layers have biases."""
    positions: Positions = "rotary"
    """learned: a vector per place in the sequence; rotary: no parameters."""
    written: Written = "megatron"
    """megatron, deepspeed, jax: products joined, sequences before batches; pytorch, compiled: as torchtitan's Llama.

    There queries, keys, values and both halves of a gated MLP are products of their own; keys and values are copied for
    every query head, and context ranks exchange the copies; tensors begin with the batch, so that what tensor ranks
    gather or scatter along sequences is copied; and products of few bits convert their operands again in backwards.
    It also sets what is fused, the kernels of attention and experts, and launches (hybrid_des/scenario/stacks.py)."""
    qk_norm: Flag = False
    """Whether queries and keys are normalized, each head by itself, as in Qwen3."""
    token_types: OrNone = 0
    """Kinds of segments with a vector each, as in BERT."""
    pooler: Flag = False
    """Whether the first token of a sample passes one more product, as in BERT."""
    latent: Latent | None = None
    """Multi-head latent attention, such as {query: 1536, key_value: 512, nope: 128, rope: 64, value: 128}."""
    predictions: Annotated[int, whole(0, DEEPEST)] = 0
    """Modules that each predict a further token (multi-token prediction); DeepSeek-V3 was trained with 1."""
    experts: Experts | None = None
    """Mixture of experts, such as {count: 8, active: 2, ffn: 14336}."""

    @property
    def pytorch(self) -> bool:
        """Whether it is written as torchtitan's Llama; its experts and latent attention are those of Megatron-LM."""
        return self.written in ("pytorch", "compiled") and self.latent is None and self.experts is None

    @property
    def head(self) -> int:
        """Size of a head, unused for latent attention."""
        return self.head_size or self.hidden // self.heads

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of the hidden vector."""
        return self.hidden * (2 if self.norm == "layer" else 1)


@kind(
    "transformer",
    summary="decoders and encoders on tokens, dense or with experts",
    options=Transformer,
    framework="megatron",
)
@lru_cache(maxsize=16)  # many scenarios of one model, as in sweeps and searches
def transformer(options: Transformer) -> Model:
    """Embedding, blocks, and logits with loss."""
    _check(options)
    ends = (*[_prediction(options)] * options.predictions, _logits(options))
    return Model(options.sequence, (_embedding(options), *blocks(options), *ends), "sequence")


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
        _check_groups(experts)


def _check_groups(experts: Experts) -> None:
    top = experts.routing.top_groups
    if experts.count % experts.groups:
        raise ModelRefusal("experts.groups", f"{experts.count} experts cannot be divided into {experts.groups} groups")
    if top > experts.groups:
        raise ModelRefusal("experts.top_groups", f"{top} of only {experts.groups} groups per token")
    if experts.active > top * (experts.count // experts.groups):
        held = f"{top} groups of {experts.count // experts.groups} experts"
        raise ModelRefusal("experts.top_groups", f"{experts.active} experts per token, but {held}")


def _embedding(options: Transformer) -> Layer:
    """Vectors of tokens, positions and segments; the backward adds to the rows it reads."""
    h = options.hidden
    places = options.sequence if options.positions == "learned" else 0
    vectors = [Parameters(replicated=count * h) for count in (places, options.token_types) if count]
    lookup = Part((Elementwise("embedding", 2 * ELEMENT * h, 3 * ELEMENT * h, "none"),))
    lookup += weights(Parameters(tensor=options.vocab * h), *vectors)
    parts = [lookup, norm("norm", h, options.norm_parameters)] if options.post_norm else [lookup]
    return layer_of("embedding", parts, ELEMENT * h, "first", batch_first=options.pytorch)


def _logits(options: Transformer) -> Layer:
    """The last norm, one number per known token, and the loss on 4-byte elements."""
    h, vocab = options.hidden, options.vocab
    own = Parameters(tied=vocab * h) if options.tied else Parameters(tensor=vocab * h)
    logits = _loss(vocab, h) + Part(parameters=own)
    parts = [logits] if options.post_norm else [norm("norm", h, options.norm_parameters), logits]
    if options.pooler:
        parts.append(linear("pooler", h, h, "none", bias=options.bias, rows=Fraction(1, options.sequence)))
    return layer_of("logits", parts, 0, "last", batch_first=options.pytorch)


def _loss(vocab: int, h: int) -> Part:
    """Logits and loss, without the matrix."""
    loss = Elementwise("loss", 10 * vocab, 10 * vocab, "tensor", eager=(18 * vocab, 26 * vocab),
                       compiled=(4 * vocab, 6 * vocab))  # fmt: skip
    products = (Gemm("logits", vocab, h, "columns"), loss)
    return Part(products, kept=Kept(sequence=ELEMENT * h), transient=8 * vocab)  # logits and their gradient


def _block(options: Transformer, experts: Experts | None) -> Layer:
    """One block, with experts or an MLP."""
    h = options.hidden
    second = _norm_weights(h, options.norm_parameters)
    eager = eager_norms(h, layer=options.norm == "layer")
    norms = second + Part(
        (Elementwise("norms and residuals", 22 * h, 30 * h, "sequence", kernels=4, eager=eager),),
        kept=Kept(sequence=2 * ELEMENT * h + (2 * h if options.mlp == "gelu" else 0)),  # two inputs, masks of dropout
        modules=(Module("layernorm", (), Kept(sequence=2 * ELEMENT * h), bytes=2 * 2 * ELEMENT * h),),
    )
    attention = _latent_attention(options, options.latent) if options.latent else _attention(options)
    if experts is None:
        parts = [norms, attention, second, _mlp(options, options.ffn)]
        if not options.pytorch:
            return layer_of("", parts, ELEMENT * h)
        queries, keys = (heads * options.head for heads in (options.heads, options.kv_heads or options.heads))
        ops = checkpointed(h, queries, keys, options.ffn, gated=options.mlp == "swiglu")
        return layer_of("", [*parts, ops], ELEMENT * h, batch_first=True)
    parts = [norms, attention, second, _routed(options, experts)]
    if experts.shared:
        parts.append(_mlp(options, experts.shared * experts.ffn, "shared "))
    else:
        parts.append(Part(kept=Kept(sequence=ELEMENT * h)))  # the router's input
    sent = ELEMENT * experts.active * h
    if options.latent is None:
        queries, keys = (heads * options.head for heads in (options.heads, options.kv_heads or options.heads))
        inner = experts.active * (_up(options, experts.ffn) + experts.ffn)
        parts.append(checkpointed_experts(h, queries, keys, experts.active, inner, normed=options.qk_norm))
    return layer_of("", parts, ELEMENT * h, dispatched=sent, balance=experts.balance, routing=experts.routing)


def _prediction(options: Transformer) -> Layer:
    """A module that predicts a further token (DeepSeek-AI, arXiv 2412.19437, section 2.2).

    Two norms and a product join the output with the embedding of the next token; a block, a norm and logits follow.
    Embedding and matrix of the logits are those of the model; a rank that has no embedding holds it for this.
    """
    h, vocab = options.hidden, options.vocab
    block = _block(options.model_copy(update={"window": None}), options.experts)
    joined = [norm(f"{name} norm", h, options.norm_parameters) for name in ("output", "embedding")]
    joined.append(linear("joining", 2 * h, h, "columns") + Part(kept=Kept(sequence=2 * ELEMENT * h)))
    joined.append(Part(parameters=Parameters(tied=vocab * h)))
    own = Part(block.operations, block.parameters, block.kept, block.transient, block.tensors, block.modules)
    sent = {"dispatched": block.dispatched, "balance": block.balance, "routing": block.routing}
    parts = [*joined, own, norm("norm", h, options.norm_parameters), _loss(vocab, h)]
    return layer_of("prediction", parts, ELEMENT * h, "last", predicts=True, **sent)


def blocks(options: Transformer) -> list[Layer]:
    """All blocks, leading ones with an MLP in place of experts; equal ones share their parts."""
    whole = _kinds_of_blocks(options.model_copy(update={"window": None}))
    windowed = _kinds_of_blocks(options) if options.window else whole
    unnamed = [(whole if i % options.window_every else windowed)[i] for i in range(options.layers)]
    return [replace(one, name=f"block {i}") for i, one in enumerate(unnamed)]


def _kinds_of_blocks(options: Transformer) -> list[Layer]:
    """Every block as if they all had the same window."""
    experts, count = options.experts, options.layers
    dense = min(experts.dense_layers, count) if experts else count
    return [_block(options, None)] * dense + [_block(options, experts)] * (count - dense)


def norm(name: str, size: int, parameters: int) -> Part:
    """A norm on its own: reads and writes its input; the backward reads it again, with the gradient."""
    passes = Elementwise(name, 2 * ELEMENT * size, 3 * ELEMENT * size, "sequence")
    return Part((passes,), kept=Kept(sequence=ELEMENT * size)) + _norm_weights(size, parameters)


def _norm_weights(size: int, parameters: int) -> Part:
    """A weight and, if there are as many parameters again, a bias."""
    return weights(*[Parameters(replicated=size)] * (parameters // size))


def _attention(options: Transformer) -> Part:
    """Multi-head or grouped-query attention."""
    h, size, kv_heads = options.hidden, options.head, options.kv_heads or options.heads
    width = (options.heads + 2 * kv_heads) * size
    joined = linear("queries, keys, values", h, width, "columns", bias=options.bias)
    return (
        (separate_heads(h, options.heads * size, kv_heads * size, bias=options.bias) if options.pytorch else joined)
        + Part(kept=Kept(sequence=ELEMENT * h, tensor=ELEMENT * width))
        + (_head_norms((options.heads + kv_heads) * size, size) if options.qk_norm else Part())
        + _core(options, kv_heads, size, size)
        + linear("attention output", options.heads * size, h, "rows", bias=options.bias)
    )


def _head_norms(width: int, size: int) -> Part:
    """Norms of queries and keys, `width` elements in all, whose weights are shared by the heads."""
    passes = Elementwise("query and key norms", 2 * ELEMENT * width, 3 * ELEMENT * width, "tensor")
    return Part((passes,), kept=Kept(tensor=ELEMENT * width)) + weights(*[Parameters(replicated=size)] * 2)


def _latent_attention(options: Transformer, latent: Latent) -> Part:
    """Multi-head latent attention (DeepSeek-AI, arXiv 2405.04434, section 2.1): down-projections are not divided."""
    h, a, q, kv = options.hidden, options.heads, latent.query, latent.key_value
    key = latent.nope + latent.rope
    part = Part(kept=Kept(sequence=ELEMENT * h))
    if q:
        part += linear("queries down", h, q, "sequence") + norm("query norm", q, q)
        part += Part(kept=Kept(sequence=ELEMENT * q))
    part += linear("queries up" if q else "queries", q or h, a * key, "columns")
    part += linear("keys and values down", h, kv + latent.rope, "sequence") + norm("key and value norm", kv, kv)
    part += linear("keys and values up", kv, a * (latent.nope + latent.value), "columns")
    inputs = Kept(tensor=ELEMENT * a * (2 * key + latent.value))
    part += Part(kept=Kept(sequence=ELEMENT * (kv + latent.rope)) + inputs)
    if q:
        projected = ("query norm", "queries up", "key and value norm", "keys and values up")
        part += Part(modules=(Module("mla_up_proj", projected, inputs),))
    return part + _core(options, a, key, latent.value) + linear("attention output", a * latent.value, h, "rows")


def _core(options: Transformer, kv_heads: int, key: int, value: int) -> Part:
    """Attention without its projections, with the copy between both layouts of heads."""
    a, s, flash = options.heads, options.sequence, options.attention == "flash"
    sent = a if options.pytorch else kv_heads
    core = Attention("attention", a, sent, key, value, s, options.causal, flash, options.window)
    scores = 0 if flash else 5 * a * s  # softmax, dropout mask, dropout
    layout = Elementwise("head layout", 4 * a * value, 4 * a * value, "tensor")
    again = Module("core_attn", ("attention",), Kept(scores=scores))
    return Part((core, layout), kept=Kept(tensor=ELEMENT * a * value, scores=scores), modules=(again,))


def _mlp(options: Transformer, ffn: int, prefix: str = "") -> Part:
    """Two products around an activation; their input is counted."""
    h, up = options.hidden, _up(options, ffn)
    inner = Kept(tensor=ELEMENT * (up + ffn))
    operations = tuple(f"{prefix}{name}" for name in ("MLP up", "activation", "MLP down"))
    halves = options.pytorch and options.mlp == "swiglu"
    gate = linear("MLP gate", h, ffn, "columns", bias=options.bias) if halves else Part()
    return (
        gate
        + linear(f"{prefix}MLP up", h, ffn if halves else up, "columns", bias=options.bias, shares=halves)
        + Part((_activation(options, f"{prefix}activation", ffn),))
        + linear(f"{prefix}MLP down", ffn, h, "rows", bias=options.bias)
        + Part(kept=Kept(sequence=ELEMENT * h) + inner, transient=ELEMENT * (up + ffn))
        + Part(modules=(Module("shared_experts" if prefix else "mlp", operations, inner),))
    )


def _routed(options: Transformer, experts: Experts) -> Part:
    """Router, copies of tokens in the order of their experts and back, and the routed experts."""
    h, ffn, up = options.hidden, experts.ffn, _up(options, experts.ffn)
    count, active = experts.count, experts.active
    share = Fraction(active, count)
    inner = ELEMENT * active * (up + ffn)
    copies = 2 * 2 * ELEMENT * active * h  # read and written, there and back
    products = (
        Elementwise("routing", copies, copies, "sequence", expert=True, kernels=6),
        Gemm("experts up", up, h, "columns", share, count, expert=True),
        _activation(options, "experts' activation", active * ffn, expert=True),
        Gemm("experts down", h, ffn, "rows", share, count, expert=True),
    )
    tensors = (up * h, up, h * ffn, h) if options.bias else (up * h, h * ffn)  # of all experts, as grouped products
    own = weights(*(Parameters(expert=count * size, idle=(count - active) * size) for size in tensors))
    kept = Kept(received=ELEMENT * active * h, expert=inner)
    router = linear("router", h, count, "sequence", bias=experts.router_bias)
    again = Module("moe_act", ("experts' activation",), Kept(expert=ELEMENT * active * ffn))
    biases = Part((_biases_of_experts(active * h),) if options.bias else ())
    return router + Part(products, kept=kept, transient=inner, modules=(again,)) + biases + own


def _biases_of_experts(size: int) -> Elementwise:
    """Biases of the experts' results, `size` elements per token, added in 32 bits, expert by expert.

    A bias times the router's weight is written (4 bytes), added to the result (10), joined with those of other experts
    (8), and converted (6). The backward converts back and forth (12), joins (4), and forms gradients of biases and
    of the router's weights, a product and a sum each (24): NVIDIA/Megatron-LM, TEGroupedMLP._apply_bias in
    megatron/core/transformer/moe/experts.py. Those of the first product are added by the product.
    """
    return Elementwise("experts' biases", 28 * size, 40 * size, "sequence", expert=True, kernels=2, of_each=True)


def _activation(options: Transformer, name: str, ffn: int, *, expert: bool = False) -> Elementwise:
    gated = options.mlp == "swiglu"
    forward = 6 if gated else 4
    eager = (10 * ffn, 18 * ffn) if gated else None  # the activation and the product with the gate
    return Elementwise(name, forward * ffn, 2 * forward * ffn, "tensor", expert, eager=eager)


def _up(options: Transformer, ffn: int) -> int:
    """Width of the first product: SwiGLU has a gate in addition to the values."""
    return 2 * ffn if options.mlp == "swiglu" else ffn


COLOURS = 3


class Vision(Options):
    """Sizes of a vision transformer."""

    layers: Depth
    """Number of blocks."""
    hidden: Count
    """Length of the vector of a token."""
    heads: Count
    """Attention heads."""
    ffn: Count
    """Width of the MLP."""
    patch: Count
    """Side of a patch, in pixels."""
    image: Count = 224
    """Side of an image, in pixels."""
    classes: Count = 1000
    """Number of classes."""
    attention: AttentionKind = "flash"
    """plain: score matrices are written to memory; flash: they are not."""


@kind("vision", summary="vision transformers", options=Vision, framework="pytorch")
def vision(options: Vision) -> Model:
    """Patches, blocks, and classes."""
    check_heads(options.hidden, options.heads)
    if options.image % options.patch:
        raise ModelRefusal(
            "patch", f"an image of {options.image} pixels is not divisible into patches of {options.patch}"
        )
    h, patches = options.hidden, (options.image // options.patch) ** 2
    tokens, pixels = patches + 1, COLOURS * options.patch**2
    encoder = Transformer.model_construct(
        layers=options.layers, hidden=h, heads=options.heads, ffn=options.ffn, vocab=0, mlp="gelu", norm="layer",
        bias=True, sequence=tokens, causal=False, attention=options.attention,
    )  # fmt: skip
    first = linear("patches", pixels, h, "none", bias=True, rows=Fraction(patches, tokens))
    learned = weights(Parameters(replicated=h), Parameters(replicated=tokens * h))
    learned += Part(kept=Kept(sequence=ELEMENT * pixels))
    last = linear("classes", h, options.classes, "none", bias=True, rows=Fraction(1, tokens))
    return Model(
        tokens,
        (
            layer_of("patches", (first, learned), ELEMENT * h, "first"),
            *blocks(encoder),
            layer_of("classes", (norm("norm", h, encoder.norm_parameters), last), 0, "last"),
        ),
        "image",
    )
