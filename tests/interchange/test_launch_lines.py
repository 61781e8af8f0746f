"""Launch lines and configurations of frameworks: what is read is what was written, and nothing is dropped."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.tables import from_table

from hybrid_des.errors import Refusal, ScenarioError, UsageError
from hybrid_des.interchange.frameworks import megatron, torchtitan
from hybrid_des.interchange.frameworks.hugging_face import read_hugging_face
from hybrid_des.interchange.frameworks.launch_line import flags_in
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.megatron_refusals import TABLE, Line, refusals
from hybrid_des.interchange.frameworks.scenario_file import scenario_file, without_stated
from hybrid_des.interface.cli.commands.export import launch_text
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import fewest, load, scenario_from
from hybrid_des.workload.models.stages import layout_of, stages_in

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --swiglu --normalization RMSNorm --position-embedding-type rope --vocab-size 128256 "
    "--untie-embeddings-and-output-weights --disable-bias-linear --seq-length 8192 --max-position-embeddings 8192 "
)
SIZES = {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1408, "vocab": 32000, "sequence": 1024}
LATENT = {"query": 96, "key_value": 64, "nope": 32, "rope": 16, "value": 32}


def imported(text):
    """The scenario of a launch line."""
    values = nested(read_megatron(text, "line").values)
    values["cluster"]["gpu"] = "gb200"
    return scenario_from({**values, "name": "scenario"})


@st.composite
def models(draw):
    """Sizes that Megatron-LM has flags for."""
    experts = {"count": 8, "active": 2, "ffn": 704, "shared": draw(st.integers(0, 2)), "router_bias": True}
    experts |= draw(st.sampled_from([{}, {"groups": 4, "top_groups": 2}]))
    options = {
        "kv_heads": st.sampled_from([None, 4]), "head_size": st.sampled_from([None, 128]),
        "mlp": st.sampled_from(["gelu", "swiglu"]), "norm": st.sampled_from(["layer", "rms"]),
        "positions": st.sampled_from(["learned", "rotary"]), "tied": st.booleans(), "bias": st.booleans(),
        "attention": st.sampled_from(["flash", "plain"]), "latent": st.sampled_from([None, LATENT]),
        "experts": st.sampled_from([None, experts | {"dense_layers": draw(st.integers(0, 3))}]),
        "predictions": st.sampled_from([0, 1]),
    }  # fmt: skip
    chosen = {key: draw(values) for key, values in options.items()}
    if chosen["latent"]:
        chosen |= {"kv_heads": None, "head_size": None, "positions": "rotary"}
    return SIZES | {key: value for key, value in chosen.items() if value is not None}


def _exchanges(draw, parallel, experts):
    """How tokens travel to experts, if there are any."""
    if not experts:
        return {}
    if parallel["tensor"] > 1 and draw(st.booleans()):
        parallel["expert_tensor"] = 1
    if parallel.get("expert", 1) * parallel.get("expert_tensor", parallel["tensor"]) == 1:
        return {}
    return {"experts": {"dispatcher": draw(st.sampled_from(["per-node", "all-to-all"]))}}


@st.composite
def written(draw):
    """A scenario of which every value has a flag."""
    model = draw(models())
    tensor, pipeline, data = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    context = draw(st.sampled_from([1, 2]))
    chunks = draw(st.sampled_from([1, 2])) if pipeline > 1 else 1
    experts = "experts" in model
    shards = ["none", "zero-1"] if pipeline > 1 else ["none", "zero-1", "zero-2"]
    if pipeline == 1 and not model["tied"]:
        shards.append("zero-3")
    sharding = draw(st.sampled_from(shards))
    overlap = draw(st.booleans()) and sharding != "zero-3"
    parallel = {"tensor": tensor, "pipeline": pipeline, "data": data, "context": context}
    parallel["sequence"] = tensor > 1 and (experts or draw(st.booleans()))
    if context > 1:
        parallel["context_method"] = draw(st.sampled_from(["ring", "all-to-all", "all-gather"]))
    elif not experts and draw(st.booleans()):
        parallel["order"] = ["tensor", "pipeline", "data"]
    uneven = [17 - pipeline, *[1] * (pipeline - 1)] if chunks == 1 else [10, *[1] * (2 * pipeline - 1)]
    if pipeline > 1 and sum(uneven) == 16:
        parallel["stages"] = draw(st.sampled_from(["even", uneven]))
    if experts and sharding in ("none", "zero-1"):
        parallel["expert"] = draw(st.sampled_from([1, data * context]))
    schedule = {"microbatch_size": draw(st.sampled_from([1, 2]))}
    if pipeline > 1:
        schedule |= (
            {"kind": "interleaved-1f1b", "chunks": chunks} if chunks > 1 else {"kind": "1f1b", "p2p": "blocking"}
        )
    gradients = {"codec": draw(st.sampled_from(["fp32", "bf16"])), "overlap": overlap, "pad": sharding == "zero-1"}
    if overlap and sharding != "zero-2":
        gradients |= {"bucket_rule": "megatron"} | draw(st.sampled_from([{}, {"bucket": 4 * 10**6}]))
    if sharding in ("none", "zero-1"):
        gradients |= draw(st.sampled_from([{}, {"fused": False}]))
    hidden = {"tensor": draw(st.sampled_from([0, 0.7])) if tensor > 1 else 0}
    if sharding in ("zero-1", "zero-2"):
        hidden["parameters"] = draw(st.booleans())
    ranks = tensor * pipeline * data * context
    kinds = ["bf16", "fp8", "fp8-current", "fp8-blockwise", "mxfp8", "nvfp4"] + ["fp16"] * (sharding != "zero-3")
    precision = draw(st.sampled_from(kinds))
    modules = [["layernorm", "core_attn"]] * (precision != "fp8")  # which delayed scaling does not support
    recompute = draw(st.sampled_from([{"recompute": "full", "recompute_layers": 3}] + [
        {"recompute": one} for one in ("none", "selective", "full", *modules)]))  # fmt: skip
    return {
        "cluster": {"gpu": "gb200", "nodes": -(-ranks // 8), "gpus_per_node": min(ranks, 8)}, "model": model,
        "parallel": parallel, **_exchanges(draw, parallel, experts),
        "batch": data * schedule["microbatch_size"] * draw(st.sampled_from([4, 8])), "schedule": schedule,
        "precision": precision, **recompute,
        "offload": {"optimizer": draw(st.sampled_from([0, 0.5, 1]))}, "sharding": sharding, "overlap": hidden,
        "cuda_graphs": draw(st.sampled_from(["none", "layers", "full"])),
        "gradients": gradients,
    }  # fmt: skip


@pytest.mark.slow
@given(written())
def test_what_is_written_is_read_back(values):
    scenario = scenario_from(values)
    launch = megatron(scenario)
    assert launch.unsaid == ()
    line = f"{launch.program} {' '.join(launch.flags)}"
    again = imported(line)
    assert to_mapping(again) == to_mapping(scenario)
    assert megatron(again) == launch
    assert read_megatron(line, "line").unread == ()


def test_parameters_gathered_early_by_megatron_fsdp_are_read_back():
    gathered = scenario_from({
        "cluster": {"gpu": "h100"}, "model": "llama2-7b", "parallel": {"data": 8}, "batch": 8, "sharding": "zero-2",
        "gradients": {"overlap": True}, "overlap": {"parameters": True},
    })  # fmt: skip
    launch = megatron(gathered)
    assert "--overlap-param-gather" in launch.flags
    assert imported(f"{launch.program} {' '.join(launch.flags)}").overlap.parameters


def test_a_line_becomes_the_published_model_it_describes():
    line = (
        f"torchrun --nnodes=2 --nproc_per_node 8 x.py {LLAMA} --tensor-model-parallel-size 2 --bf16 --sequence-parallel"
    )
    values = {**nested(read_megatron(line, "line").values), "name": "scenario"}
    found = fewest(values)
    assert found["model"] == {"base": "llama3-8b"}
    assert found["parallel"] == {"tensor": 2, "data": 8, "sequence": True}
    assert found["batch"] == 8


@pytest.mark.parametrize(("flag", "written"), [("", "megatron"), ("--deepspeed", "deepspeed")])
def test_a_file_says_which_stack_its_line_starts(flag, written):
    line = f"torchrun --nnodes=1 --nproc_per_node 8 x.py {LLAMA} --bf16 {flag}"
    text, _ = scenario_file("line", read_megatron(line, "line"), ())
    assert yaml.safe_load(text)["model"] == {"base": "llama3-8b", "written": written}


def test_tokens_choose_two_experts_by_default():
    """As Megatron-LM's `--moe-router-topk` says."""
    found = nested(read_megatron(f"torchrun x.py {LLAMA} --num-experts 8", "line").values)
    assert found["model"]["experts"]["active"] == 2


def test_a_script_has_the_values_of_its_variables():
    script = f"""\
    #SBATCH --nodes=2 --ntasks-per-node=4
    PP=${{PP:-2}}
    # --recompute-granularity full
    ARGS=( --pipeline-model-parallel-size $PP --foo "a b"   # a comment
           --micro-batch-size $((PP * 2)) )
    MODEL="{LLAMA} \\
       --data-path $DATA"
    srun pretrain_gpt.py ${{ARGS[@]}} $MODEL --bf16
    """
    found = read_megatron(script, "train.sh")
    assert found.values["parallel.pipeline"] == 2
    assert found.values["parallel.data"] == 4
    assert found.values["schedule.microbatch_size"] == 4
    assert found.values["recompute"] == "none"
    assert found.unread == ("--foo a b",)
    assert found.idle == ("--data-path $DATA",)


@from_table
def test_a_wrong_line_is_answered_in_one(line, said):
    with pytest.raises(UsageError) as caught:
        read_megatron(line, "line")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fsdp_says_what_megatron_asserts(scenarios):
    scenario = load(scenarios / "llama3.1-8b_8.yaml", ["sharding=zero-3", "gradients.overlap=false"])
    launch = megatron(scenario)
    line = " ".join(launch.flags)
    for flag in ("--use-torch-fsdp2", "--no-gradient-accumulation-fusion", "--untie-embeddings-and-output-weights"):
        assert flag in line
    assert launch.environment["CUDA_DEVICE_MAX_CONNECTIONS"] != "1"
    assert launch.unsaid == ()


@pytest.mark.parametrize(("ranks", "kind"), [(1, "alltoall"), (8, "flex")])
def test_tokens_that_stay_have_the_dispatcher_that_megatron_accepts(ranks, kind):
    """Its flex dispatcher asserts that tensor by expert parallelism is above 1."""
    values = {
        "model": "qwen3-30b-a3b", "cluster": {"gpu": "gb200", "nodes": 1, "gpus_per_node": 8}, "batch": 8,
        "parallel": {"data": 8, "expert": ranks}, "experts": {"dispatcher": "per-node"},
    }  # fmt: skip
    scenario = scenario_from(values)
    flags = " ".join(megatron(scenario).flags)
    assert f"--moe-token-dispatcher-type {kind}" in flags
    assert to_mapping(imported(f"{megatron(scenario).program} {flags}")) == to_mapping(scenario)


@pytest.mark.parametrize("write", [megatron, torchtitan])
def test_every_shipped_scenario_has_a_line(scenarios, write):
    for file in sorted(scenarios.glob("*.yaml")):
        launch = write(load(file))
        assert shlex.split(launch.text)
        assert all(flag.startswith(("--", "activation-checkpoint:")) for flag in launch.flags)
        if load(file).model is None:
            assert any(line.startswith("model: ") for line in launch.unsaid)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_a_layout_of_stages_reads_back(counts):
    assert [stage.count("t") for stage in stages_in(layout_of(counts))] == counts


def refused(text, ranks=8):
    """What Megatron-LM refuses of a line."""
    return [*refusals(Line(flags_in(text, "line"), ranks))]


@from_table
def test_what_megatron_refuses_names_the_flag(line, said):
    (found,) = refused(line)
    assert found.startswith(said)


def test_every_assertion_is_violated_by_some_line():
    file = Path(__file__).with_name("tables.yaml")
    _, *rows = yaml.safe_load(file.read_text())["test_what_megatron_refuses_names_the_flag"]
    found = {one for line, _ in rows for one in refused(line)}
    assert found == {*map(str, TABLE)}


def test_shipped_plans_start_as_written(scenarios):
    launches = [megatron(load(file)) for file in sorted(scenarios.glob("*.yaml"))]
    said = [launch for launch in launches if not launch.unsaid]
    assert len(said) > 4
    assert all(launch.refused == () for launch in said)


STARTED = (
    ("sharding=zero-1", "offload.optimizer=0.5"), ("cuda_graphs=full",),
    ("precision=fp8", "recompute=[layernorm]"), ("sharding=zero-3", "gradients.overlap=false"),
)  # fmt: skip


@pytest.mark.parametrize("overrides", STARTED)
def test_lines_have_the_flags_that_others_need(scenarios, overrides):
    launch = megatron(load(scenarios / "llama3.1-8b_8.yaml", ["cluster.gpu=gb200", "recompute=none", *overrides]))
    assert launch.refused == ()


def test_plans_that_megatron_refuses_are_warned_of(scenarios):
    file = scenarios / "mixtral-8x7b_64.yaml"
    values = ["schedule.kind=1f1b", "schedule.chunks=1", "experts.streams=true", "parallel.sequence=false"]
    launch = megatron(load(file, [*values, "gradients.overlap=true"]))
    text = launch_text(launch)
    assert "# refused: --overlap-moe-expert-parallel-comm: expected virtual stages with a pipeline" in text
    found = read_megatron(" ".join(launch.flags), "line")
    assert {one.split(":")[0] for one in found.refused} == {one.split(":")[0] for one in launch.refused}


def test_recipes_that_scenarios_do_not_hold_are_told():
    found = read_megatron("--num-layers 4 --bf16 --fp8-format e4m3", "line")
    assert any(line.startswith("precision: fp8: for --fp8-format e4m3 --fp8-recipe delayed") for line in found.assumed)
    usual = read_megatron("--num-layers 4 --bf16 --fp8-format hybrid", "line")
    assert not any("precision" in line for line in usual.assumed)


@pytest.mark.parametrize(("precision", "flags"), [
    ("fp8", "--fp8-format hybrid"), ("fp8-current", "--fp8-format hybrid --fp8-recipe tensorwise"),
    ("fp8-blockwise", "--fp8-format e4m3 --fp8-recipe blockwise"), ("mxfp8", "--fp8-format e4m3 --fp8-recipe mxfp8"),
])  # fmt: skip
def test_recipes_of_eight_bits_come_back_as_written(scenarios, precision, flags):
    found = read_megatron(f"--num-layers 4 --bf16 {flags}", "line")
    assert (found.values["precision"], [line for line in found.assumed if "precision" in line]) == (precision, [])
    written = megatron(load(scenarios / "llama3.1-8b_8.yaml", ["cluster.gpu=gb200", f"precision={precision}"]))
    assert f"--bf16 {flags}" in written.flags


def test_torchtitan_is_told_to_checkpoint_operators(scenarios):
    launch = torchtitan(load(scenarios / "llama3.1-8b_8.yaml", ["model.written=pytorch", "recompute=[ops]"]))
    assert launch.flags[-1] == "activation-checkpoint:selective"
    assert not any("recompute" in line for line in launch.unsaid)
    assert any("recompute: ops" in line for line in megatron(load(scenarios / "llama3.1-8b_8.yaml", [
        "model.written=pytorch", "recompute=[ops]"])).unsaid)  # fmt: skip


@pytest.mark.parametrize(("chunks", "each"), [(2, 8), (4, 4), (8, 2), (5, None)])
def test_torchtitan_is_told_the_layers_of_a_stage(scenarios, chunks, each):
    """126 layers and the two of the ends over 8 ranks; 40 stages have no whole number of layers."""
    kind = ["schedule.kind=interleaved-1f1b", f"schedule.chunks={chunks}"]
    launch = torchtitan(load(scenarios / "llama3.1-405b_512.yaml", kind))
    stated = [flag for flag in launch.flags if "layers_per_stage" in flag]
    assert stated == ([f"--parallelism.pipeline_parallel_layers_per_stage {each}"] if each else [])
    assert any(line.startswith("schedule.chunks: 5") for line in launch.unsaid) == (each is None)


def test_torchtitan_is_told_what_no_flag_says(scenarios):
    values = ["gradients.overlap=false", "gradients.codec=bf16", "recompute=[layernorm]", "offload.optimizer=1"]
    launch = torchtitan(load(scenarios / "llama3.1-8b_8.yaml", values))
    for key in ("gradients.overlap: false", "gradients.codec: bf16", "recompute: layernorm", "offload.optimizer"):
        assert any(line.startswith(key) for line in launch.unsaid)


def test_torchtitan_refuses_orders_of_single_stages(scenarios):
    launch = torchtitan(load(scenarios / "llama3.1-405b_512.yaml", ["schedule={kind: zb-h1}"]))
    (found,) = launch.refused
    assert found.endswith("_PipelineScheduleRuntime: expected at least 2 stages per rank")


def test_layouts_of_published_runs_are_read():
    stages = stages_in("Et|(tt|)*30mL")  # DeepSeek-V3 in Megatron-Bridge's recipes
    assert (len(stages), stages[0], stages[1], stages[-1]) == (32, "Et", "tt", "mL")
    assert sum(stage.count("t") for stage in stages) == 61


@pytest.mark.parametrize("layout", ["", "tE|L", "Et|x|L", "Et|tt", "E(t*99999)*99999L"])
def test_what_is_no_layout_is_refused(layout):
    with pytest.raises(Refusal):
        stages_in(layout)


QWEN = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "sliding_window": 4096, "decoder_sparse_step": 1,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
    "n_inner": None, "activation_function": "gelu_new",
}  # fmt: skip


def test_a_configuration_becomes_a_model():
    found = read_hugging_face(json.dumps(QWEN), "config.json")
    model = nested(found.values)["model"]
    assert model == {"base": "qwen3-30b-a3b", "sequence": 40960}
    assert found.unread == ("sliding_window: 4096",)


def test_sizes_of_no_published_model_are_stated():
    text = json.dumps(QWEN | {"num_hidden_layers": 47})
    model = nested(read_hugging_face(text, "config.json").values)["model"]
    assert model["experts"] == {"count": 128, "active": 8, "ffn": 768}
    assert (model["kv_heads"], model["head_size"], model["qk_norm"]) == (4, 128, True)


def test_a_configuration_of_a_published_model_names_it():
    assert read_hugging_face(json.dumps(GPT2), "config.json").values == {"model": "gpt2"}


def test_sizes_that_a_configuration_lacks_are_unknown():
    lacking = {key: one for key, one in QWEN.items() if key not in ("num_experts_per_tok", "max_position_embeddings")}
    text, unknown = scenario_file("tiny", read_hugging_face(json.dumps(lacking), "config.json"), ())
    assert unknown == ["model.sequence", "model.experts.active"]
    assert "active: UNKNOWN" in text


def test_layers_with_other_attention_are_not_understood():
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    found = read_hugging_face(json.dumps(QWEN | {"layer_types": kinds}), "config.json")
    assert found.unread == ("sliding_window: 4096", "layer_types: 2 of 3 layers have sliding_attention")
    plain = read_hugging_face(
        json.dumps(QWEN | {"layer_types": kinds[1:2], "use_sliding_window": False}), "config.json"
    )
    assert plain.unread == ()


@pytest.mark.parametrize("variable", ["$SLURM_NNODES", "${SLURM_JOB_NUM_NODES}"])
@pytest.mark.parametrize("nodes", ["--nodes 32", "--nodes=32", "-N 32"])
def test_nodes_of_a_batch_script_are_variables(variable, nodes):
    script = (
        f"#SBATCH {nodes}\n#SBATCH --ntasks-per-node=8\nsrun torchrun --nnodes {variable} --nproc-per-node 8 {LLAMA}"
    )
    found = read_megatron(script, "train.sh")
    assert (found.values["cluster.nodes"], found.values["parallel.data"]) == (32, 256)
    assert found.unread == ()


def test_a_mistyped_flag_has_a_suggestion():
    found = read_megatron("--num-layers 4 --hiden-size 64 --new-thing 3", "line")
    assert found.unread == ("--hiden-size 64; did you mean --hidden-size?", "--new-thing 3")


def test_what_is_stated_is_not_assumed():
    found = read_hugging_face(json.dumps(QWEN), "config.json")
    kept = without_stated(found, ["model.sequence=128", "cluster.gpu=h100, batch=8"]).assumed
    assert kept == ("parallel: a model's configuration does not say them",)


MEAN = st.sampled_from([None, 0, -1, 1, 3, 10**6, 10**400, "x", "4", True, [], [1], {}, {"a": 1}, 1.5, float("nan")])
FULL = QWEN | {
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_nextn_predict_layers": 1,
    "shared_expert_intermediate_size": 768, "layer_types": ["full_attention"], "topk_method": "noaux_tc",
}  # fmt: skip
LATENT_CONFIG = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
LONG = (
    f"torchrun --nnodes 2 --nproc-per-node 8 {LLAMA} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
    "--num-layers-per-virtual-pipeline-stage 2 --sequence-parallel --num-experts 8 --moe-router-topk 2 "
    "--moe-layer-freq ([0]*1+[1]*31) --moe-shared-expert-intermediate-size 14336 --expert-model-parallel-size 2 "
    "--micro-batch-size 1 --global-batch-size 16 --recompute-granularity full --recompute-method block "
    "--recompute-num-layers 1 --kv-channels 64"
)


def answered(read, text):
    """A scenario, or one line that says what is wrong."""
    try:
        scenario_file("mutant", read(text, "file"), ["cluster.gpu=gb200"])
    except UsageError as error:
        assert "\n" not in str(error)
    except ScenarioError as error:
        assert error.problems


@given(st.dictionaries(st.sampled_from([*FULL, *LATENT_CONFIG]), MEAN, max_size=3), st.sets(st.sampled_from([*FULL])))
def test_a_mutated_configuration_never_gives_a_traceback(changed, dropped):
    kept = {key: one for key, one in FULL.items() if key not in dropped}
    answered(read_hugging_face, json.dumps(kept | changed))


WORDS = LONG.split()
OTHER = st.sampled_from(
    ["0", "-1", "1", "2", "3", "16", "1000000", "9" * 15, "9" * 400, "x", "$X", "1.5", "[", "(", *WORDS]
)


@given(st.dictionaries(st.integers(0, len(WORDS) - 1), OTHER | st.none(), max_size=8))
def test_a_mutated_line_never_gives_a_traceback(changed):
    words = [changed.get(place, word) for place, word in enumerate(WORDS)]
    answered(read_megatron, " ".join(word for word in words if word is not None))


@from_table
def test_a_wrong_configuration_is_answered_in_one_line(text, said):
    with pytest.raises(UsageError, match=said):
        read_hugging_face(text, "config.json")
