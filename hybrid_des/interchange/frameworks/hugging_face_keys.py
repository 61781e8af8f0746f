"""Settings of a `config.json` that are read nowhere: those without effect, and those that change layers.

Names: transformers/models/*/configuration_*.py, and the configurations that publishers ship with code of their own. A
setting in neither list is named as not understood.
"""

import re
from typing import Any

IDLE = frozenset(
    """
    architectures torch_dtype dtype transformers_version auto_map _name_or_path _attn_implementation initializer_range
    use_cache pad_token_id bos_token_id eos_token_id decoder_start_token_id unk_token_id sep_token_id image_token_id
    video_token_id vision_start_token_id vision_end_token_id image_token_index boi_token_index eoi_token_index
    embd_pdrop resid_pdrop attn_pdrop attention_dropout hidden_dropout hidden_dropout_prob attn_dropout
    attention_probs_dropout_prob embedding_dropout rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps
    norm_epsilon layernorm_epsilon rope_theta rope_scaling rope_interleave rope_parameters rope_local_base_freq
    partial_rotary_factor rotary_dim rotary_pct rotary_emb_base rope_ratio original_max_position_embeddings mrope_section
    no_rope_layers no_rope_layer_interval pretraining_tp aux_loss_alpha seq_aux router_aux_loss_coef
    router_z_loss_coef output_router_logits norm_topk_prob routed_scaling_factor scoring_func router_jitter_noise
    input_jitter_noise moe_router_activation_func moe_dropout_prob moe_router_topk_scaling_factor moe_router_bias_update_factor
    moe_router_scaling_factor
    quantization_config task_specific_params summary_type summary_use_proj summary_activation summary_proj_to_labels
    summary_first_dropout gradient_checkpointing classifier_dropout initial_context_length qk_head_dim q_head_dim
    id2label label2id problem_type finetuning_task n_ctx max_window_layers ep_size max_length min_length num_labels
    scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn attention_softmax_in_fp32
    scale_attention_softmax_in_fp32 word_embed_proj_dim_scale embedding_multiplier residual_multiplier
    attention_multiplier logits_scaling logit_scale query_pre_attn_scalar swiglu_limit apply_residual_connection_post_layernorm
    slow_but_exact masked_softmax_fusion activation_dropout attention_scale initializer_cutoff_factor
    residual_dropout embedding_init_std skip_bias_add_qkv temperature top_p top_k do_sample repetition_penalty
    model_max_length tokenizer_class torchscript use_bfloat16 return_dict output_attentions output_hidden_states
    chunk_size_feed_forward is_decoder is_encoder_decoder add_cross_attention cross_attention_hidden_size
    bad_words_ids begin_suppress_tokens suppress_tokens forced_bos_token_id forced_eos_token_id prefix tf_legacy_loss
    use_sliding_window remove_invalid_values diversity_penalty num_beams num_beam_groups length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences early_stopping typical_p exponential_decay_length_penalty
    pruned_heads scale_width rescale_every max_seq_len fused_qkv bias_dropout_fusion compressed_tensors
    """.split()
)
NEUTRAL: dict[str, Any] = {  # values with which a setting changes nothing; none, false, 0 and empty ones do not either
    "decoder_sparse_step": 1, "moe_layer_freq": 1, "interleave_moe_layer_step": 1, "moe_layer_interval": 1,
    "expert_layer_period": 1, "full_attention_interval": 1, "moe_every_n_layers": 1, "num_hidden_groups": 1,
    "expansion_ratio": 4, "hc_mult": 1, "moe_group_size": 1,
}  # fmt: skip
_LAYERS = re.compile(
    r"(mamba|ssm|hybrid|linear_(attn|num|key|value|conv)|delta|kda|rwkv|recurrent|lru|lightning|index|compress|hc|swa|csa|"
    r"lora|altup|laurel|global|conv|time_step)_?\w*|"
    r"\w*(moe|expert|mlp_only|sparse_step|kv_shared|double_wide|output_gate|output_gating|head_wise|k_eq_v|"
    r"per_layer_input|cross_attention_layers|block_types?|block_configs|layers_block|attn_type_list|attention_types|"
    r"layers_enum|hash_layers|attention_chunk)\w*|"
    r"full_attention_(interval|layers?)|attn_(config|layer_\w+|alloc\w*)|ffn_config|expansion_ratio|state_size|"
    r"(en|de)coder_(layers|ffn_dim|attention_heads)|num_(en|de)coder_layers|d_kv|num_hidden_groups|embedding_size|"
    r"num_(full|swa|ssm|mamba)\w*|\w*intermediate_size\w*|sparse_attention\w*|o_groups"
)


def is_off(name: str, value: Any) -> bool:
    """Whether a setting has a value with which it changes nothing."""
    if isinstance(value, bool):
        return not value
    if name == "attn_type_list":
        return isinstance(value, list) and all(one == 1 for one in value)  # MiniMax: attention in every layer
    neutral = NEUTRAL.get(name)
    return value is None or value in (0, "", [], {}) or (neutral is not None and value == neutral)


def changes_layers(name: str) -> bool:
    """Whether a setting of this name makes other layers."""
    return _LAYERS.fullmatch(name) is not None
