"""The sizes of a model as flags of Megatron-LM: one table of rules, written and read.

Flags: megatron/training/arguments.py and megatron/core/transformer/transformer_config.py (core 0.15). The vocabulary is
padded there to a multiple of 128 per tensor rank (_vocab_size_with_padding in megatron/training). A window (n, 0) has n
tokens before a token, and itself (TransformerEngine's DotProductAttention); with --window-attn-skip-freq N, every N-th
layer has none (is_layer_window_attention in megatron/core/transformer/utils.py).
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hybrid_des.interchange.frameworks.launch_line import Given, Rule, Values, flags_of, number, switch, word
from hybrid_des.interchange.frameworks.megatron_kinds import (
    EXPERTS,
    KINDS,
    PATTERNS,
    Sizes,
    is_hybrid,
    is_stated,
    leading,
    pattern_of,
    read_window,
    sizes_in,
)
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, block_values
from hybrid_des.workload.models.kinds.transformer import Transformer

PADDED = 128  # --make-vocab-size-divisible-by unless given
USUAL = 8  # tensor ranks at most, most often: plans with fewer have lines of one divisor
_SHARED, _LATENT_SIZE = "--moe-shared-expert-intermediate-size", "--moe-latent-size"


def _write_groups(values: Values) -> Iterable[str]:
    heads = values.get("model.kv_heads")
    return (
        (f"--group-query-attention --num-query-groups {heads}",) if heads not in (None, values["model.heads"]) else ()
    )


def _read_groups(given: Given) -> Values:
    """Heads of keys and values; Megatron-DeepSpeed states them by --num-key-value-heads alone."""
    if "--group-query-attention" in given:
        return {"model.kv_heads": given.number("--num-query-groups") or 1}  # Megatron-LM's default
    return {"model.kv_heads": given.number("--num-key-value-heads")}


def _read_ffn(given: Given) -> Values:
    width, hidden = given.number("--ffn-hidden-size"), given.number("--hidden-size")
    if width is None and hidden is not None:  # Megatron-LM's default
        width = hidden * 8 // 3 // 64 * 64 if "--swiglu" in given else 4 * hidden
    return {"model.ffn": width}


def _read_mlp(given: Given) -> Values:
    """Two matrices, or three: --quick-geglu has a gate too (gated_linear_unit)."""
    gated = [flag in given for flag in ("--swiglu", "--quick-geglu")]
    squared = "--squared-relu" in given
    return {"model.mlp": "swiglu" if any(gated) else "relu2" if squared else "gelu"}


def _write_mlp(values: Values) -> Iterable[str]:
    return {"swiglu": ("--swiglu",), "relu2": ("--squared-relu",)}.get(values.get("model.mlp", ""), ())


_POSITIONS = word(
    "--position-embedding-type", "model.positions",
    {"rope": "rotary", "learned_absolute": "learned", "yarn": "rotary", "mrope": "rotary", "none": "rotary",
     "alibi": "rotary", "relative": "rotary"}, "learned",
)  # fmt: skip
_BIASES = "biases of scores are not counted, neither their parameters nor their time"


def _read_positions(given: Given) -> Values:
    """--use-rotary-position-embeddings, of older versions, is --position-embedding-type rope."""
    stated = _POSITIONS.read(given)
    kind = given.text("--position-embedding-type")
    if kind in ("alibi", "relative"):
        given.unmodelled["--position-embedding-type"] = _BIASES
    return {"model.positions": "rotary"} if "--use-rotary-position-embeddings" in given else stated


def _write_vocab(values: Values) -> Iterator[str]:
    vocab, tensor = values.get("model.vocab"), values["parallel.tensor"]
    if vocab is None:
        return
    yield f"--vocab-size {vocab}"
    if vocab % (PADDED * max(tensor, USUAL)):
        yield "--make-vocab-size-divisible-by 1"


def _read_vocab(given: Given) -> Values:
    """The vocabulary, padded to a multiple for every tensor rank."""
    vocab, padded = given.number("--vocab-size"), given.number("--padded-vocab-size")
    each = given.number("--make-vocab-size-divisible-by") or PADDED
    multiple = each * (given.number("--tensor-model-parallel-size") or 1)
    return {"model.vocab": padded or (vocab and -(-vocab // multiple) * multiple)}


def _write_length(values: Values) -> Iterable[str]:
    length = values.get("model.sequence")
    return () if length is None else (f"--seq-length {length}", f"--max-position-embeddings {length}")


def _read_length(given: Given) -> Values:
    length = given.number("--seq-length")
    if length is None and "--seq-length" not in given.aside:
        length = given.number("--max-position-embeddings")
    given.words("--max-position-embeddings")
    return {"model.sequence": length}


_LATENT: Sizes = {
    "query": ("--q-lora-rank", None), "key_value": ("--kv-lora-rank", 512), "nope": ("--qk-head-dim", 128),
    "rope": ("--qk-pos-emb-head-dim", 64), "value": ("--v-head-dim", 128),
}  # fmt: skip


def _write_latent(values: Values) -> Iterator[str]:
    if values.get("model.latent"):
        yield "--multi-latent-attention"
        stated = {flag: values["model.latent"][key] for key, (flag, _) in _LATENT.items()}
        yield from (f"{flag} {size}" for flag, size in stated.items() if size)


def _read_latent(given: Given) -> Values:
    if "--multi-latent-attention" not in given:
        return {}
    latent = {key: size for key, size in sizes_in(given, _LATENT).items() if size is not None}
    without = dict.fromkeys(("model.head_size", "model.kv_heads", "model.qk_norm"))  # of no meaning there
    return {"model.latent": latent, **without}


def _write_experts(values: Values) -> Iterator[str]:
    experts = values.get("model.experts")
    if not experts:
        return
    yield from (f"--num-experts {experts['count']}", f"--moe-router-topk {experts['active']}")
    yield f"--moe-ffn-hidden-size {experts['ffn']}"
    if beside := experts["shared_ffn"] or experts["shared"] * experts["ffn"]:
        yield f"{_SHARED} {beside}" + (" --moe-shared-expert-gate" if experts["shared_gate"] else "")
    if experts["latent"]:
        yield f"{_LATENT_SIZE} {experts['latent']}"
    if experts["router_bias"]:
        yield "--moe-router-enable-expert-bias --moe-router-score-function sigmoid"
    if experts["groups"] > 1:
        top = experts["top_groups"] or experts["groups"]
        yield f"--moe-router-num-groups {experts['groups']} --moe-router-group-topk {top}"
    yield "--moe-grouped-gemm"


def _read_experts(given: Given) -> Values:
    count = given.number("--num-experts", least=0)
    latent = given.number(_LATENT_SIZE) if is_stated(given, _LATENT_SIZE) else None
    if not count and "--num-experts" not in given.aside:
        return {}
    width = given.number("--moe-ffn-hidden-size") or _read_ffn(given)["model.ffn"]
    shared = given.number(_SHARED, least=0) or 0
    several = shared // width if width and shared % width == 0 else 0
    hybrid = any(flag in given for flag in PATTERNS)
    experts = {
        "count": count,
        "active": given.number("--moe-router-topk") or 2,  # Megatron-LM's default
        "ffn": width or UNKNOWN,
        "shared": several,
        "shared_ffn": 0 if several else shared,
        "shared_gate": "--moe-shared-expert-gate" in given and shared > 0,
        "latent": latent,
        "dense_layers": leading(pattern_of(given, EXPERTS)) if not hybrid else 0,
        "router_bias": "--moe-router-enable-expert-bias" in given,
        "groups": given.number("--moe-router-num-groups"),
        "top_groups": given.number("--moe-router-group-topk"),
    }
    given.words("--moe-router-score-function")
    given.pass_over("--moe-grouped-gemm")
    return {"model.experts": {key: value for key, value in experts.items() if value}}


_NORMS = {"RMSNorm": "rms", "LayerNorm": "layer", "rmsnorm": "rms", "layernorm": "layer"}  # small: Megatron-DeepSpeed

MODEL = (
    number("--num-layers", "model.layers").when(lambda values: not is_hybrid(values)),  # counts its letters
    number("--hidden-size", "model.hidden"),
    number("--num-attention-heads", "model.heads"),
    Rule(_write_groups, _read_groups),
    number("--kv-channels", "model.head_size"),
    Rule(number("--ffn-hidden-size", "model.ffn").write, _read_ffn),
    Rule(_write_mlp, _read_mlp),
    word("--normalization", "model.norm", _NORMS, "layer"),
    Rule(_POSITIONS.write, _read_positions),
    switch("--untie-embeddings-and-output-weights", "model.tied", on=False, off=True),
    switch("--disable-bias-linear", "model.bias", on=False, off=True),
    switch("--qk-layernorm", "model.qk_norm", on=True, off=False),
    Rule(_write_vocab, _read_vocab),
    Rule(lambda values: (), read_window),
    Rule(_write_length, _read_length),
    word(
        "--attention-backend", "model.attention",
        {"unfused": "plain", "flash": "flash", "fused": "flash", "auto": "flash", "local": "plain"}, "flash",
    ),
    Rule(_write_latent, _read_latent),
    Rule(_write_experts, _read_experts),
    switch("--attention-output-gate", "model.gate", on="element", off=None),
    word("--softmax-type", "model.sinks", {"learnable": True, "vanilla": False, "off-by-one": False}, False),
    number("--mtp-num-layers", "model.predictions", 0, least=0),
    KINDS,
)  # fmt: skip


def model_flags(sizes: Mapping[str, Any]) -> dict[str, list[str]]:
    """A model's flags, each with its words; whether its experts' GEMMs are grouped is for the launch to say.

    Args:
        sizes: all options of a transformer, by name.
    """
    values: dict[str, Any] = {"parallel.tensor": 1, "parallel.pipeline": 1}
    values |= {f"model.{name}": value for name, value in sizes.items()}
    values |= block_values(Transformer.model_validate(sizes))
    flags = flags_of(shlex.split(" ".join(flag for rule in MODEL for flag in rule.write(values))))
    return {flag: words for flag, words in flags.items() if flag != "--moe-grouped-gemm"}
