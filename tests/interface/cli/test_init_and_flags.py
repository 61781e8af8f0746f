"""`hybrid-des init` from other programs, and `hybrid-des export`."""

import json

import pytest
from support.tables import from_table

from hybrid_des.scenario.loading import load
from hybrid_des.scenario.sizes import too_large

LINE = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 256 --num-attention-heads 4 "
    "--seq-length 512 --max-position-embeddings 512 --tensor-model-parallel-size 2 --micro-batch-size 1 "
    "--global-batch-size 16 --bf16 --new-flag 3"
)


def test_a_line_becomes_a_scenario_that_runs(run, tmp_path):
    words = ("--set", "model.vocab=1000", "--set", "cluster.gpu=h100", "--out", tmp_path)
    code, out, err = run("init", "mine", "--from-megatron", LINE, *words)
    assert (code, out) == (0, f"{tmp_path}/mine.yaml: run it with hybrid-des {tmp_path}/mine.yaml\n")
    assert "not understood: --new-flag 3" in err
    scenario = load(tmp_path / "mine.yaml")
    assert (scenario.name, scenario.parallel.data, scenario.cluster.gpus) == ("mine", 8, 16)
    assert run(tmp_path / "mine.yaml")[0] == 0


def test_a_line_may_be_longer_than_names_of_files(run, tmp_path):
    line = f"{LINE} {' '.join(f'--new-{number} 1' for number in range(30))}"
    words = ("init", "mine", "--from-megatron", line, "--set", "model.vocab=1000", "--out", tmp_path)
    code, _, err = run(*words)
    assert len(line) > 255
    assert (code, load(tmp_path / "mine.yaml").model.options.layers) == (0, 8)
    assert any(line.endswith("--new-6 1, 23 more (--verbose lists them)") for line in err)
    assert any("--new-29 1" in line for line in run(*words, "--verbose")[2])


def test_what_cannot_be_read_is_stated_in_the_same_command(run, tmp_path):
    line = LINE.replace("--nproc-per-node 8", "--nproc-per-node gpu").replace("--seq-length 512", "--seq-length $SEQ")
    words = ("init", "mine", "--from-megatron", line, "--set", "model.vocab=1000", "--set", "cluster.gpu=h100")
    code, out, err = run(*words, "--out", tmp_path / "left")
    assert (code, out) == (0, f"{tmp_path}/left/mine.yaml: state what is UNKNOWN, then run it\n")
    assert {"unknown: model.sequence", "unknown: cluster.gpus_per_node", "unknown: parallel.data"} <= {*err}
    more = ("--set", "model.sequence=512", "--set", "cluster.gpus_per_node=8")
    assert run(*words, *more, "--out", tmp_path)[0] == 0
    assert load(tmp_path / "mine.yaml").parallel.data == 8
    assert run(tmp_path / "mine.yaml")[0] == 0


def test_settings_without_effect_are_counted(run, tmp_path):
    words = ("init", "mine", "--from-megatron", f"{LINE} --lr 1e-4 --seed 1", "--out", tmp_path)
    assert "without effect on a step: 2 (--verbose lists them)" in run(*words)[2]
    assert "without effect on a step: --lr 1e-4, --seed 1" in run(*words, "--verbose")[2]


WIDE = (
    "torchrun --nnodes {} --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 "
    "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 "
    "--pipeline-model-parallel-size 12 --global-batch-size {} --bf16 --overlap-grad-reduce"
)
BUCKETS = ("--set", "cluster.gpu=h100", "--set", "gradients.bucket_rule=ddp")  # in trees that fold on no replica


def test_no_file_is_refused_by_the_run_it_names(run, tmp_path):
    """1.7e8 messages are too many to record, and twice as many nodes have too many to be simulated."""
    code, _, err = run("init", "wide", "--from-megatron", WIDE.format(144, 768), *BUCKETS, "--out", tmp_path)
    assert code == 0 and any(line.startswith("assumed: record: compute, as 1.") for line in err)
    scenario = load(tmp_path / "wide.yaml")
    assert scenario.record == "compute" and not too_large(scenario, scenario.parallel.data)
    assert too_large(scenario.model_copy(update={"record": "all"}), scenario.parallel.data)
    code, out, err = run("init", "wider", "--from-megatron", WIDE.format(288, 1536), *BUCKETS, "--out", tmp_path)
    assert (code, out) == (2, "") and not (tmp_path / "wider.yaml").exists()
    (line,) = err
    assert line.startswith("wider: ") and "messages are more than can be simulated" in line


LEAVES = (
    "cluster.gpu=h100", "cluster.topology=leaf-spine", "cluster.leaf_size=2", "cluster.oversubscription=2",
    "gradients.bucket=20 kB", "gradients.pad=true",
)  # fmt: skip


@pytest.mark.slow
def test_no_file_needs_a_fold_that_messages_show_inexact(run, tmp_path):
    """Pieces are alike, but replicas share the links of leaf switches, so that 3.9e8 messages cannot be left out."""
    small = (
        "torchrun --nnodes 32 --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256 "
        "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --vocab-size 1024 --global-batch-size 256"
    )
    words = (word for setting in LEAVES for word in ("--set", setting))
    code, out, (line,) = run("init", "leaves", "--from-megatron", small, *words, "--out", tmp_path)
    assert (code, out) == (2, "") and not (tmp_path / "leaves.yaml").exists()
    assert line.startswith("leaves: 3.9e+08 messages are more than can be simulated")
    assert line.endswith("replicas differ: link leaf1/up carries the messages of several replicas")


def test_what_a_line_leaves_out_is_asked_for(run, tmp_path):
    code, out, _ = run("init", "--from-megatron", LINE, "--json", "--out", tmp_path)
    found = json.loads(out)
    assert (code, found["unknown"]) == (0, ["model.vocab"])
    assert "vocab: UNKNOWN" in (tmp_path / "megatron.yaml").read_text()


def test_a_configuration_is_named_after_its_folder(run, tmp_path):
    config = {
        "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 100, "max_position_embeddings": 32,
    }  # fmt: skip
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    code, _, _ = run("init", "--from", folder / "config.json", "--out", tmp_path)
    assert (code, load(tmp_path / "tiny.yaml").model.options.layers) == (0, 4)


def test_a_refused_line_is_warned_of(run, tmp_path):
    line = f"{LINE} --vocab-size 1000 --optimizer-cpu-offload --use-distributed-optimizer"
    code, _, err = run("init", "mine", "--from-megatron", line, "--out", tmp_path)
    assert code == 0
    assert "refused by Megatron-LM: --optimizer-cpu-offload: expected --use-precision-aware-optimizer" in err
    assert "# refused by the framework: --optimizer-cpu-offload" in (tmp_path / "mine.yaml").read_text()


@from_table
def test_what_cannot_be_started_from_is_refused(refused, arguments, said):
    assert said in refused("init", *arguments)


def test_the_line_of_a_scenario_is_a_shell_command(ran, scenarios):
    out, _ = ran("export", scenarios / "llama3.1-70b_128.yaml", "--for", "megatron")
    assert out.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 16 --nproc-per-node 8 pretrain_gpt.py \\\n")
    out, _ = ran("export", scenarios / "a100_8x.yaml", "--for", "torchtitan")
    assert out.startswith("# no flag: model: register a configuration")
    out, _ = ran("export", scenarios / "llama3.1-70b_128.yaml", "--for", "megatron", "--json")
    assert "--num-layers 80" in json.loads(out)["flags"]
