"""Recomputation by module, and modules that predict a further token."""

import pytest
from support.tables import from_table

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of
from hybrid_des.workload.models.kinds.registration import make_model
from hybrid_des.workload.models.operations import Gemm

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


SHARDED = {"parallel": {"expert": 4, "data": 4}, "cluster": {"gpu": "h100", "gpus_per_node": 4}}


@pytest.mark.parametrize("precision", ["bf16", "fp8-current"])
def test_experts_as_a_whole_keep_the_input_of_their_router(precision):
    """Of a block with experts, the router's input and what attention and norms need stays (te_checkpoint's input)."""
    kept, again = (layers(recompute, precision=precision, **SHARDED)[2] for recompute in ("none", ["moe"]))
    attention = layers(model={"experts": None, "ffn": 1}, precision=precision)[1].kept  # and an MLP of one
    inner = {"bf16": 2 * H + 2 * 3, "fp8-current": H + 2 * 2 + 1}[precision]  # of that
    assert again.kept == pytest.approx(attention - M * inner + M * 2 * H, abs=M)
    assert kept.kept > again.kept


def test_experts_as_a_whole_send_their_tokens_again():
    kept, again = (layers(recompute, **SHARDED)[2] for recompute in ("none", ["moe"]))
    sent = [one for one in kept.forward if one.axis == "expert"]
    assert again.backward == (*sent, *kept.backward)
    assert layers(["moe"], **SHARDED)[1] == layers(**SHARDED)[1]  # a dense block has none
    names = ("router", "routing", "experts up", "experts' activation", "experts down",
             "shared MLP up", "shared activation", "shared MLP down")  # fmt: skip
    assert again.again == pytest.approx(forward(kept, *names))


def test_experts_as_a_whole_sum_over_tensor_ranks_again():
    parallel = {"tensor": 2, "sequence": True}
    kept, again = (layers(recompute, parallel=parallel)[2] for recompute in ("none", ["moe"]))
    assert again.backward == (*(one._replace(repeats=1) for one in kept.forward), *kept.backward)


def test_a_module_inside_of_another_is_repeated_once():
    assert layers(["moe", "moe_act", "shared_experts"])[2] == layers(["moe"])[2]


def test_experts_without_attention_sum_over_tensor_ranks_again():
    more = {
        "parallel": {"tensor": 2, "sequence": True},
        "model": {"latent": None, "kinds": {"E": {"mixer": "none"}}, "pattern": "E"},
    }
    kept, again = (layers(recompute, **more)[2] for recompute in ("none", ["moe"]))
    assert again.backward == (*kept.forward, *kept.backward)


def test_norms_are_part_of_no_other_module():
    kept, again = layers(["moe"])[2], layers(["layernorm", "moe"])[2]
    assert kept.kept - again.kept == M * 2 * 2 * H


def test_streams_do_not_send_tokens_twice():
    streams = {"experts": {"streams": True}, "schedule": {"kind": "1f1b", "microbatches": 4}, **SHARDED}
    with pytest.raises(ScenarioError, match="recompute: repeats the all-to-alls, which streams do not model"):
        scenario(["moe"], **streams)


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
