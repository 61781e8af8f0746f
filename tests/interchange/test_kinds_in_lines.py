"""Layers that differ, as flags of Megatron-LM: what is read, what is written, and what is refused by name."""

from fractions import Fraction

import pytest
import yaml

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks import megatron
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.scenario_file import scenario_file
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.workload.models.kinds.transformer import block_options

NANO = (  # NVIDIA/Megatron-LM's recipe of Nemotron 3 Nano, 31.6 billion parameters
    "torchrun --nnodes 4 --nproc-per-node 8 pretrain_mamba.py "
    "--hybrid-layer-pattern MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME "
    "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec --hidden-size 2688 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 2 --mamba-num-heads 64 "
    "--untie-embeddings-and-output-weights --position-embedding-type none --ffn-hidden-size 1856 --kv-channels 128 "
    "--squared-relu --disable-bias-linear --normalization RMSNorm --num-experts 128 --moe-router-topk 6 "
    "--moe-ffn-hidden-size 1856 --moe-shared-expert-intermediate-size 3712 --moe-router-enable-expert-bias "
    "--moe-router-score-function sigmoid --seq-length 8192 --max-position-embeddings 8192 --vocab-size 131072 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --sequence-parallel --expert-model-parallel-size 8 "
)
GPT = (
    "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 "
    "--bf16 --position-embedding-type rope --swiglu --ffn-hidden-size 2048 "
)
NEXT = (
    "--num-layers 8 --attention-output-gate --experimental-attention-variant gated_delta_net --linear-attention-freq 4 "
    "--linear-num-value-heads 16 --linear-num-key-heads 8 --num-experts 8 --moe-ffn-hidden-size 512 "
    "--moe-shared-expert-intermediate-size 768 --moe-shared-expert-gate "
)


def scenario_of(line):
    """The scenario of a line, and what is said of it."""
    found = read_megatron(line, "line")
    values = nested({**found.values, "cluster.gpu": "b200", "efficiency.delta": 0.1})
    return scenario_from({**values, "name": "line"}), found


def test_a_hybrid_has_the_parameters_that_its_card_states():
    scenario, found = scenario_of(NANO)
    total = scenario.model.network.parameters
    assert abs(total / 31.58e9 - 1) < 0.005
    assert scenario.model.options.layers == 52
    assert scenario.model.options.mlp == "relu2"
    assert not found.unmodelled
    assert not [line for line in found.unread if "hybrid" in line or "mamba" in line]


def test_stages_and_predictions_are_read_from_a_pattern():
    line = NANO.replace("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "'MEME|M*E|ME|M*E/*E/*E'")
    scenario, _ = scenario_of(f"{line} --pipeline-model-parallel-size 2 --mtp-use-repeated-layer")
    assert scenario.parallel.stages == (4, 3, 2, 3)
    assert (scenario.schedule.kind, scenario.schedule.chunks) == ("interleaved-1f1b", 2)
    predictions = scenario.model.options.predictions
    assert (predictions.passes, predictions.count, predictions.kinds) == (2, 1, "attention experts")


def test_modules_of_older_releases_have_a_pattern_of_their_own():
    line = NANO.replace("--hybrid-layer-pattern", "--hybrid-override-pattern")
    scenario, _ = scenario_of(f"{line} --mtp-num-layers 2 --mtp-hybrid-override-pattern '*E'")
    assert (scenario.model.options.predictions.count, scenario.model.options.predictions.passes) == (2, 1)


def test_delta_rules_gates_and_shared_experts_are_read():
    scenario, found = scenario_of(GPT + NEXT)
    blocks = block_options(scenario.model.options)
    assert [block.mixing for block in blocks] == [("delta",), ("delta",), ("delta",), ("attention",)] * 2
    assert blocks[0].delta.model_dump() == {
        "key_heads": 8, "value_heads": 16, "key_size": 128, "value_size": 128, "conv": 4,
    }  # fmt: skip
    experts = blocks[3].experts
    assert (blocks[3].gate, experts.shared_ffn, experts.shared_gate) == ("element", 768, True)
    assert not found.unmodelled


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--num-layers 6 --num-experts 8 --moe-layer-freq [1,0,1]*2", "010010"),
        ("--num-layers 4 --num-experts 8 --moe-layer-freq 2", "0101"),
        ("--num-layers 6 --num-experts 8 --moe-layer-freq ([0]*2+[1]*4)", "110000"),
    ],
)
def test_dense_layers_stand_where_the_line_has_them(flags, expected):
    scenario, found = scenario_of(GPT + flags)
    dense = [str(int(block.experts is None)) for block in block_options(scenario.model.options)]
    assert "".join(dense) == expected
    assert not [line for line in found.unmodelled if "moe-layer-freq" in line]


def test_windows_in_any_rhythm_are_read():
    scenario, _ = scenario_of(f"{GPT} --num-layers 6 --window-size 127,0 --window-attn-skip-freq 3")
    assert [block.window for block in block_options(scenario.model.options)] == [128, 128, None] * 2


def test_sinks_latent_experts_and_repeated_predictions_are_read():
    flags = "--num-layers 2 --softmax-type learnable --num-experts 8 --moe-latent-size 256 --mtp-num-layers 2"
    scenario, found = scenario_of(f"{GPT} {flags} --mtp-use-repeated-layer")
    options = scenario.model.options
    assert (options.sinks, options.experts.latent, options.predictions.passes) == (True, 256, 2)
    assert not found.unmodelled


def test_predictions_have_stages_of_their_own():
    layout = "--num-layers 6 --mtp-num-layers 1 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout"
    scenario, _ = scenario_of(f"{GPT} {layout} 'Et*3|t*3|m|L'")
    assert scenario.parallel.stages == (3, 3, "m", "L")
    assert scenario_of(f"{GPT} {layout} 'Et|tt|tt|tmL'")[0].parallel.stages == (1, 2, 2, 1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--hybrid-layer-pattern MDE", "--hybrid-layer-pattern with D: other layers"),
        ("--experimental-attention-variant dsa", "--experimental-attention-variant dsa: other layers"),
        ("--num-layers 4 --linear-attention-freq 4", "freq 4 without --experimental-attention-variant: other layers"),
        ("--num-layers 4 --is-hybrid-model", "--is-hybrid-model without --hybrid-layer-pattern or"),
        ("--num-layers 4 --linear-attention-type gated_delta_net", "--linear-attention-type gated_delta_net: other"),
        ("--num-layers 4 --dsa-indexer-topk 2048", "--dsa-indexer-topk 2048: other layers"),
        ("--num-layers 4 --csa-window-size 128", "--csa-window-size 128: other layers"),
        ("--num-layers 4 --mhc-num-residual-streams 4", "--mhc-num-residual-streams 4: other layers"),
    ],
)
def test_layers_that_are_not_known_are_refused_by_name(flags, said):
    with pytest.raises(UsageError, match=said):
        read_megatron(GPT + flags, "line")


VARIANTS = [
    {"kinds": {"M": {"mixer": "mamba2", "ffn": "none"}, "A": {"ffn": "none"}, "F": {"mixer": "none"}},
     "pattern": "M F A F", "mamba": {"heads": 16, "head_size": 64, "groups": 8, "chunk": 128}, "mlp": "relu2"},
    {"kinds": {"d": {"mixer": "delta"}, "f": {}}, "pattern": "d*3 f", "gate": "element",
     "delta": {"key_heads": 8, "value_heads": 16, "key_size": 64, "value_size": 64}},
    {"kinds": {"w": {"window": 128}, "f": {}}, "pattern": "w*3 f", "sinks": True},
    {"kinds": {"d": {"experts": "none"}, "e": {}}, "pattern": "e d", "experts": {
        "count": 8, "active": 2, "ffn": 256, "shared_ffn": 384, "shared_gate": True, "latent": 128}},
    {"kinds": {"A": {"experts": "none", "ffn": "none"}, "E": {"mixer": "none"}}, "pattern": "A E",
     "experts": {"count": 8, "active": 2, "ffn": 256}, "predictions": {"kinds": "A E", "passes": 2}},
    {"predictions": {"passes": 2}},
    {"predictions": 1, "layers": 6, "parallel": {"pipeline": 4, "data": 2, "stages": [3, 3, "m", "L"]}},
]  # fmt: skip


@pytest.mark.parametrize("change", VARIANTS, ids=lambda change: str(change)[:50])
def test_what_is_written_is_read(change):
    model = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 2048, "vocab": 32000, "sequence": 2048,
             "written": "megatron"} | {key: value for key, value in change.items() if key != "parallel"}  # fmt: skip
    written = load({
        "model": model, "cluster": {"gpu": "b200", "nodes": 1, "gpus_per_node": 8}, "batch": 64, "name": "line",
        "parallel": change.get("parallel", {"data": 8}), "schedule": {"kind": "1f1b"}, "efficiency": {"delta": 0.1},
    })  # fmt: skip
    launch = megatron(written)
    assert [line for line in launch.unsaid if line.startswith("model.")] == []
    read, _ = scenario_of(f"{launch.program} {' '.join(launch.flags)}")
    assert read.model.network == written.model.network
    assert read.parallel.stages == written.parallel.stages


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mixer": "kda", "kda": {"heads": 8, "size": 128}}, "model.mixer"),
        ({"kinds": {"a": {"heads": 8}, "b": {}}, "pattern": "a b"}, "model.kinds"),
        ({"mixer": ["attention", "mamba2"], "mamba": {"heads": 16, "head_size": 64, "chunk": 128}}, "model.mixer"),
        ({"frozen": "all", "adapters": {"rank": 8}}, "model.frozen"),
    ],
)
def test_what_no_flag_says_is_listed(change, said):
    model = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 2048, "vocab": 32000, "sequence": 2048, **change}
    written = load({
        "model": model, "cluster": {"gpu": "b200", "nodes": 1, "gpus_per_node": 8}, "batch": 64,
        "parallel": {"data": 8}, "efficiency": {"kda": 0.1},
    })  # fmt: skip
    assert said in megatron(written).unsaid


def test_a_decimal_of_an_override_is_written():
    overrides = ["cluster.gpu=a100-80gb", "efficiency.delta=0.1"]
    found = read_megatron(GPT + NEXT, "line", overrides=overrides)
    text, unknown = scenario_file("line", found, overrides)
    assert (unknown, load_text(text).efficiency.delta) == ([], Fraction(1, 10))


def load_text(text):
    """The scenario of a file's text."""
    return scenario_from(yaml.safe_load(text))


def test_a_hybrid_program_needs_a_pattern():
    with pytest.raises(UsageError, match=r"pretrain_mamba\.py without --hybrid-layer-pattern"):
        read_megatron(GPT.replace("pretrain_gpt", "pretrain_mamba") + "--num-layers 4", "line")
    assert read_megatron(f"{GPT} --num-layers 4 --mamba-num-heads 8", "line").values.get("model.mamba") is None
