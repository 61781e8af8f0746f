"""Flash attention: its rate by number of keys and size of heads, windows, and kernels that were measured."""

import pytest

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import ScenarioError
from hybrid_des.workload.models.catalogue import model

PEAK = 989e12
MODEL = {"layers": 4, "hidden": 512, "heads": 4, "ffn": 1024, "vocab": 4096, "sequence": 2048, "head_size": 128}


def attention(place=1, reached=None, parallel=None, **sizes):
    """Seconds of a block's attention in the forward, and its FLOP per token."""
    found = load({
        "model": MODEL | sizes, "cluster": {"gpu": "h100"}, "parallel": parallel or {}, "schedule": {"kind": "1f1b"},
        "efficiency": {"attention": 0.5, "attention_half": 0, "attention_head": 0, **(reached or {})},
    })  # fmt: skip
    layer = layer_parts(CostBasis.of(found))[place]
    return next((took.forward, float(one.flop)) for one, took in layer.operations if one.name == "attention")


def test_attention_over_few_keys_is_slower():
    whole, flop = attention()
    assert whole == pytest.approx(2048 * flop / (0.5 * PEAK))
    assert attention(reached={"attention_half": 2048})[0] == pytest.approx(2 * whole)
    assert attention(reached={"attention_half": 4096})[0] == pytest.approx(3 * whole)


def test_attention_is_stated_for_heads_of_128():
    assert attention(reached={"attention_head": 64})[0] == pytest.approx(attention()[0])
    whole = attention(head_size=64, heads=8)[0]
    assert attention(reached={"attention_head": 64}, head_size=64, heads=8)[0] == pytest.approx(whole * 2 / 1.5)


def test_context_ranks_attend_block_by_block():
    half, divided = {"attention_half": 1024}, {"context": 2}
    alone = attention(parallel=divided)[0]
    for method, keys in (("ring", 1024), ("all-gather", 1024), ("all-to-all", 2048)):
        took = attention(reached=half, parallel={**divided, "context_method": method})[0]
        assert took == pytest.approx(alone * (keys + 1024) / keys)


def test_every_second_block_attends_to_a_window():
    whole, flop = attention()
    some, fewer = attention(window=256)
    assert fewer == pytest.approx(flop * (256 - 256**2 / 4096) / 1024)
    assert (some, attention(2, window=256)[0]) == (pytest.approx(whole * fewer / flop), whole)
    assert attention(2, window=256, window_every=1)[0] == some
    reached = attention(reached={"attention_half": 256}, window=256)[0]
    assert reached == pytest.approx(2 * some)  # a window has few keys
    assert attention(window=4096) == attention()


def test_a_window_of_all_tokens_is_none():
    assert model({**MODEL, "window": 2048}).flop == model(MODEL).flop
    with pytest.raises(ScenarioError, match="window"):
        attention(window=0)
