"""Settings of a `config.json` that are read nowhere: those without effect, and those that change layers.

Names: transformers/models/*/configuration_*.py, and the configurations that publishers ship with code of their own. A
setting in neither list is named as not understood.
"""

import re
from typing import Any

from hybrid_des.interchange.frameworks.without_effect import without_effect

IDLE = without_effect("hugging_face")
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
    r"(en|de)coder_(layers|ffn_dim|attention_heads)|num_(en|de)coder_layers|d_kv|num_hidden_groups|\w*embedding_size|per_layer_config|"
    r"num_(full|swa|ssm|mamba)\w*|\w*intermediate_size\w*|sparse_attention\w*|o_groups|add_cross_attention"
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
