"""What a software stack sets: fusion, kernels of attention and experts, launches; and heads without tensor cores."""

import pytest

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import ScenarioError


def given(model="llama3.1-8b", gpu="h100", **sections):
    model = {"base": model} if isinstance(model, str) else model
    return load({"model": model, "cluster": {"gpu": gpu}, **sections})


@pytest.mark.parametrize(("written", "blocks", "loss", "attention", "launch"), [
    ("megatron", "fused", "fused", 0.67, 115e-6), ("deepspeed", "fused", "eager", 0.67, 115e-6),
    ("pytorch", "eager", "eager", 0.4, 115e-6), ("compiled", "fused", "compiled", 0.4, 115e-6),
    ("jax", "fused", "compiled", 0.67, 0),
])  # fmt: skip
def test_a_stack_sets_fusion_attention_and_launches(written, blocks, loss, attention, launch):
    scenario = given({"base": "llama3.1-8b", "written": written})
    assert (scenario.operators.blocks, scenario.operators.loss) == (blocks, loss)
    assert float(scenario.efficiency.attention) == attention
    assert float(scenario.efficiency.launch) == launch


def test_each_key_of_a_stack_may_be_set():
    model = {"base": "llama3.1-8b", "written": "pytorch"}
    own = {"operators": {"blocks": "fused", "attention": "triton"}, "efficiency": {"launch": "7 us"}}
    scenario = given(model, **own)
    assert (scenario.operators.blocks, scenario.operators.loss) == ("fused", "eager")
    assert float(scenario.efficiency.attention) == 0.22
    assert float(scenario.efficiency.launch) == 7e-6
    assert float(given(model, **own | {"efficiency": {"attention": 0.3}}).efficiency.attention) == 0.3


@pytest.mark.parametrize(("written", "kernel"), [("megatron", "per-expert"), ("pytorch", "fused"), ("jax", "fused")])
def test_a_stack_says_how_experts_are_multiplied(written, kernel):
    assert given({"base": "mixtral-8x7b", "written": written}).experts.kernel == kernel


def test_experts_and_latent_attention_may_be_written_in_pytorch():
    for model in ("mixtral-8x7b", "deepseek-v2"):
        assert given({"base": model, "written": "pytorch"}).operators.blocks == "eager"


def test_kernels_that_a_gpu_lacks_are_refused():
    with pytest.raises(ScenarioError, match=r"operators.attention: what flash-3 reaches is not known on a100-80gb"):
        given(gpu="a100-80gb", operators={"attention": "flash-3"})
    reached = {"attention": 0.5}
    assert given(gpu="a100-80gb", operators={"attention": "flash-3"}, efficiency=reached).efficiency.attention


def test_plain_attention_is_said_once():
    assert given(operators={"attention": "plain"}).model.options.attention == "plain"
    with pytest.raises(ScenarioError, match=r"operators.attention"):
        given({"base": "llama3.1-8b", "attention": "flash"}, operators={"attention": "plain"})


def test_convolutions_have_no_default_of_launches():
    resnet = given({"kind": "resnet", "blocks": [3, 4, 6, 3]})
    assert resnet.efficiency.launch == 0


GPT = {"layers": 1, "heads": 96, "ffn": 57600, "vocab": 50304, "sequence": 2048, "mlp": "gelu", "attention": "plain"}


def attention(hidden, heads, kind="plain"):
    model = GPT | {"hidden": hidden, "heads": heads, "attention": kind}
    parts = layer_parts(CostBasis.of(given(model, gpu="a100-80gb")))[1]
    return next(took.forward for one, took in parts.operations if one.name == "attention")


def test_heads_of_odd_size_use_no_tensor_cores():
    """bigscience's table: hidden 14400 with heads of 150 took 1.38 times as long as 13824 with 144."""
    assert attention(14400, 96) > 4 * attention(13824, 96)  # the passes over the scores stay
    assert attention(14400, 96, "flash") < 1.2 * attention(13824, 96, "flash")  # flash kernels pad
