"""Launch lines name what they cannot say of models with kinds of blocks."""

from support.scenarios import merged
from support.spaces import TINY, of_model

from hybrid_des import load
from hybrid_des.interchange.frameworks import megatron, torchtitan

KINDS = {"kinds": {"a": {"window": 64}, "b": {"mixer": "none"}}, "pattern": "a b"}


def unsaid(write, **model):
    lines = write(load(merged(of_model(), {"model": {**TINY, **model}}))).unsaid
    return [line for line in lines if line.startswith("model.")]


def test_kinds_of_blocks_have_no_flags_yet():
    for write in (megatron, torchtitan):
        assert unsaid(write) == []
        assert unsaid(write, **KINDS) == ["model.kinds"]
        assert unsaid(write, mlp="relu2", gate="head", norms=4) == ["model.gate", "model.norms", "model.mlp: relu2"]
    predictions = {"kinds": "a b", "passes": 2}
    assert "model.predictions: kinds and passes" in unsaid(megatron, **KINDS, predictions=predictions)
    line = megatron(load(merged(of_model(), {"model": {**TINY, **KINDS, "predictions": predictions}})))
    assert "--mtp-num-layers 2" in line.flags
