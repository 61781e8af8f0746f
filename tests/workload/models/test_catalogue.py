"""Published models: their sizes give the published counts of parameters and operations."""

import pytest
import yaml
from support.paths import GOLDEN

from hybrid_des.errors import UsageError
from hybrid_des.workload.models import catalogue
from hybrid_des.workload.models.catalogue import expanded, model

FIGURES = yaml.safe_load((GOLDEN / "models.yaml").read_text(encoding="utf-8"))
PARTS = ("hugging_face", "torchvision", "gpt3", "active", "papers")
HUGGING_FACE, TORCHVISION, GPT3, ACTIVE, PAPERS = (FIGURES[of] for of in PARTS)


def test_every_published_model_is_held_against_a_figure():
    assert set(catalogue.names()) == {*HUGGING_FACE, *TORCHVISION, *PAPERS, *(f"gpt3-{size}" for size in GPT3)}


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


def test_dense_models_pass_all_their_parameters():
    dense = [model(name) for name in catalogue.names() if name not in ACTIVE]
    assert all(own.active == own.parameters for own in dense)


def test_every_model_names_its_source():
    for name in catalogue.names():
        source = catalogue._entry(name)["source"]
        assert "arXiv" in source or "Radford" in source


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
