"""Recomputation by module, and modules that predict a further token."""

import pytest
from support.tables import from_table

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.modelled import layer_parts
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of
from hybrid_des.workload.models.kinds.registration import make_model
from hybrid_des.workload.models.layer import Gemm

LATENT = {"query": 96, "key_value": 64, "nope": 32, "rope": 16, "value": 32}
MIXTURE = {
    "layers": 2, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1024, "sequence": 128, "latent": LATENT,
    "experts": {"count": 8, "active": 2, "ffn": 128, "shared": 1, "dense_layers": 1},
}  # fmt: skip
M, H = 128, 256  # tokens of a micro-batch, hidden size


def scenario(recompute="none", **more):
    model = {**MIXTURE, **more.pop("model", {})}
    return load({
        "model": {"kind": "transformer", **model}, "recompute": recompute, "schedule": {"microbatches": 2},
        "cluster": {"gpu": "h100"}, **more,
    })  # fmt: skip


def layers(*arguments, **more):
    return layer_parts(CostBasis.of(scenario(*arguments, **more)))


def forward(layer, *names):
    return sum(took.forward for one, took in layer.operations if one.name in names)


# module → bytes that a dense block, and one with experts, no longer keep; the operations that they repeat
MODULES = {
    "mla_up_proj": (2 * 8 * (2 * 48 + 32), 2 * 8 * (2 * 48 + 32),
                    ("queries up", "keys and values up", "query norm", "key and value norm")),
    "mlp": (2 * 3 * 512, 0, ("MLP up", "activation", "MLP down")),
    "shared_experts": (0, 2 * 3 * 128, ("shared MLP up", "shared activation", "shared MLP down")),
    "moe_act": (0, 2 * 2 * 128, ("experts' activation",)),
    "core_attn": (0, 0, ("attention",)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_computed_again_and_not_kept(name):
    *saved, operations = MODULES[name]
    for number, (kept, again) in enumerate(zip(layers()[1:3], layers([name])[1:3], strict=True)):
        assert kept.kept - again.kept == M * saved[number]
        assert again.again == pytest.approx(forward(kept, *operations), rel=1e-12)
        assert again.times == kept.times


def test_norms_are_computed_again_from_their_inputs():
    kept, again = layers()[1], layers(["layernorm"])[1]
    assert kept.kept - again.kept == M * 2 * 2 * H
    assert 0 < again.again < forward(kept, "norms and residuals")


def test_modules_add_up():
    each = [layers([name])[2] for name in ("mla_up_proj", "moe_act")]
    both = layers(["mla_up_proj", "moe_act"])[2]
    assert both.again == pytest.approx(sum(one.again for one in each))
    assert layers()[2].kept - both.kept == sum(layers()[2].kept - one.kept for one in each)


def test_the_attention_core_as_a_module_is_selective():
    plain = {"latent": None, "attention": "plain"}
    named, level = (parts_of(scenario(way, model=plain)).costs for way in (["core_attn"], "selective"))
    assert named == level


@from_table
def test_unknown_modules_are_told(recompute, message):
    with pytest.raises(ScenarioError) as caught:
        scenario(recompute, model={"experts": None})
    assert message in str(caught.value)


def test_a_prediction_is_a_block_with_logits():
    plain, predicting = (make_model("transformer", {**MIXTURE, "predictions": count}) for count in (0, 1))
    *_, block, logits = plain.layers
    *before, module, last = predicting.layers
    assert (before, last) == ([*plain.layers[:-1]], logits)
    joining = 2 * H * H
    assert module.flop == block.flop + 2 * joining + 2 * H * 1024
    assert module.parameters.total == block.parameters.total + joining + 3 * H
    assert module.parameters.tied == 1024 * H
    products = [one.name for one in module.operations if isinstance(one, Gemm)]
    assert (products[0], products[-1], products.count("logits")) == ("joining", "logits", 1)


def test_a_prediction_stays_with_the_logits():
    costs = parts_of(scenario(
        parallel={"pipeline": 2, "stages": [2, 0]}, schedule={"kind": "1f1b", "microbatches": 2},
        model={"predictions": 1},
    )).costs  # fmt: skip
    assert [len(costs.stages[rank, 0].layers) for rank in (0, 1)] == [3, 2]
    first, last = (costs.stages[rank, 0] for rank in (0, 1))
    assert last.states.experts == first.states.experts
