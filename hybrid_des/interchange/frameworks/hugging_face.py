"""A model's sizes from its `config.json`, as Hugging Face's transformers writes it.

Names: transformers/models/*/configuration_*.py (github.com/huggingface/transformers). Some families leave out what is
their own default; the table of families has those.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.frameworks.foreign import foreign
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, Imported, published_model
from hybrid_des.options import describe

_SIZES = {  # ours → theirs, the first that is there
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "predictions": ("num_nextn_predict_layers",),
    "sequence": ("max_position_embeddings", "n_positions", "max_sequence_length"),
}
_EXPERTS = {
    "count": ("n_routed_experts", "num_local_experts", "num_experts"),
    "active": ("num_experts_per_tok", "experts_per_token", "moe_topk"),
    "ffn": ("moe_intermediate_size",),
    "shared": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "groups": ("n_group",),
    "top_groups": ("topk_group",),
}
_LATENT = {
    "query": ("q_lora_rank",), "key_value": ("kv_lora_rank",), "nope": ("qk_nope_head_dim",),
    "rope": ("qk_rope_head_dim",), "value": ("v_head_dim",),
}  # fmt: skip
_BIASED = ("gpt2", "gpt_neox", "opt", "bert", "phi")  # families with biases, layer norm and GELU
_LEARNED = ("gpt2", "opt", "bert")  # with learned positions
_TIED = ("gpt2", "opt", "bert", "gemma", "gemma2", "gemma3", "gemma3_text")  # with one matrix for both ends
_ENCODERS = ("bert",)
FULL = "full_attention"
_QK_NORM = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text")
_ALONE: tuple[Any, ...] = (1, None, [], False, "auto", "default")  # values of settings that then change nothing
_IDLE = (  # settings without effect on the time of a step
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "auto_map", "_name_or_path",
    "initializer_range", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
    "attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta",
    "rope_scaling", "rope_interleave", "rope_parameters", "partial_rotary_factor", "pretraining_tp", "aux_loss_alpha",
    "seq_aux", "router_aux_loss_coef", "output_router_logits", "norm_topk_prob", "routed_scaling_factor",
    "scoring_func", "router_jitter_noise", "quantization_config", "task_specific_params", "summary_type",
    "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    "gradient_checkpointing", "position_embedding_type", "classifier_dropout", "initial_context_length", "qk_head_dim",
    "id2label", "label2id", "activation_function", "hidden_act", "hidden_activation", "tie_word_embeddings",
    "attention_bias", "mlp_bias", "n_ctx", "use_sliding_window", "max_window_layers", "topk_method", "type_vocab_size",
    "ep_size", "max_length",
)  # fmt: skip


def read_hugging_face(text: str, name: str) -> Imported:
    """The values of a scenario that a model's configuration gives: its sizes.

    Args:
        text: the content of `config.json`.
        name: where it comes from, for errors.

    Raises:
        UsageError: it is no such configuration; the message says why.
    """
    config = _Config(_parsed(text, name), name)
    family = str(config.values.get("model_type", ""))
    sizes = {key: config.size(names) for key, names in _SIZES.items()}
    biased = family in _BIASED
    if sizes["ffn"] is None and biased and sizes["hidden"] is not None:
        sizes["ffn"] = 4 * sizes["hidden"]
    if lacking := [_SIZES[key][0] for key in ("layers", "hidden", "heads", "ffn", "vocab") if not sizes[key]]:
        raise UsageError(f"{name}: {', '.join(lacking)} missing; expected the config.json of a language model")
    model: dict[str, Any] = {key: size for key, size in sizes.items() if size is not None}
    if model.get("kv_heads") == model["heads"]:
        del model["kv_heads"]
    if model.get("head_size", 0) * model["heads"] == model["hidden"]:
        del model["head_size"]
    model["tied"] = bool(config.values.get("tie_word_embeddings", family in _TIED))
    if biased:
        model |= {"mlp": "gelu", "norm": "layer", "bias": True}
    if family in _LEARNED:
        model["positions"] = "learned"
    if family in _QK_NORM:
        model["qk_norm"] = True
    if family in _ENCODERS:
        model |= {"causal": False, "post_norm": True, "token_types": config.size(("type_vocab_size",)), "pooler": True}
    model |= _parts(config, model)
    published = published_model(model)
    values = (
        {"model": published} if isinstance(published, str) else {f"model.{key}": one for key, one in published.items()}
    )
    return Imported(values, tuple(_assumed(config, model)), *config.rest())


def _parsed(text: str, name: str) -> dict[str, Any]:
    if what := foreign(text, "config.json"):
        raise UsageError(f"{name}: {what}")
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name}: not JSON: {error}; expected a model's config.json") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name}: found {describe(values)}; expected a model's config.json")
    inner = values.get("text_config")
    return inner if isinstance(inner, dict) else values


class _Config:
    """A configuration, of which the settings that were read are remembered."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name = values, name
        self._read: set[str] = set()

    def size(self, names: tuple[str, ...]) -> int | None:
        """The first of these settings that is there.

        Raises:
            UsageError: it is no whole number.
        """
        self._read |= {*names}
        given = next(((name, self.values[name]) for name in names if self.values.get(name) is not None), None)
        if given is None:
            return None
        name, value = given
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{self.name}: {name}: expected a whole number, found {describe(value)}")
        return value

    def rest(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The settings that were not understood, and those without effect."""
        attention = [*self._attention()]
        left = [name for name in self.values if name not in self._read]
        idle = tuple(name for name in left if name in _IDLE or self.values[name] in _ALONE)
        if self.values.get("use_sliding_window") is False:
            idle += ("sliding_window",) if "sliding_window" in left else ()
        lines = [f"{name}: {describe(self.values[name])}" for name in left if name not in idle]
        return (*lines, *attention), idle

    def _attention(self) -> Iterator[str]:
        """Kinds of attention that some layers have, other than to all tokens before."""
        listed = self.values.get("layer_types")
        self._read.add("layer_types")
        kinds = Counter(map(str, listed if isinstance(listed, list) else []))
        for kind, count in kinds.items():
            if kind != FULL:
                yield f"layer_types: {count} of {kinds.total()} layers have {one_line(kind, LONGEST_SHOWN)}"


def _parts(config: _Config, model: Mapping[str, Any]) -> dict[str, Any]:
    """Latent attention and experts."""
    latent = {key: config.size(names) for key, names in _LATENT.items()}
    experts = {key: config.size(names) for key, names in _EXPERTS.items()}
    shared = config.size(("shared_expert_intermediate_size",))
    parts: dict[str, Any] = {}
    if latent["key_value"]:
        parts["latent"] = {key: size for key, size in latent.items() if size}
        parts |= dict.fromkeys(("kv_heads", "head_size"))  # of no meaning there
    if experts["count"]:
        width = experts["ffn"] = experts["ffn"] or int(model["ffn"])
        if shared is not None:
            if shared % width:
                raise UsageError(f"{config.name}: shared_expert_intermediate_size: no multiple of {width}")
            experts["shared"] = shared // width
        biased = {"router_bias": True} if config.values.get("topk_method") == "noaux_tc" else {}
        if experts["groups"] in (None, 1):
            experts |= dict.fromkeys(("groups", "top_groups"))  # of no meaning there
        parts["experts"] = {"active": UNKNOWN, **{key: size for key, size in experts.items() if size}, **biased}
    return parts


def _assumed(config: _Config, model: Mapping[str, Any]) -> list[str]:
    longest = model.get("sequence")
    lines = [f"model.sequence: {longest}: the longest that the model takes; state that of training"] if longest else []
    if config.values.get("attention_bias") and not model.get("bias"):
        lines.append("model.bias: false: only products of attention have one")
    return [*lines, "cluster, parallel, batch: a model's configuration does not say them"]
