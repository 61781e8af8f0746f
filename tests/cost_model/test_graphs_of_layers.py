"""CUDA graphs of layers: what is copied to and from them, and hosts that wait for the tokens of experts."""

import pytest

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import AFTER_TOKENS, EXPERT_CALL, EXPERT_CONVERSION, layer_parts
from hybrid_des.planning.planner import parts_of

DENSE = {"layers": 2, "hidden": 256, "heads": 8, "ffn": 1024, "vocab": 512, "sequence": 128}
EXPERTS = {"count": 16, "active": 2, "ffn": 128}
MEMORY = 0.5 * 3.35e12  # bytes per second of the H100 below
LAUNCH = 10e-3  # seconds, longer than all else


def given(model, **sections):
    efficiency = {"memory": 0.5, "launch": f"{LAUNCH} s"}
    cluster = {"gpu": "h100", "nodes": 1, "gpus_per_node": 1}
    return load(
        {"model": model, "cluster": cluster, "schedule": {"microbatches": 2}, "efficiency": efficiency, **sections}
    )


def copies(model, graphs):
    parts = layer_parts(CostBasis.of(given(model, cuda_graphs=graphs)))[1]
    return {one.name: took for one, took in parts.operations}.get("copies around graphs")


@pytest.mark.parametrize(
    ("experts", "results"), [(None, 1), (EXPERTS, 2), (EXPERTS | {"shared": 1}, 3)], ids=["dense", "routed", "shared"]
)
def test_graphs_copy_an_input_and_gradients_of_results(experts, results):
    """TransformerEngine, pytorch/graph.py: read and written, 2 bytes per element."""
    model = DENSE if experts is None else DENSE | {"experts": experts}
    took = copies(model, "layers")
    once = 2 * 2 * 256 * 128 / MEMORY
    assert (took.forward, took.input, took.weight) == pytest.approx((once, results * once, 0))


@pytest.mark.parametrize("graphs", ["none", "full"])
def test_nothing_is_copied_without_graphs_of_layers(graphs):
    assert copies(DENSE, graphs) is None


def waits(**sections):
    """Seconds of the forward of a block with experts, and of what is computed before their tokens arrive."""
    scenario = given(DENSE | {"experts": EXPERTS}, cuda_graphs="layers", **sections)
    parts = layer_parts(CostBasis.of(scenario))[1]
    before = sum(took.forward for one, took in parts.operations if not getattr(one, "expert", False))
    return parts_of(scenario).costs.stages[0, 0].layers[1].forward / 1e12, before


@pytest.mark.parametrize(("precision", "conversions"), [("bf16", 0), ("fp8", 1)])
def test_a_host_without_lead_launches_experts_after_the_rest(precision, conversions):
    """Nine kernels of experts less those before tokens, two conversions, and calls for 16 experts of two products."""
    took, before = waits(precision=precision)
    launched = 9 + AFTER_TOKENS + conversions * 2 + 2 * 16 * (EXPERT_CALL + conversions * EXPERT_CONVERSION)
    assert took == pytest.approx(before + launched * LAUNCH, rel=1e-9)


def test_a_host_that_need_not_count_keeps_its_lead():
    """One kernel of all experts reads their numbers of tokens on the GPU."""
    took, _ = waits(experts={"kernel": "fused"})
    assert took == pytest.approx(9 * LAUNCH, rel=1e-9)
