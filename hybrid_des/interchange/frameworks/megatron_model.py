"""The sizes of a model as flags of Megatron-LM: one table of rules, written and read.

Flags: megatron/training/arguments.py and megatron/core/transformer/transformer_config.py (core 0.15). The vocabulary is
padded there to a multiple of 128 per tensor rank (--make-vocab-size-divisible-by).
"""

import ast
from collections.abc import Iterable, Iterator

from hybrid_des.interchange.frameworks.launch_line import Given, Rule, Values, number, switch, word


def _write_groups(values: Values) -> Iterable[str]:
    heads = values.get("model.kv_heads")
    return (
        (f"--group-query-attention --num-query-groups {heads}",) if heads not in (None, values["model.heads"]) else ()
    )


def _read_groups(given: Given) -> Values:
    """Heads of keys and values; Megatron-DeepSpeed states them by --num-key-value-heads alone."""
    if "--group-query-attention" in given:
        return {"model.kv_heads": given.number("--num-query-groups") or 1}
    return {"model.kv_heads": given.number("--num-key-value-heads")}


def _read_ffn(given: Given) -> Values:
    width, hidden = given.number("--ffn-hidden-size"), given.number("--hidden-size")
    if width is None and hidden is not None:  # Megatron-LM's default
        width = hidden * 8 // 3 // 64 * 64 if "--swiglu" in given else 4 * hidden
    return {"model.ffn": width}


def _read_mlp(given: Given) -> Values:
    """Two matrices, or three: --quick-geglu has a gate too (gated_linear_unit)."""
    gated = [flag in given for flag in ("--swiglu", "--quick-geglu")]
    return {"model.mlp": "swiglu" if any(gated) else "gelu"}


_POSITIONS = word(
    "--position-embedding-type", "model.positions",
    {"rope": "rotary", "learned_absolute": "learned", "yarn": "rotary"}, "learned",
)  # fmt: skip


def _read_positions(given: Given) -> Values:
    """--use-rotary-position-embeddings, of older versions, is --position-embedding-type rope."""
    stated = _POSITIONS.read(given)
    return {"model.positions": "rotary"} if "--use-rotary-position-embeddings" in given else stated


def _write_length(values: Values) -> Iterable[str]:
    length = values.get("model.sequence")
    return () if length is None else (f"--seq-length {length}", f"--max-position-embeddings {length}")


def _read_length(given: Given) -> Values:
    longest = given.number("--max-position-embeddings")
    return {"model.sequence": given.number("--seq-length") or longest}


_LATENT = {  # key → flag
    "query": "--q-lora-rank", "key_value": "--kv-lora-rank", "nope": "--qk-head-dim", "rope": "--qk-pos-emb-head-dim",
    "value": "--v-head-dim",
}  # fmt: skip


def _write_latent(values: Values) -> Iterator[str]:
    if values.get("model.latent"):
        yield "--multi-latent-attention"
        yield from (
            f"{flag} {values['model.latent'][key]}" for key, flag in _LATENT.items() if values["model.latent"][key]
        )


def _read_latent(given: Given) -> Values:
    if "--multi-latent-attention" not in given:
        return {}
    sizes = {key: given.number(flag) for key, flag in _LATENT.items()}
    defaults = {"key_value": 512, "nope": 128, "rope": 64, "value": 128}  # Megatron-LM's
    latent_sizes = {key: size if size is not None else defaults.get(key) for key, size in sizes.items()}
    latent = {key: size for key, size in latent_sizes.items() if size is not None}
    without = dict.fromkeys(("model.head_size", "model.kv_heads", "model.qk_norm"))  # of no meaning there
    return {"model.latent": latent, **without}


def _write_experts(values: Values) -> Iterator[str]:
    experts = values.get("model.experts")
    if not experts:
        return
    yield from (f"--num-experts {experts['count']}", f"--moe-router-topk {experts['active']}")
    yield f"--moe-ffn-hidden-size {experts['ffn']}"
    if experts["shared"]:
        yield f"--moe-shared-expert-intermediate-size {experts['shared'] * experts['ffn']}"
    if dense := experts["dense_layers"]:
        yield f"--moe-layer-freq '([0]*{dense}+[1]*{values['model.layers'] - dense})'"
    if experts["router_bias"]:
        yield "--moe-router-enable-expert-bias --moe-router-score-function sigmoid"
    if experts["groups"] > 1:
        top = experts["top_groups"] or experts["groups"]
        yield f"--moe-router-num-groups {experts['groups']} --moe-router-group-topk {top}"
    yield "--moe-grouped-gemm"


def _read_experts(given: Given) -> Values:
    count = given.number("--num-experts")
    if count is None:
        return {}
    width = given.number("--moe-ffn-hidden-size") or _read_ffn(given)["model.ffn"]
    shared = given.number("--moe-shared-expert-intermediate-size") or 0
    if width is None or shared % width:
        raise given.error("--moe-shared-expert-intermediate-size", f"{shared} is no multiple of an expert's {width}")
    experts = {
        "count": count,
        "active": given.number("--moe-router-topk") or 2,  # Megatron-LM's default
        "ffn": width,
        "shared": shared // width,
        "dense_layers": _dense_layers(given),
        "router_bias": "--moe-router-enable-expert-bias" in given,
        "groups": given.number("--moe-router-num-groups"),
        "top_groups": given.number("--moe-router-group-topk"),
    }
    given.words("--moe-router-score-function")
    given.pass_over("--moe-grouped-gemm")
    return {"model.experts": {key: value for key, value in experts.items() if value}}


def _dense_layers(given: Given) -> int:
    """Leading layers without experts, from a pattern such as ([0]*3+[1]*58)."""
    text = given.text("--moe-layer-freq")
    if text in (None, "1"):
        return 0
    try:
        pattern = _list(ast.parse(text or "", mode="eval").body)
        dense = pattern.index(1)
    except (SyntaxError, ValueError):
        dense, pattern = 0, [0]
    if 0 in pattern[dense:]:
        raise given.error("--moe-layer-freq", "expected layers without experts first, such as ([0]*3+[1]*58)")
    return dense


def _list(node: ast.expr) -> list[int]:
    if isinstance(node, ast.List):
        return [item.value for item in node.elts if isinstance(item, ast.Constant) and isinstance(item.value, int)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _list(node.left) + _list(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        return _list(node.left) * min(int(str(node.right.value)), 2**14)
    raise ValueError


_NORMS = {"RMSNorm": "rms", "LayerNorm": "layer", "rmsnorm": "rms", "layernorm": "layer"}  # small: Megatron-DeepSpeed

MODEL = (
    number("--num-layers", "model.layers"),
    number("--hidden-size", "model.hidden"),
    number("--num-attention-heads", "model.heads"),
    Rule(_write_groups, _read_groups),
    number("--kv-channels", "model.head_size"),
    Rule(number("--ffn-hidden-size", "model.ffn").write, _read_ffn),
    Rule(switch("--swiglu", "model.mlp", "swiglu", "gelu").write, _read_mlp),
    word("--normalization", "model.norm", _NORMS, "layer"),
    Rule(_POSITIONS.write, _read_positions),
    switch("--untie-embeddings-and-output-weights", "model.tied", on=False, off=True),
    switch("--disable-bias-linear", "model.bias", on=False, off=True),
    switch("--qk-layernorm", "model.qk_norm", on=True, off=False),
    number("--vocab-size", "model.vocab"),
    Rule(_write_length, _read_length),
    word(
        "--attention-backend", "model.attention",
        {"unfused": "plain", "flash": "flash", "fused": "flash", "auto": "flash", "local": "plain"}, "flash",
    ),
    Rule(_write_latent, _read_latent),
    Rule(_write_experts, _read_experts),
    number("--mtp-num-layers", "model.predictions", 0),
)  # fmt: skip
