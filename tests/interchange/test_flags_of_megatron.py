"""Flags of Megatron-LM: what is read of them, what is asked for, and what is wrong without an equal."""

import pytest
from support.tables import from_table

from hybrid_des.interchange.frameworks import megatron
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.megatron_unknown import STATES
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, scenario_file
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, scenario_from

SIZES = {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1408, "vocab": 32000, "sequence": 1024}
LLAMA = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --swiglu --normalization RMSNorm --position-embedding-type rope --vocab-size 128256 "
    "--untie-embeddings-and-output-weights --disable-bias-linear --seq-length 8192 --max-position-embeddings 8192 "
)
RUN = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 2048 --vocab-size 32000 --bf16"
)


def again(launch):
    """The scenario of a written line."""
    values = nested(read_megatron(f"{launch.program} {' '.join(launch.flags)}", "line").values)
    values["cluster"]["gpu"] = "gb200"
    return to_mapping(scenario_from({**values, "name": "scenario"}))


def at(values, path):
    """A value by path, which may lie within another; None without it."""
    if path in values:
        return values[path]
    inside = next((one for one in values if path.startswith(f"{one}.") and isinstance(values[one], dict)), None)
    return inside and values[inside].get(path.removeprefix(f"{inside}."))


@pytest.mark.parametrize(("flags", "library"), [
    ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
    ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep", None),
    ("--moe-token-dispatcher-type alltoall --moe-flex-dispatcher-backend hybridep", None),
])  # fmt: skip
def test_the_library_of_exchanges_once_per_node_is_read(flags, library):
    experts = "--num-experts 16 --moe-ffn-hidden-size 256 --moe-router-topk 2 --expert-model-parallel-size"
    of_ranks, alone = (read_megatron(f"{RUN} {experts} {count} {flags}", "line").values for count in (8, 1))
    assert (of_ranks.get("experts.library"), alone.get("experts.library")) == (library, None)


@from_table
def test_what_cannot_be_read_is_asked_for(line, path, said):
    found = read_megatron(f"{line} --hidden-size 64", "line")
    assert at(found.values, path) == UNKNOWN
    assert any(said in one for one in found.unread)


UNSAID = {  # switches, and what other flags of the line below replace
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split", "--num-key-value-heads",
    "--recompute-modules", "--main-grads-dtype",
}  # fmt: skip


@pytest.mark.parametrize("flag", sorted({*STATES} - UNSAID))
def test_no_value_that_is_missing_ends_the_reading(flag):
    around = (
        "--num-experts 8 --context-parallel-size 2 --pipeline-model-parallel-size 2 --multi-latent-attention "
        "--hidden-size 64 --group-query-attention --recompute-granularity full --fp8-format hybrid "
        "--dynamic-context-parallel --window-size 127,0 --use-precision-aware-optimizer --deepspeed"
    )
    found = read_megatron(f"{around} {flag} $X", "line")
    assert any(one.startswith(f"{flag}: $X has no value in the script") for one in found.unread)


def test_what_is_stated_takes_the_place_of_flags():
    line = (
        f"torchrun --nnodes $N --nproc-per-node gpu pretrain_gpt.py {LLAMA} --bf16 --tensor-model-parallel-size $T "
        "--num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size $P"
    )
    stated = ["cluster.nodes=4", "cluster.gpus_per_node=8, parallel.tensor=2", "parallel.pipeline=4"]
    found = read_megatron(line, "line", overrides=stated)
    assert found.values["parallel.data"] == 4
    assert found.values["batch"] == 4
    assert (found.values["schedule.kind"], found.values["schedule.chunks"]) == ("interleaved-1f1b", 4)
    assert not any("has no value" in one for one in found.unread)
    assert scenario_file("x", found, [*stated, "cluster.gpu=h100"])[1] == []


@from_table
def test_what_has_no_equal_says_what_is_wrong(flags, said):
    found = read_megatron(f"{RUN} {flags}", "line")
    (line,) = found.unmodelled
    assert line.startswith("--") and said in line
    assert not any(line.split(":")[0].split()[0] in one for one in (*found.unread, *found.idle))


@from_table
def test_values_of_a_step_are_read(flags, values):
    found = read_megatron(f"{RUN} {flags}", "line")
    assert {path: found.values.get(path) for path in values} == values
    assert found.unread == ()


def test_what_touches_a_step_is_named_first():
    flags = "--reward-name x --moe-new-thing 2 --colour blue --fp8-param-gather --seed 1"
    found = read_megatron(f"{RUN} {flags}", "line")
    assert [line.split()[0] for line in found.unread] == ["--moe-new-thing", "--reward-name", "--colour"]
    assert found.minor == 2
    text, _ = scenario_file("x", found, ["cluster.gpu=h100"])
    assert text.startswith("# not modelled: --fp8-param-gather: ")
    assert "# not understood: --colour blue\n" in text


def test_a_padded_vocabulary_keeps_the_name_of_its_model():
    line = f"torchrun --nnodes 1 --nproc-per-node 8 x.py {LLAMA} --tensor-model-parallel-size 8 --bf16"
    found = read_megatron(line, "line")
    assert nested(found.values)["model"] == {"base": "llama3-8b", "vocab": 129024, "written": "megatron"}
    assert "model.vocab: 129024: 128256 padded for tensor ranks, as Megatron-LM does" in found.assumed


@pytest.mark.parametrize("values", [
    {"window": 128, "window_every": 2}, {"window": 512, "window_every": 1}, {"vocab": 32008},
])  # fmt: skip
def test_windows_and_vocabularies_come_back_as_written(values):
    scenario = scenario_from({
        "cluster": {"gpu": "gb200", "nodes": 1, "gpus_per_node": 4}, "model": SIZES | {"written": "megatron"} | values,
        "parallel": {"tensor": 2, "data": 2}, "batch": 8, "gradients": {"codec": "fp32"},
    })  # fmt: skip
    launch = megatron(scenario)
    assert launch.unsaid == ()
    assert again(launch) == to_mapping(scenario)


def test_capacities_of_experts_come_back_as_written():
    scenario = scenario_from({
        "model": "mixtral-8x7b", "cluster": {"gpu": "gb200", "nodes": 1, "gpus_per_node": 8}, "batch": 8,
        "parallel": {"data": 8, "expert": 8},
        "experts": {"dispatcher": "all-to-all", "capacity_factor": 1.25, "pad": True},
    })  # fmt: skip
    launch = megatron(scenario)
    assert again(launch)["experts"] == to_mapping(scenario)["experts"]


DEEPSPEED = f"deepspeed pretrain_gpt.py {RUN.partition('pretrain_gpt.py ')[2]} --deepspeed --num-gpus 8 --num-nodes 2"
CONFIG = '{"train_batch_size": 64, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
WRITTEN = f"C=$OUT/ds.json\nZ=2\ncat <<EOT > $C\n{CONFIG.replace('2', '$Z')}\nEOT\n{DEEPSPEED} --deepspeed_config=$C\n"


def test_a_configuration_of_deepspeed_that_a_script_writes_counts():
    values = read_megatron(WRITTEN, "train.sh").values
    assert (values["sharding"], values["batch"]) == ("zero-2", 64)


def test_a_configuration_of_deepspeed_beside_a_script_counts(tmp_path):
    (tmp_path / "ds.json").write_text(CONFIG)
    line = f"{DEEPSPEED} --deepspeed_config ds.json --zero-stage 1 --global-batch-size 64"
    found = read_megatron(line, str(tmp_path / "train.sh"), is_file=True)
    assert (found.values["sharding"], found.values["batch"]) == ("zero-2", 64)
    assert found.unread == ("--zero-stage 1: 2 in --deepspeed-config ds.json, which counts",)


@pytest.mark.parametrize(("text", "said"), [(None, "not found beside the script"), ("{", "not JSON")])
def test_a_configuration_of_deepspeed_that_is_missing_is_said(tmp_path, text, said):
    if text is not None:
        (tmp_path / "ds.json").write_text(text)
    found = read_megatron(f"{DEEPSPEED} --deepspeed_config ds.json", str(tmp_path / "train.sh"), is_file=True)
    (line,) = found.unread
    assert f"--deepspeed-config ds.json: {said}: its ZeRO stage" in line


@from_table
def test_variables_of_the_environment_count(variables, values, said):
    found = read_megatron(f"export {variables}\n{RUN}", "train.sh")
    assert {path: found.values.get(path) for path in values} == values
    assert [line.partition(":")[0] for line in found.unmodelled] == said


def test_variables_of_this_process_count_unless_the_script_sets_them():
    script = (
        f'PP=2\nPP=${{PP:-1}}\n[ "$SIZE" = big ] && E="--seq-length 4096"\n{RUN} $E --tensor-model-parallel-size $TP'
    )
    around = {"TP": "4", "SIZE": "big", "PP": "8", "HOME": "/root", "OTHER": "1"}
    found = read_megatron(f"{script} --pipeline-model-parallel-size $PP --save $HOME/x", "train.sh", environment=around)
    values = found.values
    assert (values["parallel.tensor"], values["parallel.pipeline"], values["model.sequence"]) == (4, 2, 4096)
    assert "environment: SIZE=big, TP=4: not set in the script" in found.assumed


def test_gpus_of_the_environment_count_without_flags():
    script = f"NNODES=2 NPROC_PER_NODE=4 megatron sft {RUN.partition('pretrain_gpt.py ')[2]}"
    values = read_megatron(script, "train.sh").values
    assert (values["cluster.nodes"], values["cluster.gpus_per_node"], values["parallel.data"]) == (2, 4, 8)
    assert read_megatron(f"export NNODES=9 NPROC_PER_NODE=4\n{RUN}", "train.sh").values["parallel.data"] == 16


def test_gpus_of_slime_are_those_of_its_actors():
    line = f"python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 4 {RUN.partition('pretrain_gpt.py ')[2]}"
    assert read_megatron(line, "train.sh").values["parallel.data"] == 8


def test_secrets_of_this_process_are_not_told():
    around = {"WANDB_API_KEY": "abc123", "HF_TOKEN": "def456"}
    found = read_megatron(f"{RUN} --wandb-key $WANDB_API_KEY --hub $HF_TOKEN", "train.sh", environment=around)
    assert not any("123" in line or "456" in line for lines in found[1:6] for line in lines)


@pytest.mark.parametrize(("change", "said"), [
    ("model={base: llama3.1-8b, norms: 4}", "model.norms"),
    ("optimizer.state=8", "optimizer.state: 8 B"),
])  # fmt: skip
def test_what_no_flag_says_of_models_and_optimizers_is_told(scenarios, change, said):
    launch = megatron(
        load(scenarios / "llama3.1-8b_8.yaml", ["parallel={tensor: 2, data: 4}", "recompute=none", change])
    )
    assert any(line.startswith(said) for line in launch.unsaid)


@from_table
def test_a_value_that_switches_layers_off_is_without_effect(flag):
    found = read_megatron(f"{RUN} {flag}", "line")
    assert found.values == read_megatron(RUN, "line").values
    name = flag.replace("=", " ").partition(" ")[0]
    assert found.unread == () and any(line.startswith(name) for line in found.idle)


def test_gradients_of_16_bits_may_be_said_twice():
    flags = "--grad-reduce-in-bf16 --use-precision-aware-optimizer --use-distributed-optimizer --main-grads-dtype bf16"
    found = read_megatron(f"{RUN} {flags}", "line")
    assert (found.values["gradients.codec"], found.unread) == ("bf16", ())
