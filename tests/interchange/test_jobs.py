"""Jobs of other programs: each value of a file is the scenario's, and what is not understood is named."""

import json
from pathlib import Path

import pytest
import yaml
from support.tables import from_table

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks import megatron, torchtitan
from hybrid_des.interchange.jobs import TOOLS, read_job
from hybrid_des.interchange.jobs.mappings import flat_mapping
from hybrid_des.interchange.jobs.model_names import model_called
from hybrid_des.interchange.jobs.tools import Tool, tool_of
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.workload.models.catalogue import names
from hybrid_des.workload.models.kinds.transformer import Transformer

JOBS = Path(__file__).with_name("jobs")
EXPECTED = yaml.safe_load((JOBS / "expected.yaml").read_text(encoding="utf-8"))
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 256,
}  # fmt: skip


def written(folder, text, name="job.yaml"):
    """A file of a job."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("file", EXPECTED)
def test_the_plan_is_that_of_the_file(file):
    wanted = EXPECTED[file]
    imported = read_job([JOBS / file], fixed=wanted.get("fixed"))
    assert {path: imported.values.get(path) for path in wanted["values"]} == wanted["values"]
    assert [*imported.unread] == wanted.get("not_understood", [])
    assert [line for line in wanted.get("assumed", []) if line not in imported.assumed] == []
    values = nested(dict(imported.values) | {"cluster.gpu": "h100"} | wanted.get("fixed", {}))
    scenario_from({**values, "name": "job"})


def test_every_program_has_a_file_and_is_recognised_by_it():
    programs = {name: name.partition(".")[0].partition("-")[0] for name in EXPECTED}
    flat = {name: flat_mapping((JOBS / name).read_text(encoding="utf-8"), name) for name in EXPECTED}
    assert {name: tool_of(flat[name], name).name for name in EXPECTED} == programs
    assert {*programs.values()} == {*TOOLS}


@pytest.mark.parametrize("name", [*TOOLS, "megatron"])
def test_a_table_names_its_source_and_what_scenarios_have(name):
    tool = Tool(name)
    quantities = {"gpus", "shards", "copies", "accumulation", "local_batch", "layers_per_stage", "less_first",
                  "less_last", "per_gpu", "batch", "model_name", "note", "without", "group", "adapter_rank",
                  "adapter_on", "adapter_mlp", "tuned_rank", "secondary"}  # fmt: skip
    entries = [*tool.table.keys.values(), {"values": tool.table.values}]
    mappings = [entry for entry in entries if isinstance(entry, dict)]
    several = [targets for entry in mappings for targets in entry.values() if isinstance(targets, dict)]
    targets = {entry for entry in entries if isinstance(entry, str)} | {key for one in several for key in one}
    targets |= {*tool.table.products, *tool.table.sums, *tool.table.joined}
    paths = {target for target in targets if not target.startswith("--")} - quantities
    assert tool.table.source
    assert {path for path in paths if path.partition(".")[0] not in Scenario.model_fields} == set()
    sizes = {path.partition(".")[2] for path in paths if path.startswith("model.")}
    assert sizes - {*Transformer.model_fields} <= {"base", "written"}


@from_table
def test_a_wrong_job_is_answered_in_one_line(tmp_path, text, said):
    with pytest.raises(UsageError) as error:
        read_job([written(tmp_path, text)])
    assert said in str(error.value) and "\n" not in str(error.value) and str(error.value).startswith(str(tmp_path))


def test_aliases_do_not_grow_without_end(tmp_path):
    levels = "\n".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 40))
    with pytest.raises(UsageError, match="more than 20,000 keys"):
        read_job([written(tmp_path, f"a0: &a0 {{x: 1}}\n{levels}\n")])


@from_table
def test_a_model_is_known_by_its_name(name, model):
    assert model_called(name) == model


def test_every_published_model_is_known_by_its_own_name():
    assert {name: model_called(name) for name in names()} == {name: name for name in names()}


def test_the_number_of_nodes_gives_replicas(tmp_path):
    file = written(tmp_path, "zero_optimization: {stage: 2}\ntrain_micro_batch_size_per_gpu: 4\n")
    assert read_job([file]).values["parallel.data"] == "UNKNOWN"
    values = read_job([file], fixed={"cluster.nodes": 3, "cluster.gpus_per_node": 4}).values
    assert (values["parallel.data"], values["cluster.nodes"]) == (12, 3)


def test_torchrun_without_nodes_starts_on_one(tmp_path):
    line = "torchrun --nproc-per-node 4 train.py --model_name_or_path meta-llama/Llama-2-7b-hf"
    job = written(tmp_path, f"{line} --per_device_train_batch_size 2 --fsdp 'full_shard auto_wrap'\n", "run.sh")
    one, two = read_job([job]), read_job([job], fixed={"cluster.nodes": 2})
    assert (one.values["cluster.nodes"], one.values["parallel.data"], two.values["parallel.data"]) == (1, 4, 8)
    assert "cluster.nodes: 1: as torchrun starts without --nnodes" in one.assumed


def test_of_several_files_the_last_counts(tmp_path):
    first = written(tmp_path, '{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}', "zero.json")
    second = written(tmp_path, "distributed_type: DEEPSPEED\nnum_processes: 16\nnum_machines: 2\n", "accelerate.yaml")
    values = read_job([first, second]).values
    assert (values["sharding"], values["parallel.data"], values["cluster.nodes"]) == ("zero-3", 16, 2)


def test_states_on_hosts_need_layers_that_are_gathered_again(tmp_path):
    text = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_offload_params: true"
    text += ", fsdp_reshard_after_forward: "
    again, once = (read_job([written(tmp_path, f"{text}{word}}}\n")]) for word in ("true", "false"))
    assert (again.values["offload.optimizer"], again.values["offload.parameters"]) == (1, 1)
    assert (once.values["offload.optimizer"], "offload.parameters" in once.values) == (1, False)
    assert any(line.startswith("offload.parameters: 0") for line in once.assumed)
    assert not any(line.startswith("offload") for line in again.assumed)


def test_blocks_of_keys_that_pytorch_passes_on_are_a_ring(tmp_path):
    cards = "parallelism_config: {parallelism_config_cp_size: 4, parallelism_config_cp_comm_strategy: alltoall}\n"
    job = written(tmp_path, f"distributed_type: FSDP\nnum_processes: 8\n{cards}")
    assert read_job([job]).values["parallel.context_method"] == "ring"


def test_kernels_of_experts_that_no_job_names_are_said(tmp_path):
    """Of Hugging Face's models: what multiplies the experts follows from a release; Liger's kernels fuse blocks."""
    text = "model_name_or_path: {}\nper_device_train_batch_size: 1\nuse_liger_kernel: {}\n"
    said = {}
    for name, liger in [("Qwen/Qwen3-30B-A3B", "true"), ("Qwen/Qwen3-8B", "false")]:
        imported = read_job([written(tmp_path, text.format(name, liger))], fixed={"cluster.nodes": 1})
        assert imported.values["model.written"] == "transformers"
        assert imported.values.get("operators.blocks") == ("fused" if liger == "true" else None)
        said[name] = [line for line in imported.assumed if line.startswith("experts.kernel: fused")]
    assert [len(lines) for lines in said.values()] == [1, 0]


@pytest.mark.parametrize(("stated", "kernel"), [("grouped_mm", "fused"), ("eager", "per-expert")])
def test_kernels_of_experts_that_a_job_names_are_read(tmp_path, stated, kernel):
    text = "base_model: Qwen/Qwen3-30B-A3B\nmicro_batch_size: 1\nattn_implementation: flash_attention_2\n"
    job = written(tmp_path, f"{text}experts_implementation: {stated}\n")
    imported = read_job([job], fixed={"cluster.nodes": 1})
    assert imported.values["experts.kernel"] == kernel
    assert not [line for line in (*imported.assumed, *imported.unread) if "experts" in line or "attn" in line]


def test_operators_of_latent_attention_are_asked_for(tmp_path):
    text = "model: {name: deepseek_v3, flavor: 671B}\ntraining: {seq_len: 4096, local_batch_size: 4}\n"
    file = written(tmp_path, text)
    imported = read_job([file], fixed={"cluster.nodes": 64})
    assert (imported.values["model.base"], imported.values["recompute"]) == ("deepseek-v3", "UNKNOWN")
    assert any(line.startswith("recompute: UNKNOWN") for line in imported.unread)


def test_what_a_missing_file_would_say_is_unknown(tmp_path):
    text = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\ndeepspeed: configs/zero3.json\n"
    imported = read_job([written(tmp_path, text)])
    assert imported.values["sharding"] == "UNKNOWN"
    assert any(line.startswith("configs/zero3.json: named in job.yaml, but not beside it") for line in imported.unread)
    (tmp_path / "configs").mkdir()
    written(tmp_path / "configs", '{"zero_optimization": {"stage": 3}}', "zero3.json")
    assert read_job([tmp_path / "job.yaml"]).values["sharding"] == "zero-3"


def test_a_named_file_may_be_given_too(tmp_path):
    text = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\ndeepspeed: elsewhere/zero3.json\n"
    job, zero = written(tmp_path, text), written(tmp_path, '{"zero_optimization": {"stage": 3}}', "zero3.json")
    for files in ([job, zero], [zero, job]):
        imported = read_job(files)
        assert imported.values["sharding"] == "zero-3" and imported.unread == ()


def test_files_that_name_each_other_end(tmp_path):
    written(tmp_path, "base_config: b.yml\nmodel_name: llama2-7b\nper_device_batch_size: 1\n", "a.yml")
    written(tmp_path, "base_config: a.yml\nmax_target_length: 4096\n", "b.yml")
    imported = read_job([written(tmp_path, "base_config: a.yml\n", "c.yml")])
    assert imported.values["model.sequence"] == 4096
    assert [line.partition(",")[0] for line in imported.unread] == ["a.yml: named in b.yml"]


def test_ends_count_as_layers_of_virtual_stages(tmp_path):
    """94 layers, embedding and loss are 96, four virtual stages of three on each of eight ranks."""
    recipe = {"num_layers": 94, "pipeline_model_parallel_size": 8, "num_layers_per_virtual_pipeline_stage": 3}
    recipe |= {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    imported = read_job([written(tmp_path, json.dumps({"ARGS": recipe}))])
    assert (imported.values["schedule.chunks"], imported.values["parallel.stages"]) == (4, "ends-1")
    assert imported.refused == ()


MEGATRON_LINES = (
    "scenarios/llama3.1-70b_128.yaml", "scenarios/llama3.1-405b_512.yaml", "scenarios/mixtral-8x7b_64.yaml",
)  # fmt: skip


@pytest.mark.parametrize("name", MEGATRON_LINES)
def test_a_recipe_of_megatron_is_its_launch_line(name, tmp_path):
    """The flags of a line, one per key of a recipe, give what the line gives."""
    from hybrid_des.interchange.frameworks.launch_line import flags_in
    from hybrid_des.interchange.frameworks.megatron import read_megatron

    launch = megatron(load(name))
    flags = flags_in(" ".join(launch.flags), "line")
    recipe = {key[2:].replace("-", "_"): " ".join(words) if words else True for key, words in flags.items()}
    per_node = load(name).cluster.gpus_per_node
    fixed = {"cluster.nodes": load(name).parallel.ranks // per_node, "cluster.gpus_per_node": per_node}
    imported = read_job([written(tmp_path, json.dumps({"MODEL_ARGS": recipe}))], fixed=fixed)
    line = read_megatron(launch.text, "line").values
    assert {path: value for path, value in imported.values.items() if value is not None} == {
        path: value for path, value in line.items() if value is not None
    }


@from_table
def test_a_line_of_torchtitan_is_read_as_it_was_written(tmp_path, scenario):
    wanted = scenario_from({"name": "job", **scenario})
    launch = torchtitan(wanted)
    assert launch.unsaid == ()
    imported = read_job([written(tmp_path, launch.text, "line.sh")])
    assert imported.unread == ()
    values = nested(imported.values)
    values["cluster"]["gpu"] = "h100"
    assert to_mapping(scenario_from({"name": "job", **values})) == to_mapping(wanted)


@from_table
def test_weights_stay_gathered_in_a_pipeline_of_torchtitan(tmp_path, policy, pipeline, sharding):
    """`default` reshards after the forward without a pipeline only (get_fsdp_reshard_after_forward_policy)."""
    stated = f"fsdp_reshard_after_forward = '{policy}'\n" if policy else ""
    text = f"[parallelism]\npipeline_parallel_degree = {pipeline}\ndata_parallel_shard_degree = 4\n{stated}"
    job = written(tmp_path, f"[model]\nname = 'llama3'\nflavor = '8B'\n{text}", "job.toml")
    assert read_job([job]).values["sharding"] == sharding


def test_what_touches_model_plan_or_memory_comes_first(tmp_path):
    text = "zz_name: 1\nzero_optimization: {stage: 2, some_bucket: 5}\nother_word: 2\ntrain_batch_size: 8\n"
    job = written(tmp_path, f"{text}new_precision: 3\ncommunication_data_type: odd\n")
    imported = read_job([job], fixed={"cluster.nodes": 1, "model.base": "llama2-7b"})
    lines = ["zero_optimization.some_bucket: 5", "new_precision: 3", "communication_data_type: odd"]
    assert [*imported.unread] == [*lines, "zz_name: 1", "other_word: 2"]
    assert imported.minor == 2


def test_a_missing_model_is_said_before_settings(tmp_path):
    job = written(tmp_path, "base_model: someone/unheard-of\nmicro_batch_size: 1\nsome_batch: 2\n")
    first, *_ = read_job([job], "axolotl").unread
    assert first.startswith("model: someone/unheard-of: not in the catalogue")


def test_a_length_that_no_file_states_is_said(tmp_path):
    job = tmp_path / "launch.sh"
    job.write_text("deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B")
    silent, stated = read_job([job], "deepspeed"), read_job([job], "deepspeed", {"model.sequence": 1024})
    assert any(line.startswith("model.sequence: 8192: that of the published model") for line in silent.assumed)
    assert not any(line.startswith("model.sequence") for line in stated.assumed)
