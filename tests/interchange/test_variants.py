"""Launch lines name what they cannot say of models with kinds of blocks."""

from support.scenarios import merged
from support.spaces import TINY, of_model

from hybrid_des import load
from hybrid_des.interchange.frameworks import megatron, torchtitan

KINDS = {"kinds": {"a": {"window": 64}, "b": {"mixer": "none"}}, "pattern": "a b"}


def unsaid(write, **model):
    lines = write(load(merged(of_model(), {"model": {**TINY, **model}}))).unsaid
    return [line for line in lines if line.startswith("model.")]


def test_variants_of_blocks_have_no_flags_yet():
    for write in (megatron, torchtitan):
        assert unsaid(write) == []
        assert unsaid(write, mlp="geglu", norms=4) == ["model.norms", "model.mlp: geglu"]
    assert unsaid(megatron, mlp="relu2", gate="element") == []
    assert unsaid(megatron, gate="head") == ["model.gate: head"]
    assert unsaid(torchtitan, **KINDS, mlp="relu2", gate="head") == ["model.kinds", "model.gate", "model.mlp: relu2"]


def test_kinds_have_flags_of_megatron_where_it_has_such_layers():
    assert unsaid(torchtitan, **KINDS) == ["model.kinds"]
    assert unsaid(megatron, **KINDS) == ["model.kinds"]  # a layer with both halves beside one with an MLP alone
    predictions = {"kinds": "a b", "passes": 2}
    assert "model.predictions: kinds and passes" in unsaid(torchtitan, **KINDS, predictions=predictions)
    line = megatron(load(merged(of_model(), {"model": {**TINY, "predictions": {"passes": 2}}})))
    assert {"--mtp-num-layers 2", "--mtp-use-repeated-layer"} <= {*line.flags}
