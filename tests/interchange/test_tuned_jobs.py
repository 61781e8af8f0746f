"""Adapters, optimizers and groups that shard, as configurations of other programs state them."""

import pytest

from hybrid_des.interchange.jobs import read_job
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.loading import scenario_from

CLUSTER = {"cluster.nodes": 1, "cluster.gpus_per_node": 8}
ALL = ["queries", "keys", "values", "output", "up", "down"]


def read(folder, text, *, name="job.yaml", **fixed):
    """The values of a job, which make a scenario."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    stated = {**CLUSTER, **{key.replace("__", "."): value for key, value in fixed.items()}}
    imported = read_job([file], fixed=stated)
    scenario_from({"name": "job", **nested({**imported.values, "cluster.gpu": "h100", "record": "compute", **stated})})
    return imported


AXOLOTL = "{base_model: meta-llama/Llama-3.1-8B, micro_batch_size: 1, sequence_len: 4096, datasets: [x], bf16: true, "
FACTORY = "{model_name_or_path: meta-llama/Llama-3.1-8B, stage: sft, cutoff_len: 4096, bf16: true, "
TRL = "{model_name_or_path: meta-llama/Llama-3.1-8B, per_device_train_batch_size: 1, max_length: 4096, bf16: true, "
TUNE = (
    "{{model: {{_component_: torchtune.models.llama3_1.lora_llama3_1_8b, {model}}}, tokenizer: {{_component_: "
    "torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}}, batch_size: 1, dtype: bf16}}"
)


@pytest.mark.parametrize(
    ("text", "rank", "on"),
    [
        (AXOLOTL + "adapter: lora, lora_r: 32, lora_target_linear: true}", 32, ALL),
        (AXOLOTL + "adapter: lora, lora_r: 16, lora_target_modules: [q_proj, v_proj]}", 16, ["queries", "values"]),
        (FACTORY + "finetuning_type: lora}", 8, ALL),
        (FACTORY + "finetuning_type: lora, lora_rank: 64, lora_target: 'q_proj,o_proj'}", 64, ["queries", "output"]),
        (TRL + "use_peft: true}", 16, ["queries", "values"]),
        (TRL + "use_peft: true, lora_r: 4, lora_target_modules: [down_proj]}", 4, ["down"]),
        (TUNE.format(model="lora_rank: 12, lora_attn_modules: [q_proj, output_proj], apply_lora_to_mlp: true"), 12,
         ["queries", "output", "up", "down"]),
    ],
)  # fmt: skip
def test_adapters_are_read(tmp_path, text, rank, on):
    values = read(tmp_path, text).values
    assert values["model.frozen"] == "all"
    assert values["model.adapters"] == {"rank": rank, "on": on}


def test_settings_of_adapters_count_with_adapters_only(tmp_path):
    for text in (TRL + "lora_r: 4}", AXOLOTL + "lora_r: 4}", FACTORY + "finetuning_type: full}"):
        values = read(tmp_path, text).values
        assert not [path for path in values if "adapter" in path or "frozen" in path or "rank" in path]


def test_modules_that_are_not_known_are_named(tmp_path):
    found = read(tmp_path, AXOLOTL + "adapter: lora, lora_r: 8, lora_target_modules: [q_proj, in_proj]}")
    assert "adapters on in_proj: not described here, and not counted" in found.unread


def test_modules_of_a_launch_line_are_all_read(tmp_path):
    line = (
        "torchrun --nnodes 1 --nproc-per-node 8 sft.py --model_name_or_path meta-llama/Llama-3.1-8B "
        "--per_device_train_batch_size 1 --learning_rate 1e-4 --use_peft true --lora_target_modules q_proj k_proj\n"
    )
    values = read(tmp_path, line, name="run.sh").values
    assert values["model.adapters"]["on"] == ["queries", "keys"]


def test_a_peft_of_megatron_bridge_is_read(tmp_path):
    text = (
        "{model: {num_layers: 4, hidden_size: 256, num_attention_heads: 4, ffn_hidden_size: 512, vocab_size: 1024, "
        "seq_length: 512, tensor_model_parallel_size: 1}, train: {global_batch_size: 64, micro_batch_size: 1}, "
        "peft: {_target_: megatron.bridge.peft.lora.LoRA, dim: 16, alpha: 32, target_modules: [linear_qkv]}}"
    )
    values = read(tmp_path, text).values
    assert (values["model.frozen"], values["model.adapters"]) == (
        "all", {"rank": 16, "on": ["queries", "keys", "values"]},
    )  # fmt: skip


def test_a_hybrid_of_megatron_bridge_is_read(tmp_path):
    text = (
        "{model: {hybrid_layer_pattern: 'M-*-', is_hybrid_model: true, hidden_size: 256, num_attention_heads: 4, "
        "ffn_hidden_size: 512, vocab_size: 1024, seq_length: 512, mamba_num_heads: 8, mamba_head_dim: 64, "
        "tensor_model_parallel_size: 1}, train: {global_batch_size: 64, micro_batch_size: 1}, "
        "optimizer: {optimizer: dist_muon, muon_num_ns_steps: 3}}"
    )
    values = read(tmp_path, text).values
    assert (values["model.layers"], values["model.mamba"]["heads"]) == (4, 8)
    assert (values["optimizer.kind"], values["optimizer.muon"]) == ("muon", {"iterations": 3})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (AXOLOTL + "optimizer: adamw_bnb_8bit}", "adam-8bit"),
        (AXOLOTL + "optimizer: adamw_torch_fused}", None),
        (FACTORY + "finetuning_type: full, optim: adamw_8bit}", "adam-8bit"),
        (TRL + "optim: lion_32bit}", "lion"),
        ("{train_micro_batch_size_per_gpu: 1, optimizer: {type: Muon}, zero_optimization: {stage: 2}}", "muon"),
        ("{train_micro_batch_size_per_gpu: 1, optimizer: {type: Lion}, zero_optimization: {stage: 2}}", "lion"),
    ],
)
def test_optimizers_are_read(tmp_path, text, kind):
    found = read(tmp_path, text, model__base="llama3.1-8b")
    assert found.values.get("optimizer.kind") == kind
    assert not [line for line in found.unread if "optim" in line]


ACCELERATE = "{distributed_type: FSDP, num_machines: 4, num_processes: 32, mixed_precision: bf16, fsdp_config: "
DEEPSPEED = "{train_micro_batch_size_per_gpu: 1, zero_optimization: "
TITAN = "{training: {seq_len: 4096, local_batch_size: 2}, parallelism: "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ACCELERATE + "{fsdp_sharding_strategy: HYBRID_SHARD}}", {"sharding": "zero-3", "ranks": 8}),
        (ACCELERATE + "{fsdp_sharding_strategy: HYBRID_SHARD_ZERO2}}", {"sharding": "zero-2", "ranks": 8}),
        (ACCELERATE + "{fsdp_sharding_strategy: FULL_SHARD}}", {"sharding": "zero-3"}),
        (DEEPSPEED + "{stage: 3, zero_hpz_partition_size: 8}}",
         {"sharding": "zero-3", "ranks": 8, "outside": "zero-1"}),
        (DEEPSPEED + "{stage: 3, mics_shard_size: 4}}", {"sharding": "zero-3", "ranks": 4}),
        (TITAN + "{data_parallel_replicate_degree: 4, data_parallel_shard_degree: 8}}",
         {"sharding": "zero-3", "ranks": 8}),
        (TITAN + "{data_parallel_replicate_degree: 2, data_parallel_shard_degree: -1, context_parallel_degree: 2}}",
         {"sharding": "zero-3", "ranks": 16}),
        (TITAN + "{pipeline_parallel_degree: 2, data_parallel_replicate_degree: 2, data_parallel_shard_degree: 8, "
         "fsdp_reshard_after_forward: always}}", {"sharding": "zero-3", "ranks": 8, "reshard": True}),
        (TITAN + "{pipeline_parallel_degree: 2, data_parallel_shard_degree: 16}}", {"sharding": "zero-2"}),
    ],
)  # fmt: skip
def test_groups_that_shard_are_read(tmp_path, text, expected):
    found = read(tmp_path, text, model__base="llama3-8b", cluster__nodes=4)
    own = {path.removeprefix("shards."): value for path, value in found.values.items() if path.startswith("shards.")}
    assert {"sharding": found.values["sharding"], **own} == expected
    assert not [line for line in (*found.assumed, *found.unread) if line.startswith("sharding")]


def test_groups_in_a_pipeline_that_holds_weights_are_read(tmp_path):
    text = TITAN + "{pipeline_parallel_degree: 2, data_parallel_replicate_degree: 2, data_parallel_shard_degree: 8}}"
    found = read(tmp_path, text, model__base="llama3-8b", cluster__nodes=4)
    assert (found.values["sharding"], found.values["shards.ranks"]) == ("zero-2", 8)
    assert not [line for line in found.assumed if line.startswith("sharding")]
