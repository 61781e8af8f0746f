"""Transformers: decoders such as GPT and Llama, mixtures of experts, encoders such as BERT, and those on images.

    embedding ─► block 0 ─► … ─► block L−1 ─► norm, logits, loss
    block: norm ─► mixer ─► + ─► norm ─► MLP or experts ─► +            either half may be missing

With plain attention, a forward of one sequence takes 24·L·s·h²·(1 + s/(6h)) + 2·s·h·V FLOP for GPT (Narayanan et al.,
arXiv 2104.04473, appendix); causal flash attention takes half of the s² term. Kept per token: 10h + (24h + 5as)/t for
GPT, where 10h is divided by t too with sequence parallelism (Korthikanti et al., arXiv 2205.05198).

Mixers are in `hybrid_des.workload.models.mixers`, second halves in `feed_forward`, orders of blocks in `pattern`.

Symbols: hidden size h, heads a, MLP width f, width of its first product u = f (GELU) or 2f (SwiGLU), sequence s.
Bytes of memory-bound operations are reads and writes of 2-byte elements by Megatron-LM's fused kernels, chosen to meet
published iteration times: a norm 4h forward and 6h backward, a residual with dropout 7h and 9h, head layout 4h each.
Kept activations: Korthikanti et al., arXiv 2205.05198; models with
GELU are trained with dropout, those with SwiGLU without.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from hybrid_des.errors import UsageError, unknown
from hybrid_des.options import Count, Flag, Natural, Reads, Section, choice, given, whole
from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.catalogue import merged
from hybrid_des.workload.models.frozen import Adapters, Frozen, fine_tuned
from hybrid_des.workload.models.kinds.checks import check_blocks, sources_of
from hybrid_des.workload.models.kinds.feed_forward import second_half, up_width
from hybrid_des.workload.models.kinds.pattern import Pattern, changes_to, expanded, names_in, order_of, without_none
from hybrid_des.workload.models.kinds.pytorch_llama import checkpointed, checkpointed_experts, eager_norms, with_results
from hybrid_des.workload.models.kinds.registration import ModelRefusal, kind
from hybrid_des.workload.models.kinds.streams import contracted, mixed_streams
from hybrid_des.workload.models.layer import (
    JOINING,
    Layer,
    Model,
    Module,
    Part,
    layer_of,
    linear,
    norm,
    norm_weights,
    offload,
    weights,
)
from hybrid_des.workload.models.mixers import registration as mixers
from hybrid_des.workload.models.operations import Elementwise, Gemm
from hybrid_des.workload.models.sections import GATED

DEEPEST = 2**14  # a million layers would take minutes to plan
Depth = Annotated[int, whole(1, DEEPEST)]
Positions = Annotated[Literal["learned", "rotary"], choice("learned", "rotary")]


class Predictions(Section):
    """Modules of multi-token prediction."""

    count: Annotated[int, whole(1, DEEPEST)] = 1
    """Number of modules, each with parameters of its own."""
    kinds: Pattern | None = None
    """Kinds of blocks of a module, in order. Default: that of the last block."""
    passes: Annotated[int, whole(1, DEEPEST)] = 1
    """How often a module runs, each time for a further token, with logits of its own."""


def _read_predictions(value: Any) -> int | Predictions:
    if isinstance(value, Predictions):
        return value
    if not isinstance(value, Mapping):
        count: int = whole(0, DEEPEST).read(value)
        return count
    try:
        return Predictions.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {_said(first)}") from None


_COUNT = {"type": "integer", "minimum": 0, "maximum": DEEPEST}
_PREDICTIONS = {"anyOf": [_COUNT, {"type": "object", "properties": {key: {} for key in Predictions.model_fields}}]}


class KindOfBlocks(Section):
    """Stands for `BlockChanges`, whose fields are made when a model has kinds: they would slow down every start."""

    @classmethod
    def known_keys(cls) -> dict[str, list[FieldInfo]]:
        """The keys of blocks that may differ by kind."""
        return _changes().known_keys()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(_changes())


def _changes() -> type[Section]:
    return changes_to(Block, ("hidden", "sequence", "mixers", "streams", "layer_vectors", "written"))


class Transformer(Block):
    """Sizes of a transformer; the defaults are those of Llama."""

    layers: Depth
    """Number of blocks."""
    vocab: Count
    """Number of tokens known, perhaps padded."""
    tied: Flag = False
    """Whether logits use the matrix of the embedding."""
    window_every: Count = 2
    """With `window`: it holds for one of so many blocks, the first, and all others attend to the whole sequence."""
    post_norm: Flag = False
    """Whether norms come after the residual connections: one after the embedding, none before the logits."""
    positions: Positions = "rotary"
    """learned: a vector per place in the sequence; rotary: no parameters."""
    token_types: Natural = 0
    """Kinds of segments with a vector each, as in BERT."""
    pooler: Flag = False
    """Whether the first token of a sample passes one more product, as in BERT."""
    predictions: Annotated[int | Predictions, Reads(_read_predictions, _PREDICTIONS)] = 0
    """Modules that each predict a further token (multi-token prediction); DeepSeek-V3 was trained with 1.

    Or {count: 1, kinds: [A, E], passes: 2}: blocks of these kinds, by default as the last of the model, run twice."""
    kinds: dict[str, Annotated[KindOfBlocks, given(KindOfBlocks)]] | None = None
    """Kinds of blocks by name: changes of the keys above, where none removes one."""
    pattern: Pattern | None = None
    """The order of kinds, such as (linear*3 full)*12; it repeats up to `layers`."""
    frozen: Frozen | None = None
    """Weights without gradients: all, or those of the embedding and of so many first blocks. Default: none."""
    adapters: Annotated[Adapters | None, given(Adapters)] = None
    """With `frozen`: low-rank adapters that are trained (LoRA), such as {rank: 16, on: [queries, values]}."""


@kind(
    "transformer",
    summary="decoders and encoders on tokens, dense or with experts",
    options=Transformer,
    framework="megatron",
)
@lru_cache(maxsize=16)  # many scenarios of one model, as in sweeps and searches
def transformer(options: Transformer) -> Model:
    """Embedding, blocks, and logits with loss."""
    of_blocks, multiplies = block_options(options), options.written in ("pytorch", "transformers", "compiled")
    if options.written not in ("megatron", "transformers") and not all(one.pytorch for one in of_blocks):
        copies = {id(one): one.model_copy(update={"written": "megatron"}) for one in (options, *of_blocks)}
        options, *of_blocks = [copies[id(one)] for one in (options, *of_blocks)]
    ends = (*_predictions(options, of_blocks[-1]), _logits(options))
    if options.adapters is not None and options.frozen is None:
        raise ModelRefusal("adapters", "are beside frozen GEMMs; expected `frozen: all`, or a number of blocks")
    if isinstance(options.frozen, int) and options.frozen > options.layers:
        raise ModelRefusal("frozen", f"{options.frozen} of only {options.layers} layers")
    layers = _embedding(options), *blocks(of_blocks), *ends
    model = Model(options.sequence, tuple(map(with_results, layers)) if multiplies else layers, "sequence")
    return fine_tuned(model, options.frozen, options.adapters)


def block_options(options: Transformer) -> list[Transformer]:
    """The options of every block, in order; those of equal blocks are one object.

    Raises:
        ModelRefusal: they do not fit each other.
    """
    kinds = options.kinds or {}
    module = options.predictions
    predictions = expanded(module.kinds) if isinstance(module, Predictions) and module.kinds else ()
    order = order_of(options.pattern, kinds, options.layers, predictions)
    of_kind = {name: _of_kind(options, name, kinds[name]) for name in kinds} or {"": options}
    states: dict[str, Collection[str]] = {name: kinds[name].model_fields_set for name in kinds}
    check_blocks(options, of_kind, states)
    dense = options.experts.dense_layers if options.experts is not None else 0
    if dense > options.layers:
        raise ModelRefusal("experts.dense_layers", f"{dense} of only {options.layers} layers")
    known: dict[tuple[str, ...], Transformer] = {}
    each = []
    for number, name in enumerate(order):
        by_place = {"window": number % options.window_every > 0, "experts": number < dense}
        drops = [key for key, drop in by_place.items() if drop and key not in states.get(name, ())]
        asked = (name, *drops)
        if asked not in known:
            known[asked] = of_kind[name].model_copy(update=dict.fromkeys(drops)) if drops else of_kind[name]
        each.append(known[asked])
    return each


def _of_kind(options: Transformer, name: str, stated: Section) -> Transformer:
    """The options of a kind of blocks: those of the model, changed."""
    own = options.model_dump(exclude_unset=True, exclude={"kinds", "pattern", "predictions"}, warnings=False)
    changes = without_none(stated.model_dump(exclude_unset=True, warnings=False))
    try:
        return Transformer.model_validate(merged(own, changes))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ModelRefusal(f"kinds.{name}.{'.'.join(map(str, first['loc']))}", _said(first)) from None


def _said(error: Any) -> str:
    return "is required" if error["type"] == "missing" else str(error.get("ctx", {}).get("error", error["msg"]))


def _embedding(options: Transformer) -> Layer:
    """Vectors of tokens, positions and segments; the backward adds to the rows it reads."""
    h, p = options.hidden, (options.layer_vectors or 0) * options.layers
    places = options.sequence if options.positions == "learned" else 0
    vectors = [Parameters(replicated=count * h) for count in (places, options.token_types) if count]
    lookup = Part((Elementwise("embedding", 2 * ELEMENT * h, 3 * ELEMENT * h, "none"),))
    lookup += weights(Parameters(tensor=options.vocab * h), *vectors)
    parts = [lookup, norm("norm", h, options.norm_parameters)] if options.post_norm else [lookup]
    if p:
        vectors_of = Part((Elementwise("vectors of layers", 2 * ELEMENT * p, 3 * ELEMENT * p, "none"),))
        parts.append(vectors_of + weights(Parameters(tensor=options.vocab * p)))
        parts.append(linear("vectors projected", h, p, "sequence"))
        parts.append(weights(Parameters(replicated=options.layer_vectors or 0)))
    return layer_of("embedding", parts, ELEMENT * h, "first", batch_first=options.pytorch, streams=options.streams or 1)


def _logits(options: Transformer) -> Layer:
    """The last norm, one number per known token, and the loss on 4-byte elements."""
    h, vocab = options.hidden, options.vocab
    own = Parameters(tied=vocab * h) if options.tied else Parameters(tensor=vocab * h)
    logits = _loss(vocab, h) + Part(parameters=own)
    parts = [logits] if options.post_norm else [norm("norm", h, options.norm_parameters), logits]
    if options.streams:
        parts.insert(0, contracted(h, options.streams))
    if options.pooler:
        parts.append(linear("pooler", h, h, "none", bias=options.bias, rows=Fraction(1, options.sequence)))
    return layer_of("logits", parts, 0, "last", batch_first=options.pytorch)


def _loss(vocab: int, h: int) -> Part:
    """Logits and loss, without the matrix."""
    loss = Elementwise("loss", 10 * vocab, 10 * vocab, "tensor", eager=(18 * vocab, 26 * vocab),
                       compiled=(4 * vocab, 6 * vocab))  # fmt: skip
    products = (Gemm("logits", vocab, h, "columns"), loss)
    return Part(products, kept=Kept(sequence=ELEMENT * h), transient=8 * vocab)  # logits and their gradient


def _block(options: Block) -> Layer:
    """One block: norms, mixers side by side, and its second half."""
    h, experts = options.hidden, options.experts
    own = norm_weights(h, options.norm_parameters)
    count = options.norms or residuals_of(options)
    mixed = sum((_mixed(name, options) for name in options.mixing), Part())
    second = second_half(options)
    products = [one for one in (*mixed.operations, *second.operations) if isinstance(one, Gemm)]
    readers = [one.name for one in products if one.k == h and one.split != "rows" and not one.expert]
    parts = [own, _norms(options, count, readers), mixed, *[own] * (count - 1), second]
    if p := options.layer_vectors:
        inputs = Part(kept=Kept(sequence=ELEMENT * (h + p)))
        parts += [linear("vector gate", h, p, "sequence"), linear("vector up", p, h, "sequence") + inputs, own]
    if options.parallel and count == 1:
        parts.append(Part(kept=Kept(sequence=-ELEMENT * h)))  # both halves keep the same input
    if ops := _checkpointed(options):
        parts.append(ops)
    if options.streams:
        parts = mixed_streams(h, options.streams, residuals_of(options), parts)
    saved = Kept(sequence=ELEMENT * h * options.norm_saves)
    how: dict[str, Any] = {
        "halves": residuals_of(options),
        "streams": options.streams or 1,
        "behind": Module("behind", (), second.kept + Kept(sequence=ELEMENT * h), eager=saved),
        "gradient": ELEMENT * h if options.autograd else 0,
    }
    if experts is not None:
        sent = ELEMENT * experts.active * (experts.latent or h)
        how |= {"dispatched": sent, "balance": experts.balance, "routing": experts.routing}
    return layer_of("", parts, ELEMENT * h, batch_first=options.pytorch, quantised=options.quantised, **how)


def _mixed(name: str, options: Block) -> Part:
    """The part of a block that a mixer is."""
    entry, given = mixers.find(name), (options.mixers or {}).get(name, {})
    for key in given:
        if key not in entry.keys:
            raise ModelRefusal(f"mixers.{name}.{key}", unknown(key, entry.keys))
    try:
        arguments = entry.arguments(given)
    except UsageError as error:
        raise ModelRefusal(f"mixers.{name}", str(error).removeprefix(f"{name}: ")) from None
    return entry.build(options, *arguments)


def residuals_of(options: Block) -> int:
    """Residual branches of a block, one per half, or one of both."""
    return 1 if options.parallel else bool(options.mixing) + options.second


def _norms(options: Block, count: int, readers: Sequence[str]) -> Part:
    """Norms, residuals and dropout of a block, without weights; kept are inputs of norms, and masks of dropout.

    `readers` are the products that take what the norms return.
    """
    h, adds = options.hidden, 0 if options.streams else residuals_of(options)  # a kernel of streams adds
    moved = (4 * count + 7 * adds) * h, (6 * count + 9 * adds) * h
    eager = eager_norms(h, count, adds, layer=options.norm == "layer")
    passes = Elementwise("norms and residuals", *moved, "sequence", kernels=count + adds, eager=eager)
    inputs = Kept(sequence=count * ELEMENT * h)
    saved = inputs * options.norm_saves
    masks = Kept(sequence=residuals_of(options) * h if options.mlp == "gelu" else 0)
    again = Module(
        "layernorm", (), inputs, bytes=2 * count * ELEMENT * h, eager=Kept() - saved, unconverted=tuple(readers)
    )
    halves = residuals_of(options)
    names = ["attn_norm", "mlp_norm"] if options.mixing else ["mlp_norm"]
    each = [offload(name, sequence=count * h // halves) for name in names[:halves]]
    return sum(each, Part((passes,), kept=inputs + masks, modules=(again,), eager=saved))


def _checkpointed(options: Block) -> Part | None:
    """What checkpointing by operators repeats, known of attention without variants, with an MLP or experts."""
    h, experts = options.hidden, options.experts
    queries, keys = (heads * options.head for heads in (options.heads, options.kv_heads or options.heads))
    if options.autograd:
        return None
    if options.pytorch:
        return checkpointed(h, queries, keys, options.ffn or 0, gated=options.mlp in GATED)
    variant = options.norms or options.parallel or options.beside or not options.plain_core
    if experts is None or options.mixing != ("attention",) or variant:
        return None
    inner = experts.active * (up_width(options, experts.ffn) + experts.ffn)
    return checkpointed_experts(h, queries, keys, experts.active, inner, normed=bool(options.qk_norm))


def _prediction(options: Transformer, inner: Sequence[Block]) -> list[Layer]:
    """A module that predicts a further token (DeepSeek-AI, arXiv 2412.19437, section 2.2).

    Two norms and a product join the output with the embedding of the next token; blocks, a norm and logits follow.
    Embedding and matrix of the logits are those of the model; a rank that has no embedding holds it for this.
    """
    h, vocab = options.hidden, options.vocab
    joined = [norm(f"{name} norm", h, options.norm_parameters) for name in ("output", "embedding")]
    joined.append(linear(JOINING, 2 * h, h, "columns") + Part(kept=Kept(sequence=2 * ELEMENT * h)))
    joined.append(Part(parameters=Parameters(tied=vocab * h)))
    ends = [norm("norm", h, options.norm_parameters), _loss(vocab, h)]
    layers = []
    for number, block in enumerate(inner):
        inside = _block(block.model_copy(update={"window": None}))
        parts = [*(joined if number == 0 else []), inside, *(ends if number == len(inner) - 1 else [])]
        whole = replace(inside, **vars(sum(parts, Part())), name="prediction", place="last", predicts=True)
        layers.append(replace(whole, batch_first=False))
    return layers


def _predictions(options: Transformer, last: Block) -> list[Layer]:
    """All modules that predict further tokens; a further pass uses the parameters of the first."""
    asked = options.predictions
    if isinstance(asked, int):
        return _prediction(options, [last]) * asked
    kinds = options.kinds or {}
    named = [_of_kind(options, name, kinds[name]) for name in names_in(asked.kinds, kinds)] if asked.kinds else [last]
    own = _prediction(options, named)
    again = [replace(layer, parameters=Parameters(), sizes=()) for layer in own]
    return (own + again * (asked.passes - 1)) * asked.count


def blocks(of_blocks: Sequence[Block]) -> list[Layer]:
    """All blocks; equal ones share their parts."""
    known: dict[int, Layer] = {}
    each = []
    for number, (options, source) in enumerate(zip(of_blocks, sources_of(of_blocks), strict=True)):
        if id(options) not in known:
            known[id(options)] = _block(options)
        each.append(replace(known[id(options)], name=f"block {number}", shares=source))
    return each
