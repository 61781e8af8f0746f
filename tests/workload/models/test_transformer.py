"""Transformers: operations, activations and parameters against the formulas of the papers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import from_table

from hybrid_des.errors import Refusal
from hybrid_des.workload.models.catalogue import model
from hybrid_des.workload.models.kinds.registration import ModelRefusal, make_model
from hybrid_des.workload.models.operations import Attention, Elementwise, Gemm

GPT = {"mlp": "gelu", "norm": "layer", "bias": True, "positions": "learned", "tied": True}


@st.composite
def sizes(draw):
    """Sizes of a dense transformer: heads share keys and values in groups."""
    kv_heads, group, size = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 16))
    return {
        "layers": draw(st.integers(1, 5)),
        "hidden": kv_heads * group * size,
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "ffn": draw(st.integers(1, 300)),
        "vocab": draw(st.integers(1, 1000)),
        "sequence": draw(st.integers(1, 100)),
        "mlp": draw(st.sampled_from(["gelu", "swiglu"])),
        "attention": draw(st.sampled_from(["plain", "flash"])),
        "tied": draw(st.booleans()),
        "bias": draw(st.booleans()),
    }


@st.composite
def mixtures(draw):
    count = draw(st.integers(1, 16))
    experts = {
        "count": count,
        "active": draw(st.integers(1, count)),
        "shared": draw(st.integers(0, 2)),
        "ffn": draw(st.integers(1, 50)),
        "dense_layers": draw(st.integers(0, 1)),
    }
    return {**draw(sizes()), "experts": experts}


def weights(values):
    """Parameters of the products of all blocks that a token passes, and their biases, all and passed."""
    h, kv, f = values["hidden"], values["hidden"] * values["kv_heads"] // values["heads"], values["ffn"]
    matrices = 3 if values["mlp"] == "swiglu" else 2
    attention = 2 * h * h + 2 * h * kv
    experts = values.get("experts")
    dense = min(values["layers"], experts["dense_layers"]) if experts else values["layers"]
    passed = whole = values["layers"] * attention + dense * matrices * h * f
    if experts:
        each, sparse = matrices * h * experts["ffn"], values["layers"] - dense
        passed += sparse * (h * experts["count"] + (experts["active"] + experts["shared"]) * each)
        whole += sparse * (h * experts["count"] + (experts["count"] + experts["shared"]) * each)
    return whole, passed


@pytest.mark.slow
@given(st.one_of(sizes(), mixtures()))
def test_forward_is_two_flop_per_weight_and_attention(values):
    own, s, h = make_model("transformer", values), values["sequence"], values["hidden"]
    attention = 4 * s * s * h * values["layers"]
    if values["attention"] == "flash":
        attention //= 2
    assert own.flop == 2 * s * weights(values)[1] + attention + 2 * s * h * values["vocab"]


@given(st.one_of(sizes(), mixtures()))
def test_parameters_are_weights_norms_and_vocabulary(values):
    own, h = make_model("transformer", {**values, "bias": False}), values["hidden"]
    vocabulary = values["vocab"] * h * (1 if values["tied"] else 2)
    whole, passed = weights(values)
    assert own.parameters == whole + vocabulary + (2 * values["layers"] + 1) * h
    assert own.active == passed + vocabulary + (2 * values["layers"] + 1) * h


@given(st.one_of(sizes(), mixtures()))
def test_layers_add_up_to_their_operations_and_parameters(values):
    own = make_model("transformer", values)
    operations = [one for layer in own.layers for one in layer.operations]
    assert own.flop == own.tokens * sum(one.flop for one in operations)
    held = [layer.parameters for layer in own.layers]
    assert own.parameters == sum(one.tensor + one.replicated + one.expert for one in held)
    products = [one for one in operations if isinstance(one, Gemm)]
    tied = sum(one.tied for one in held)
    assert own.parameters + tied >= sum(one.n * one.k * one.count for one in products)


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 32), st.integers(1, 100), st.integers(1, 500))
def test_gpt_takes_the_flop_of_its_paper(layers, heads, size, s, vocab):
    """Narayanan et al., arXiv 2104.04473, appendix: 24·L·s·h²·(1 + s/(6h)) + 2·s·h·V forward."""
    h = heads * size
    sized = {"layers": layers, "hidden": h, "heads": heads, "ffn": 4 * h, "vocab": vocab, "sequence": s}
    own = make_model("transformer", {**GPT, **sized, "attention": "plain"})
    assert own.flop == 24 * layers * s * h * h * (1 + Fraction(s, 6 * h)) + 2 * s * h * vocab
    assert own.parameters == 12 * layers * h * h + 13 * layers * h + (vocab + s + 2) * h


@pytest.mark.parametrize("name", ["gpt3-175b", "gpt2-xl"])
def test_gpt_keeps_the_activations_of_its_paper(name):
    """Korthikanti et al., arXiv 2205.05198, equations 2 and 4: s·b·h·(10 + 24/t + 5as/(ht)), sequence parallelism."""
    values = {"base": name, "attention": "plain"}
    own = model(values)
    attention = next(one for one in own.layers[1].operations if isinstance(one, Attention))
    h = attention.heads * attention.key_size
    kept = own.layers[1].kept
    assert (kept.sequence, kept.tensor, kept.scores) == (10 * h, 24 * h, 5 * attention.heads * own.tokens)
    assert model(name).layers[1].kept.scores == 0
    assert own.layers[1].output == 2 * h


def test_swiglu_with_shared_keys_keeps_fewer_activations():
    """m·(8h + 2(h + 2h·kv/a) + 2h + 6f), the first term divided by t with sequence parallelism only."""
    h, f = 8192, 28672
    kept = model("llama3-70b").layers[1].kept
    assert (kept.sequence, kept.tensor) == (8 * h, 2 * (h + 2 * h * 8 // 64) + 2 * h + 6 * f)
    assert kept.total == kept.sequence + kept.tensor


@pytest.mark.parametrize(("name", "first", "second"), [("gpt2", 4, 8), ("llama2-7b", 6, 12)])
def test_memory_bound_operations_move_their_bytes(name, first, second):
    layer = model({"base": name, "attention": "plain"}).layers[1]
    h, f = {"gpt2": (768, 3072), "llama2-7b": (4096, 11008)}[name]
    moved = {"sequence": (22 * h, 30 * h), "tensor": (4 * h + first * f, 4 * h + second * f)}
    for split, (forward, backward) in moved.items():
        found = [one for one in layer.operations if isinstance(one, Elementwise) and one.split == split]
        assert (sum(one.forward for one in found), sum(one.backward for one in found)) == (forward, backward)
    attention = next(one for one in layer.operations if isinstance(one, Attention))
    pixels = attention.heads * attention.sequence
    assert attention.score_bytes == (9 * pixels, 11 * pixels)


def test_products_of_a_block_have_the_papers_shapes():
    h, kv, f = 8192, 1024, 28672
    found = [(one.n, one.k, one.split) for one in model("llama3-70b").layers[1].operations if isinstance(one, Gemm)]
    assert found == [(h + 2 * kv, h, "columns"), (h, h, "rows"), (2 * f, h, "columns"), (h, f, "rows")]


def test_logits_hold_the_vocabulary_or_share_it():
    own, shared = model("llama3-8b").layers[-1], model("gpt2").layers[-1]
    assert own.parameters.tied == 0
    assert (shared.parameters.tied, shared.parameters.tensor) == (50257 * 768, 0)
    assert own.transient == 8 * 128256


def test_experts_see_their_share_of_tokens():
    layer = model({"base": "mixtral-8x7b", "experts": {"balance": Fraction(3, 2)}}).layers[1]
    products = [one for one in layer.operations if isinstance(one, Gemm) and one.expert]
    assert [(one.count, one.rows) for one in products] == [(8, Fraction(1, 4))] * 2
    assert layer.dispatched == 2 * 2 * 4096
    assert layer.balance == Fraction(3, 2)
    assert layer.parameters.idle == layer.parameters.expert * 6 // 8


def test_dense_layers_come_before_experts():
    layers = model("deepseek-v3").layers
    assert [bool(layer.parameters.expert) for layer in layers] == [False] * 4 + [True] * 58 + [False]


def test_the_blocks_of_a_model_are_alike_but_for_names():
    blocks = model("llama3-8b").layers[1:-1]
    assert {layer.operations for layer in blocks} == {blocks[0].operations}
    assert [layer.name for layer in blocks[:2]] == ["block 0", "block 1"]


BASE = {"layers": 2, "hidden": 12, "heads": 4, "ffn": 8, "vocab": 10, "sequence": 4}


@from_table
def test_sizes_that_do_not_fit_are_refused(changed, said):
    with pytest.raises(ModelRefusal) as error:
        make_model("transformer", {**BASE, **changed})
    assert str(error.value) == said
    assert error.value.option == said.split(":")[0]


@from_table
def test_parallelism_that_does_not_divide_is_refused(name, ranks, said):
    with pytest.raises(Refusal) as error:
        model(name).check_division(**ranks)
    assert str(error.value) == said


def test_parallelism_that_divides_is_accepted():
    model("mixtral-8x7b").check_division(tensor=8, expert=8)
    model("llama3-8b").check_division(tensor=16)  # two ranks copy each head of keys
    model("resnet-50").check_division()
