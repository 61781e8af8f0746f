"""Published models: their sizes give the published counts of parameters and operations."""

import pytest

from hybrid_des.errors import UsageError
from hybrid_des.models import catalogue
from hybrid_des.models.catalogue import expanded, model

# Hugging Face: number of elements in the safetensors files (its API, `safetensors.total`), or `num_parameters()` of
# GPT2LMHeadModel and BertModel; DeepSeek-V3: elements of its 61 layers' tensors, without scales and the extra module
HUGGING_FACE = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "bert-large": 335_141_888,
}
# torchvision/models/{resnet,vgg,vision_transformer}.py: `num_params`, and `_ops` in 10⁹ multiply-adds per image
TORCHVISION = {
    "resnet-50": (25_557_032, 4.089),
    "resnet-101": (44_549_160, 7.801),
    "resnet-152": (60_192_808, 11.514),
    "vgg-16": (138_357_544, 15.470),
    "vit-b-16": (86_567_656, 17.564),
    "vit-l-16": (304_326_632, 61.555),
    "vit-h-14": (632_045_800, 167.295),
}
# Brown et al., arXiv 2005.14165, table 2.1, in millions
GPT3 = {"125m": 125, "350m": 350, "760m": 760, "1.3b": 1300, "2.7b": 2700, "6.7b": 6700, "13b": 13000, "175b": 175000}
# Mixtral: arXiv 2401.04088; DeepSeek: arXiv 2405.04434 and 2412.19437; in 10⁹, with decimals as printed there
ACTIVE = {"mixtral-8x7b": (12.9, 1), "deepseek-v2": (21, 0), "deepseek-v3": (37, 0)}


def test_every_published_model_is_held_against_a_figure():
    assert set(catalogue.names()) == {*HUGGING_FACE, *TORCHVISION, *(f"gpt3-{size}" for size in GPT3)}


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


def test_gpt3_175b_has_the_parameters_of_its_sizes():
    h, layers, vocab, sequence = 12288, 96, 50257, 2048
    assert model("gpt3-175b").parameters == 12 * layers * h * h + 13 * layers * h + (vocab + sequence + 2) * h
    assert round(model("gpt3-175b").parameters / 10**9, 1) == 174.6


@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_passes_the_published_share_of_experts(name):
    figure, digits = ACTIVE[name]
    own = catalogue.model(name)
    # a look-up multiplies nothing; without it DeepSeek-V3 has 36.6 B (its README_WEIGHTS.md: 36.7, its paper: 37)
    embedding = own.layers[0].parameters.total if name.startswith("deepseek") else 0
    assert round((own.active - embedding) / 10**9, digits) == figure


def test_dense_models_pass_all_their_parameters():
    dense = [model(name) for name in catalogue.names() if name not in ACTIVE]
    assert all(own.active == own.parameters for own in dense)


def test_every_model_names_its_source():
    for name in catalogue.names():
        assert "arXiv" in catalogue.source(name) or "Radford" in catalogue.source(name)


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
    ],
)
def test_wrong_names_and_values_are_answered_in_one_line(values, said):
    with pytest.raises(UsageError) as error:
        model(values)
    assert str(error.value) == said
