"""Published models: their sizes give the published counts of parameters and operations."""

from pathlib import Path

import pytest
import yaml
from support.paths import GOLDEN

from hybrid_des.errors import UsageError
from hybrid_des.workload.models import catalogue
from hybrid_des.workload.models.catalogue import expanded, model

FIGURES = yaml.safe_load((GOLDEN / "models.yaml").read_text(encoding="utf-8"))
PARTS = ("hugging_face", "torchvision", "gpt3", "active", "papers")
HUGGING_FACE, TORCHVISION, GPT3, ACTIVE, PAPERS = (FIGURES[of] for of in PARTS)
DESCRIBED = yaml.safe_load((GOLDEN / "described_models.yaml").read_text(encoding="utf-8"))


def test_every_published_model_is_held_against_a_figure():
    assert set(catalogue.names()) == {
        *HUGGING_FACE, *TORCHVISION, *PAPERS, *DESCRIBED, *(f"gpt3-{size}" for size in GPT3),
    }  # fmt: skip


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_parameters_are_those_of_the_published_weights(name):
    assert model(name).parameters == HUGGING_FACE[name]


@pytest.mark.parametrize("name", TORCHVISION)
def test_image_models_have_the_counts_of_torchvision(name):
    parameters, multiply_adds = TORCHVISION[name]
    assert model(name).parameters == parameters
    assert round(model(name).flop / 2e9, 3) == multiply_adds


@pytest.mark.parametrize("size", GPT3)
def test_gpt3_has_the_sizes_of_its_table(size):
    assert model(f"gpt3-{size}").parameters == pytest.approx(GPT3[size] * 10**6, rel=0.02)


@pytest.mark.parametrize("name", PAPERS)
def test_parameters_are_those_of_the_paper(name):
    billions, tolerance = PAPERS[name]
    assert model(name).parameters == pytest.approx(billions * 1e9, rel=tolerance)


@pytest.mark.parametrize("name", DESCRIBED)
def test_parameters_are_those_published(name):
    figure, own = DESCRIBED[name], model(name)
    modules = own.parameters - _main(own, "parameters") if figure.get("predictions") == "excluded" else 0
    billions = (own.parameters - modules) / 1e9 + figure.get("encoders", 0)
    assert billions == pytest.approx(figure["published"], rel=0.005, abs=figure.get("rounding"))


@pytest.mark.parametrize("name", [name for name in DESCRIBED if "active" in DESCRIBED[name]])
def test_active_parameters_are_those_published(name):
    """With both matrices of tokens, without the embedding, or without both: publishers count in all three ways."""
    figure, own = DESCRIBED[name]["active"], model(name)
    active, matrix = _main(own, "active"), own.layers[0].parameters.total
    half = 0.5 * 10.0 ** -len(str(figure).partition(".")[2])
    assert figure in [
        pytest.approx((active - without * matrix) / 1e9, abs=max(0.03 * figure, half)) for without in range(3)
    ]


def _main(own, what):
    """Parameters, or those that a token passes, without prediction modules."""
    of_modules = sum(getattr(layer.parameters, {"parameters": "total"}.get(what, what)) for layer in own.layers
                     if layer.predicts)  # fmt: skip
    return getattr(own, what) - of_modules


# TFLOP/s and tokens/s of a GPU, sequence and further options: cards of Megatron-Bridge (067f987, pretrain_performance),
# of Ultra docs/performance-summary.md, 26.08
PRINTED = {
    "deepseek-v3": (276.030, 1061.206, 4096, {"predictions": 1}),
    "gpt-oss-120b": (535.230, 16398.332, 4096, {}),
    "deepseek-v4-flash": (759.280, 8358.842, 4096, {}),
    "nemotron-3-super-120b-a12b": (873.330, 10307.741, 8192, {}),
    "nemotron-3-ultra-550b-a55b": (923, 2528, 8192, {}),
    "qwen3-8b": (512.700, 10456.348, 4096, {}),
    "qwen3-30b-a3b": (1030.070, 44773.361, 4096, {}),
    "qwen3-235b-a22b": (1300.440, 8784.492, 4096, {}),
}


@pytest.mark.parametrize("name", PRINTED)
def test_training_takes_the_flop_that_are_printed(name):
    rate, tokens, sequence, more = PRINTED[name]
    assert _training(name, sequence=sequence, **more) == pytest.approx(rate * 1e12 / tokens, rel=0.01)


def test_nemotron_nano_takes_fewer_flop_than_are_printed():
    """Bridge takes twice the hidden size for Mamba's width, 5,376; its 64 heads of 64 have 4,096 (its config.json)."""
    printed = 937.770e12 / 42094.107
    assert _training("nemotron-3-nano-30b-a3b", mamba={"head_size": 84}) == pytest.approx(printed, rel=0.01)
    h, v, s = 2688, 131072, 8192
    d, n, g = 64 * 64, 128, 8
    mamba = 2 * h * (2 * d + 2 * g * n + 64) + 2 * d * h + 2 * 128 * g * n + 2 * 128 * d + 4 * d * n
    attention = 2 * h * (32 + 2 * 2) * 128 + 2 * 32 * 128 * h + 4 * 32 * 128 * s / 2
    experts = 2 * h * 128 + 2 * 2 * h * (6 * 1856 + 3712)
    forward = 23 * mamba + 6 * attention + 23 * experts + 2 * h * v
    assert _training("nemotron-3-nano-30b-a3b") == pytest.approx(3 * forward, rel=1e-9)


def _training(name, **more):
    """FLOP of training per token."""
    own = model({"base": name, **more})
    return 3 * float(own.flop) / own.tokens


def test_gpt3_175b_has_the_parameters_of_its_sizes():
    h, layers, vocab, sequence = 12288, 96, 50257, 2048
    assert model("gpt3-175b").parameters == 12 * layers * h * h + 13 * layers * h + (vocab + sequence + 2) * h
    assert round(model("gpt3-175b").parameters / 10**9, 1) == 174.6


@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_passes_the_published_share_of_experts(name):
    figure, digits = ACTIVE[name]
    own = catalogue.model(name)
    # a look-up multiplies nothing; without it DeepSeek-V3 has 36.6 B (its README_WEIGHTS.md: 36.7, its paper: 37)
    embedding = own.layers[0].parameters.total if name.startswith(("deepseek", "gpt-oss", "kimi")) else 0
    assert round((own.active - embedding) / 10**9, digits) == figure


@pytest.mark.slow
def test_dense_models_pass_all_their_parameters():
    dense = [own for own in map(model, catalogue.names()) if not any(layer.routing for layer in own.layers)]
    assert all(own.active == own.parameters for own in dense) and len(dense) > 40


def test_every_model_names_its_source():
    for name in catalogue.names():
        source = catalogue.about(name)["source"]
        assert any(place in source for place in ("arXiv", "Radford", "huggingface.co", "github.com", "Megatron-Bridge"))


def test_an_entry_is_parsed_as_in_the_whole_file():
    path = Path(catalogue.__file__).with_name("catalogue.yaml")
    whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {name: catalogue._entry(name) for name in catalogue.names()} == whole


def test_contexts_are_those_of_the_base_unless_stated():
    contexts = {name: catalogue.about(name)["context"] for name in ("llama2-70b", "llama3.1-70b", "glm-4.7")}
    assert contexts == {"llama2-70b": 4096, "llama3.1-70b": 131072, "glm-4.7": 202752}
    assert "context" not in expanded({"base": "llama2-70b"})


def test_an_override_changes_only_what_it_names():
    whole, short = model("llama3.1-405b"), model({"base": "llama3.1-405b", "layers": 8})
    assert len(short.layers) == 8 + 2
    assert short.layers[:9] == whole.layers[:9]
    assert short.layers[-1] == whole.layers[-1]


def test_an_override_reaches_into_a_mapping():
    values = expanded({"base": "deepseek-v3", "experts": {"count": 64}})
    assert values["experts"] == {**expanded({"base": "deepseek-v3"})["experts"], "count": 64}


def test_none_removes_a_value_of_the_base():
    values = expanded({"base": "mixtral-8x7b", "experts": None})
    assert model(values).parameters == model("mistral-7b").parameters


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("llama3.1-405", 'base: unknown "llama3.1-405"; did you mean "llama3.1-405b"?'),
        ({"base": 7}, "base: expected the name of a published model, found 7"),
        ({"base": "vgg-16", "kind": "resnet"}, 'kind: vgg-16 is of kind "vgg", not "resnet"'),
        ({"base": "vgg-16", "zzz": 3}, 'vgg: unknown "zzz"; expected one of classes, convolutions, image'),
        ({"kind": "transfomer"}, 'unknown "transfomer"; did you mean "transformer"?'),
        ({"base": "gpt2", "hiden": 3}, 'transformer: unknown "hiden"; did you mean "hidden"?'),
        ({"base": "gpt2", "layers": 0}, "transformer: layers: must be at least 1, not 0"),
        ({"base": "vit-b-16", "layers": 10**6}, "vision: layers: must be at most 16384, not 1000000"),
        ({"base": "gpt2", "predictions": 10**6}, "transformer: predictions: must be at most 16384, not 1000000"),
    ],
)
def test_wrong_names_and_values_are_answered_in_one_line(values, said):
    with pytest.raises(UsageError) as error:
        model(values)
    assert str(error.value) == said
