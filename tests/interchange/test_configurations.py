"""Configurations of models: what is read is the publisher's model; what makes another one is refused by name."""

import json

import pytest

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.hugging_face import read_hugging_face
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, scenario_file
from hybrid_des.scenario.composition import nested

DENSE = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "vocab_size": 32000,
    "intermediate_size": 4096, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = DENSE | {"model_type": "qwen3_moe", "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 768}


def read(config):
    return read_hugging_face(json.dumps(config), "config.json")


def model(config):
    return nested(read(config).values)["model"]


OTHER_LAYERS = [
    ("hybrid_override_pattern", "M-M*-", "M-M"), ("mamba_num_heads", 128, "128"), ("linear_num_key_heads", 16, "16"),
    ("decoder_sparse_step", 2, "2"), ("mlp_only_layers", [3, 5], "[3, 5]"), ("moe_num_experts_per_group", 4, "4"),
    ("index_topk", 2048, "2048"), ("num_kv_shared_layers", 20, "20"), ("attn_output_gate", True, "true"),
    ("use_double_wide_mlp", True, "true"), ("full_attention_interval", 4, "4"), ("conv_kernel", 4, "4"),
    ("add_cross_attention", True, "true"),
    ("hidden_size_per_layer_input", 256, "256"), ("interleave_moe_layer_step", 2, "2"),
    ("block_configs", [{"a": 1}], "a"),
    ("layers_block_type", ["mamba"], "mamba"), ("attention_chunk_size", 8192, "8192"), ("global_head_dim", 512, "512"),
    ("dense_intermediate_size", 12288, "12288"), ("sparse_attention_config", {"freq": 4}, "freq"),
    ("moe_latent_size", 1024, "1024"), ("hc_mult", 4, "4"), ("attn_type_list", [0, 0, 1], "[0, 0, 1]"),
    ("linear_attn_config", {"kda_layers": [1]}, "kda_layers"), ("expert_layer_period", 2, "2"),
    ("num_hidden_groups", 2, "2"),
    ("layer_types", ["linear_attention", "full_attention"], "linear_attention"), ("moe_layer_freq", [1, 0], "[1, 0]"),
    ("use_cla", True, "true"), ("word_embed_proj_dim", 512, "512"), ("attn_type", "multiquery_attention", "multiquery"),
    ("num_attention_heads_per_layer", [48, 72], "[48, 72]"), ("gating", "per-head", "per-head"),
    ("moe_capacity", [1.2, 2.0], "1.2"),
    ("layer_group_size", 4, "4"), ("num_layers_per_stack", 16, "16"), ("H_cycles", 2, "2"), ("num_codebooks", 8, "8"),
    ("num_kv_reuse_layers", 8, "8"), ("shared_intermediate_size", 1000, "1000"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "shown"), OTHER_LAYERS)
def test_keys_that_make_other_layers_are_refused_by_name(key, value, shown):
    with pytest.raises(UsageError) as caught:
        read(EXPERTS | {key: value})
    assert f"config.json: {key}: " in str(caught.value)
    assert shown in str(caught.value)


@pytest.mark.parametrize("same", [
    {"attention_chunk_size": -1, "index_topk": -1},
    {"decoder_sparse_step": 1, "mlp_only_layers": []}, {"moe_layer_freq": 1}, {"num_kv_shared_layers": 0},
    {"hybrid_override_pattern": None}, {"attn_output_gate": False}, {"layer_types": ["full_attention"] * 12},
    {"attn_type_list": [1] * 12}, {"interleave_moe_layer_step": 1},
    {"word_embed_proj_dim": 1024, "embedding_size": 1024},
    {"attn_config": {"attn_type": "multihead_attention"}}, {"moe_capacity": [64, 64, 64], "moe_gate": "topk"},
    {"layer_types": ["attention"] * 12, "mamba_n_heads": 128, "time_step_limit": [0.0, 1.0]},
])  # fmt: skip
def test_values_that_change_nothing_are_accepted(same):
    assert model(EXPERTS | same) == model(EXPERTS)


def test_switches_that_are_on_are_not_without_effect():
    imported = read(DENSE | {"some_switch": True, "some_number": 1, "off_switch": False, "rms_norm_eps": 1e-6})
    assert imported.unread == ("some_switch: true", "some_number: 1", "off_switch: false")
    assert imported.idle == ("rms_norm_eps",)


def test_what_is_read_is_not_without_effect():
    read_keys = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "use_sliding_window": False}
    imported = read(DENSE | read_keys)
    assert (imported.unread, imported.idle) == ((), ())


@pytest.mark.parametrize("inner", ["text_config", "llm_config", "language_config"])
def test_what_stands_beside_a_language_model_counts(inner):
    alone = {key: value for key, value in DENSE.items() if key != "tie_word_embeddings"}
    outer = {"model_type": "x_vl", "tie_word_embeddings": True, "vision_config": {"depth": 3}, inner: alone}
    imported = read(outer)
    assert nested(imported.values)["model"]["tied"] is True
    assert "vision_config: another part of the model, left out" in imported.unread


def test_two_statements_about_one_matrix_are_said():
    imported = read({"tie_word_embeddings": True, "text_config": DENSE})
    assert nested(imported.values)["model"]["tied"] is False
    assert any(line.startswith("model.tied: false: tie_word_embeddings") for line in imported.assumed)


def test_experts_are_known_by_other_names():
    others = {"moe_num_experts": 64, "moe_k": 8, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}
    found = model(DENSE | others | {"moe_intermediate_size": 768})["experts"]
    assert found == {"count": 64, "active": 8, "ffn": 768, "shared": 2, "dense_layers": 1}
    assert model(EXPERTS | {"num_shared_experts": 1})["experts"]["shared"] == 1


@pytest.mark.parametrize("dense", [
    {"mlp_only_layers": [0, 1, 2]}, {"moe_layer_freq": [0] * 3 + [1] * 9}, {"first_k_dense_replace": 3},
    {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 9},
])  # fmt: skip
def test_leading_layers_without_experts_are_read(dense):
    assert model(EXPERTS | dense)["experts"]["dense_layers"] == 3


def test_no_dense_width_is_needed_without_dense_layers():
    lacking = {key: value for key, value in EXPERTS.items() if key != "intermediate_size"}
    assert model(lacking)["ffn"] == 768
    with pytest.raises(UsageError, match="intermediate_size missing"):
        read(lacking | {"first_k_dense_replace": 1})


SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(("config", "window"), [
    ({"layer_types": [SLIDING, FULL] * 6, "sliding_window": 128}, (128, None)),
    ({"layer_types": [SLIDING] * 12, "sliding_window": 128}, (128, 1)),
    ({"layer_types": ([SLIDING] + [FULL] * 3) * 3, "sliding_window": 128}, (128, 4)),
    ({"model_type": "mistral", "sliding_window": 4096}, (4096, 1)), ({"model_type": "gemma2"}, (4096, None)),
    ({"model_type": "mistral", "sliding_window": None}, (None, None)),
    ({"model_type": "mistral", "sliding_window": 8192}, (None, None)),
])  # fmt: skip
def test_windows_of_every_so_manyth_layer_are_read(config, window):
    found = model(DENSE | config)
    assert (found.get("window"), found.get("window_every")) == window


def test_other_patterns_of_windows_are_named():
    kinds = ([SLIDING] * 5 + [FULL]) * 2
    imported = read(DENSE | {"layer_types": kinds, "sliding_window": 1024})
    assert imported.unread == ("sliding_window: 1024", "layer_types: 10 of 12 layers have sliding_attention")
    assert "window" not in nested(imported.values)["model"]


def test_families_have_what_no_key_says():
    starcoder = model(DENSE | {"model_type": "starcoder2", "use_bias": True})
    assert (starcoder["mlp"], starcoder["norm"], starcoder["bias"]) == ("gelu", "layer", True)
    stated = read(
        {key: value for key, value in DENSE.items() if key != "tie_word_embeddings"} | {"model_type": "gemma2"}
    )
    assert nested(stated.values)["model"]["tied"] is True
    assert any(line.startswith("model_type: gemma2: not described here: two more norms") for line in stated.unread)
    assert any("biases of queries" in line for line in read(DENSE | {"model_type": "qwen2"}).unread)


def test_families_that_are_not_known_are_said():
    (line,) = [line for line in read(DENSE | {"model_type": "my_model"}).assumed if "my_model" in line]
    assert line.startswith(
        "model.mlp, model.norm, model.positions, model.bias, model.qk_norm, model.causal: as in Llama"
    )
    assert "like all that no setting names" in line
    assert not any("as in Llama" in line for line in read(DENSE).assumed)


@pytest.mark.parametrize("config", [
    {"model_type": "jamba", "attn_layer_period": 8}, {"model_type": "t5", "is_encoder_decoder": True},
    {"model_type": "zamba2", "hybrid_layer_ids": [6]}, {"model_type": "qwen"}, {"model_type": "albert"},
])  # fmt: skip
def test_families_that_no_key_describes_are_refused(config):
    with pytest.raises(UsageError, match=f"model_type: {config['model_type']}: ") as caught:
        read(DENSE | config)
    assert all(str(key) in str(caught.value) for key in config if key != "is_encoder_decoder")


NEMOTRON = {"model_type": "nemotron_h", "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 128}


def test_letters_of_hybrid_layers_are_kinds():
    found = model(DENSE | NEMOTRON | {"num_hidden_layers": 8, "hybrid_override_pattern": "M-M*M-M*"})
    assert found["pattern"] == "mamba2 mlp mamba2 attention"
    assert found["kinds"]["mlp"] == {"mixer": "none", "experts": "none"}
    assert found["mamba"] == {"heads": 8, "head_size": 64, "groups": 1, "state": 128, "conv": 4, "chunk": 256}


def test_linear_mixers_are_read_with_a_gpu_of_known_rates():
    found = read(DENSE | NEMOTRON | {"hybrid_override_pattern": "M-" * 6})
    assert found.values["cluster.gpu"] == "h100" and found.assumed[0].startswith("cluster.gpu: h100: the rates")
    lightning = read(DENSE | {"model_type": "minimax_text_01", "attn_type_list": [0, 0, 1] * 4})
    assert lightning.values["efficiency.lightning"] == UNKNOWN
    assert nested(lightning.values)["model"]["pattern"] == "lightning*2 attention"


@pytest.mark.parametrize(("changed", "said"), [
    ({"hybrid_override_pattern": "M-M"}, "3 kinds of layers for 12 layers"),
    ({"hybrid_override_pattern": "M?" * 6}, "hybrid_override_pattern: expected letters of M, *, E, -"),
    ({"hybrid_override_pattern": "M-" * 6, "ssm_state_size": None}, "ssm_state_size missing"),
    ({"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1, 2], "full_attn_layers": [3]}},
     "linear_attn_config: expected each of the 12 layers once"),
    ({"model_type": "lfm2", "conv_L_cache": 3, "layer_types": ["conv"]}, "1 kinds of layers for 12 layers"),
])  # fmt: skip
def test_kinds_that_do_not_fit_the_layers_are_refused(changed, said):
    with pytest.raises(UsageError) as caught:
        read(DENSE | NEMOTRON | changed)
    assert said in str(caught.value)


def test_two_names_of_one_size_must_agree():
    assert (
        "num_nextn_predict_layers: 1, but mtp_num_hidden_layers: 2"
        in read(DENSE | {"num_nextn_predict_layers": 1, "mtp_num_hidden_layers": 2}).unread
    )


def test_experts_that_are_switched_off_are_none():
    """Doge has their number in any of its configurations (transformers, configuration_doge.py)."""
    assert "experts" not in model(EXPERTS | {"is_moe": False})
    assert model(EXPERTS | {"is_moe": True})["experts"]["count"] == 64


@pytest.mark.parametrize(("family", "setting"), [("gpt_neox", "use_parallel_residual"), ("falcon", "parallel_attn")])
def test_what_a_family_does_by_default_is_named(family, setting):
    """Attention and MLP side by side, which both have unless a setting says otherwise (configuration_gpt_neox.py)."""
    given = DENSE | {"model_type": family}
    assert f"{setting}: true" in read(given).unread
    assert f"{setting}: false" in read(given | {setting: False}).unread


def test_narrower_values_without_latent_attention_are_named():
    assert "v_head_dim: 96" in read(DENSE | {"head_dim": 128, "v_head_dim": 96}).unread
    assert read(DENSE | {"v_head_dim": None, "q_lora_rank": None}).unread == ()


@pytest.mark.parametrize("key", ["moe_intermediate_size", "num_experts_per_tok", "n_shared_experts"])
def test_experts_of_an_unknown_number_are_refused(key):
    with pytest.raises(UsageError, match=f"{key}: 8"):
        read(DENSE | {key: 8})


def test_sections_are_read_and_what_stands_beside_them_comes_first():
    """DBRX and MPT; a section of DBRX repeats defaults of transformers, such as a matrix for both ends."""
    section = {"attn_config": {"kv_n_heads": 4, "tie_word_embeddings": True}, "ffn_config": {"ffn_hidden_size": 2048}}
    lacking = {key: value for key, value in DENSE.items() if key != "intermediate_size"}
    found = model(lacking | section)
    assert (found["kv_heads"], found["ffn"], found["tied"]) == (4, 2048, False)


def test_parts_of_other_kinds_are_left_out_wherever_they_stand():
    imported = read(DENSE | {"vision_config": {"depth": 32}})
    assert imported.unread == ("vision_config: another part of the model, left out",)


def test_an_activation_that_no_family_explains_leaves_the_mlp_unknown():
    """Whether the MLP has a gate is a third of its parameters: `xielu` has none, `gelu` has one in Gemma."""
    given = DENSE | {"model_type": "my_model", "hidden_act": "xielu"}
    assert model(given)["mlp"] == UNKNOWN
    assert 'hidden_act: "xielu"' in read(given).unread
    assert not any("model.mlp" in line for line in read(given).assumed)
    assert "mlp" not in model(given | {"hidden_act": "silu"})
    assert model(given | {"model_type": "apertus"})["mlp"] == "gelu"


def test_switches_decide_whether_a_number_counts():
    groups = {"multi_query_group_num": 2, "multi_query_attention": True}
    assert model(DENSE | groups)["kv_heads"] == 16 // 8
    assert "kv_heads" not in model(DENSE | groups | {"multi_query_attention": False})
    assert model(DENSE | {"model_type": "hunyuan_v1_moe"})["qk_norm"] is True
    assert model(DENSE | {"model_type": "hunyuan_v1_moe", "use_qk_norm": False})["qk_norm"] is False
    shared = EXPERTS | {"num_shared_expert": [1] * 12, "use_mixed_mlp_moe": True}
    assert model(shared)["experts"]["shared"] == 1
    for switch in ("use_mixed_mlp_moe", "moe_router_enable_shared_expert"):
        assert model(shared | {switch: True}) == model(shared)
        assert "shared" not in model(shared | {switch: False})["experts"]


def test_without_experts_the_shared_mlp_is_the_only_one():
    """Granite 4.0 Micro: its `intermediate_size` is that of experts, of which there are none."""
    assert model(DENSE | {"num_local_experts": 0, "shared_intermediate_size": 8192})["ffn"] == 8192
    assert model(DENSE | {"num_local_experts": 0, "shared_intermediate_size": 0})["ffn"] == 4096


VIT = {
    "model_type": "vit", "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16,
    "intermediate_size": 4096, "image_size": 224, "patch_size": 16, "num_channels": 3, "qkv_bias": True,
}  # fmt: skip


def test_vision_transformers_are_read():
    labelled = read(VIT | {"id2label": {str(label): "cat" for label in range(10)}, "hidden_act": "gelu"})
    assert nested(labelled.values)["model"] == {
        "kind": "vision", "layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "patch": 16, "image": 224,
        "classes": 10,
    }  # fmt: skip
    assert (labelled.unread, labelled.idle) == ((), ())
    text, unknown = scenario_file("mine", labelled, ["cluster.gpu=h100", "batch=64"])
    assert unknown == []
    assert "kind: vision" in text


def test_vision_transformers_say_what_they_leave_open():
    assert "model.classes: 1000: there is no id2label" in read(VIT).assumed
    assert read(VIT | {"qkv_bias": False}).unread == ("qkv_bias: false",)
    with pytest.raises(UsageError, match="patch_size missing"):
        read(VIT | {"patch_size": None})
    with pytest.raises(UsageError, match="num_experts: 8"):
        read(VIT | {"num_experts": 8})


def test_sizes_that_a_family_has_by_default_are_said():
    """Gemma 3 4B states four sizes (transformers, configuration_gemma3.py, has the others)."""
    stated = {"num_hidden_layers": 34, "hidden_size": 2560, "intermediate_size": 10240, "sliding_window": 1024}
    imported = read({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **stated}})
    found = nested(imported.values)["model"]
    assert (found["heads"], found["kv_heads"], found["head_size"], found["vocab"]) == (8, 4, 256, 262208)
    assert "model.heads: 8: num_attention_heads is missing; the default of gemma3_text" in imported.assumed
    assert not any("is missing" in line for line in read(DENSE | {"model_type": "gemma3_text", "head_dim": 64,
                   "num_key_value_heads": 4}).assumed)  # fmt: skip
