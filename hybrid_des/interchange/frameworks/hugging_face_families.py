"""What the families of transformers have without a setting of their own: activation, norms, positions, tied matrices.

Sources: transformers/models/*/configuration_*.py and modeling_*.py (github.com/huggingface/transformers).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Family(NamedTuple):
    """A family of models.

    Attributes:
        values: of a model, beside its sizes; Llama's where they are missing.
        tied: whether both ends share a matrix where `tie_word_embeddings` is missing.
        windows: which layers have the sliding window where no setting says so: "all", "every second", or None.
        window: its size where `sliding_window` is missing.
        settings: of a `config.json`, which count where they are missing.
        beside: what its layers have that no setting names and that is not described here, one line each.
    """

    values: Mapping[str, Any] = {}
    tied: bool = False
    windows: str | None = None
    window: int | None = None
    settings: Mapping[str, Any] = {}
    beside: tuple[str, ...] = ()


_GPT = {"mlp": "gelu", "norm": "layer", "bias": True}
_LEARNED = {**_GPT, "positions": "learned"}
_ENCODER = {**_LEARNED, "causal": False, "post_norm": True, "pooler": True}
_QKV = ("biases of queries, keys and values",)
_SIDE = ("attention and MLP of a block are computed from one norm, side by side",)
_FOUR_NORMS = ("two more norms per layer, after attention and after the MLP",)
_WHOLE_NORM = ("norms over all queries and over all keys of a token",)
_AFTER = (*_WHOLE_NORM, "norms after attention and MLP instead of before them")
_NO_GATE = ("an MLP without dropout, of two matrices and squared ReLU",)
_LAYER_NORM = {"norm": "layer"}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(), "mistral": Family(windows="all"), "ministral": Family(), "mixtral": Family(windows="all"),
    "deepseek_v2": Family(), "deepseek_v3": Family(), "kimi_k2": Family(), "seed_oss": Family(beside=_QKV),
    "qwen2": Family(beside=_QKV), "qwen2_moe": Family(beside=(*_QKV, "a gate of one column of the shared expert")),
    "qwen2_5_vl_text": Family(beside=_QKV), "qwen2_vl_text": Family(beside=_QKV), "qwen2_vl": Family(beside=_QKV),
    "qwen2_5_vl": Family(beside=_QKV),
    "qwen3": Family({"qk_norm": True}), "qwen3_moe": Family({"qk_norm": True}),
    "qwen3_vl_text": Family({"qk_norm": True}), "qwen3_vl_moe_text": Family({"qk_norm": True}),
    "gemma": Family(tied=True), "gemma2": Family(tied=True, windows="every second", window=4096, beside=_FOUR_NORMS),
    "gemma3": Family({"qk_norm": True}, tied=True, beside=_FOUR_NORMS),
    "gemma3_text": Family({"qk_norm": True}, tied=True, beside=_FOUR_NORMS),
    "phi3": Family(windows="all"), "granite": Family(), "granitemoe": Family(), "smollm3": Family(tied=True),
    "arcee": Family({"mlp": "gelu"}, beside=_NO_GATE), "minicpm": Family(), "exaone": Family(), "internlm2": Family(),
    "internlm3": Family(), "helium": Family(), "ernie4_5": Family(tied=True), "ernie4_5_moe": Family(tied=True),
    "glm4_moe": Family(), "minimax_m2": Family(beside=_WHOLE_NORM),
    "olmo": Family(beside=("norms without weights",)), "olmo2": Family(beside=_AFTER),
    "olmo3": Family(beside=_AFTER), "olmoe": Family(beside=_WHOLE_NORM),
    "glm": Family(), "glm4": Family(beside=_FOUR_NORMS), "hunyuan_v1_dense": Family({"qk_norm": True}),
    "stablelm": Family(_LAYER_NORM), "cohere": Family(_LAYER_NORM, tied=True, beside=_SIDE),
    "starcoder2": Family(_GPT, tied=True, windows="all"),
    "nemotron": Family({"mlp": "gelu", "norm": "layer"}, beside=_NO_GATE),
    "gpt_oss": Family({"bias": True}, beside=("an attention sink per head",)),
    "gpt2": Family(_LEARNED, tied=True), "opt": Family(_LEARNED, tied=True), "gpt_neo": Family(_LEARNED, tied=True),
    "gpt_bigcode": Family(_LEARNED, tied=True), "gpt_neox": Family(_GPT, settings={"use_parallel_residual": True}),
    "phi": Family(_GPT, beside=_SIDE),
    "gptj": Family(_GPT, beside=(*_SIDE, "no biases of attention")),
    "codegen": Family(_GPT, beside=(*_SIDE, "no biases of attention")),
    "bloom": Family(_GPT, tied=True, beside=("a norm after the embedding",)),
    "falcon": Family({"mlp": "gelu", "norm": "layer"}, tied=True, settings={"parallel_attn": True}),
    "bert": Family(_ENCODER, tied=True), "roberta": Family(_ENCODER, tied=True), "ernie": Family(_ENCODER, tied=True),
    "camembert": Family(_ENCODER, tied=True), "xlm-roberta": Family(_ENCODER, tied=True),
    "data2vec-text": Family(_ENCODER, tied=True),
}  # fmt: skip
"""By `model_type`."""

_SEVERAL = "its layers are of several kinds"
REFUSED = {
    **dict.fromkeys(("jamba", "bamba", "zamba", "zamba2", "nemotron_h", "lfm2", "lfm2_moe", "qwen3_next", "kimi_linear",
                     "granitemoehybrid", "falcon_h1", "minimax_text_01", "bailing_hybrid"), _SEVERAL),
    "qwen": "its intermediate_size counts both halves of a gated MLP", "mpt": "its layers are in attn_config",
    "dbrx": "its layers are in attn_config and ffn_config", "albert": "its layers share their weights",
    "mamba": "its layers are mamba's", "mamba2": "its layers are mamba's", "falcon_mamba": "its layers are mamba's",
    "rwkv": "its layers are RWKV's", "recurrent_gemma": "its layers are recurrent", "xlstm": "its layers are xLSTM's",
    "llama4": "it has a shared expert, and layers without experts", "jetmoe": "its attention has experts",
    "llama4_text": "it has a shared expert, and layers without experts",
    "gemma3n_text": "its layers have streams and tables of their own",
    "gemma3n": "its layers have streams and tables of their own", "deci": "its layers differ",
    "nemotron-nas": "its layers differ", "funnel": "its layers pool tokens", "deberta": "its attention is another",
    "deberta-v2": "its attention is another", "xlnet": "its attention is another",
}  # fmt: skip
"""Families whose layers no setting describes: why they are not read."""
