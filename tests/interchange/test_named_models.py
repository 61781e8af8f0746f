"""A model by name or configuration, together with a launch: `init --from MODEL --from-megatron LINE`."""

import json
from pathlib import Path

import pytest

from hybrid_des.interchange.frameworks.launch_line import launch_in
from hybrid_des.interchange.frameworks.megatron import FLAGS
from hybrid_des.interchange.frameworks.named_model import read_model, read_with_model
from hybrid_des.scenario.loading import load
from hybrid_des.workload.models.catalogue import expanded, names

LINE = "torchrun --nnodes 2 --nproc-per-node 8 train.py --tensor-model-parallel-size 4 --bf16 --global-batch-size 64"
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 96,
    "num_key_value_heads": 4, "vocab_size": 128, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
TRANSFORMERS = [name for name in names() if "kind" not in expanded({"base": name})]


def read(model, line):
    name, imported = read_model(model)
    return read_with_model(launch_in(line, "line", FLAGS), "line", imported, model or name)


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize("given", ["tiny", "tiny/config.json"])
def test_a_configuration_and_a_launch_are_one_job(run, config, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    line = f"{LINE} --seq-length 512 --micro-batch-size 2"
    code, out, err = run("init", "mine", "--from", given, "--from-megatron", line, "--set", "cluster.gpu=h100")
    assert (code, out) == (0, "mine.yaml: run it with hybrid-des mine.yaml\n"), err
    scenario = load("mine.yaml")
    options = scenario.model.options
    assert (options.layers, options.ffn, options.kv_heads, options.vocab) == (4, 96, 4, 512)
    assert (options.norm, options.positions, options.tied, options.mlp) == ("rms", "rotary", False, "swiglu")
    assert options.sequence == 512
    assert "written: megatron" in Path("mine.yaml").read_text()
    assert (scenario.parallel.tensor, scenario.parallel.data, scenario.schedule.microbatch_size) == (4, 4, 2)
    assert not any("model.sequence" in one or "do not say" in one or "does not say them" in one for one in err)


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_a_published_model_keeps_its_name(model):
    imported = read(model, LINE)
    vocabulary = expanded({"base": model})["vocab"]
    padded = -(-vocabulary // (128 * 4)) * 128 * 4  # Megatron-LM's --make-vocab-size-divisible-by, on 4 tensor ranks
    wider = {"model.vocab": padded} if padded > vocabulary else {}
    assert {path: value for path, value in imported.values.items() if path.startswith("model")} == {
        "model.base": model, **wider, "model.written": "megatron",
    }  # fmt: skip
    said = f"model.vocab: {padded}: padded for tensor ranks; {model} has {vocabulary}"
    assert (said in imported.assumed) is bool(wider)


def test_a_published_model_needs_no_launch(run, tmp_path):
    code, _, err = run("init", "--from", "llama3.1-8b", "--out", tmp_path)
    assert code == 0
    assert "assumed: model.sequence: 8192: that of the published model; state that of training" in err
    assert load(tmp_path / "llama3.1-8b.yaml").model.options.layers == 32


def test_sizes_that_the_launch_states_count():
    """As in programs that name a model and override some of it; each is said."""
    imported = read("llama3.1-8b", f"{LINE} --seq-length 4096 --num-layers 8 --normalization LayerNorm")
    model = {path: value for path, value in imported.values.items() if path.startswith("model")}
    assert model == {
        "model.base": "llama3.1-8b", "model.layers": 8, "model.norm": "layer", "model.sequence": 4096,
        "model.vocab": 128512, "model.written": "megatron",
    }  # fmt: skip
    assert "model.layers: 8: as the launch says; llama3.1-8b has 32" in imported.assumed
    assert "model.norm: layer: as the launch says; llama3.1-8b has rms" in imported.assumed
    assert not any(line.startswith("model.sequence") for line in imported.assumed)


def test_the_same_sizes_are_no_difference():
    sizes = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu --seq-length 8192"
    imported = read("llama3.1-8b", f"{LINE} {sizes}")
    assert imported.values["model.base"] == "llama3.1-8b"
    assert not any("as the launch says" in line or line.startswith("model.sequence") for line in imported.assumed)


def test_a_sequence_that_nothing_states_is_the_models(config):
    assert any(line.startswith("model.sequence: 4096: the longest") for line in read(str(config), LINE).assumed)
    assert any(line.startswith("model.sequence: 8192: that of") for line in read("llama3.1-8b", LINE).assumed)


def test_a_launch_is_checked_with_the_sizes_of_its_model():
    line = LINE.replace("size 4", "size 3").replace("per-node 8", "per-node 6")
    assert any(one.startswith("--num-query-groups") for one in read("llama3.1-8b", line).refused)
    assert not any("--moe-grouped-gemm" in one for one in read("mixtral-8x7b", LINE.replace("--bf16", "")).refused)


def test_sizes_under_conditions_of_a_script_are_asked_for(run, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"TP=2\n[ -f /x ] && A='--num-layers 4'\n{LINE.replace('size 4', 'size $TP')} $A\n")
    words = ("init", "--from", "llama3.1-8b", "--from-megatron", script, "--out", tmp_path)
    code, out, err = run(*words, "--json")
    assert (code, json.loads(out)["unknown"]) == (0, ["model.layers"]), err
    (tmp_path / "run.yaml").unlink()
    code, _, err = run(*words, "--set", "model.layers=4")
    scenario = load(tmp_path / "run.yaml")
    assert (code, scenario.model.options.layers, scenario.parallel.tensor) == (0, 4, 2)


@pytest.mark.parametrize(("given", "said"), [
    ("llama3.1-8", '--from llama3.1-8: no such file or folder, and as a published model unknown "llama3.1-8"; did'),
    ("nowhere.json", "nowhere.json: No such file"),
    (".", "config.json: No such file"),
])  # fmt: skip
def test_a_model_that_is_not_there_is_named(refused, given, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused("init", "x", "--from", given, "--from-megatron", LINE)


def test_a_launch_of_another_kind_of_model_is_refused(refused):
    assert "--from resnet-50: no transformer" in refused("init", "x", "--from", "resnet-50", "--from-megatron", LINE)


def test_minor_flags_come_last_after_what_the_model_has(config):
    (config / "config.json").write_text(json.dumps(CONFIG | {"invented": 7}))
    imported = read(str(config), f"{LINE} --some-word 3")
    assert imported.unread[-imported.minor :] == ("--some-word 3",)
