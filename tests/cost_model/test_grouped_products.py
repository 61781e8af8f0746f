"""Products of experts against measured ones, and what the host takes for them."""

import pytest

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.cost_model.operation_times import PER_EXPERT, Device
from hybrid_des.planning.planner import parts_of

# Grouped products of TransformerEngine in bf16 with sums of gradients in fp32: experts, rows of each, n, k, and the
# shares of the peak that forward, input gradient and weight gradient reached (github.com/MooreThreads/SimuMax,
# Apache-2.0: configs/system/a100_pcie.json and b200_bf16_ceperm.json); `gemm`: its `efficient_factor` of all products
A100 = [
    (40, 616, 3072, 5120, None, 0.6791, 0.5197), (40, 616, 5120, 1536, 0.6293, 0.6582, 0.5198),
    (20, 1232, 3072, 5120, 0.7074, 0.7039, 0.6036), (20, 1232, 5120, 1536, 0.6755, 0.6572, 0.6372),
]  # fmt: skip
B200 = [
    (160, 154, 5120, 1536, 0.1158, 0.1228, 0.0828), (256, 128, 4096, 7168, 0.2081, 0.2264, 0.0775),
    (256, 128, 7168, 2048, 0.1782, 0.1513, 0.0801), (80, 308, 3072, 5120, 0.3868, 0.3044, 0.1616),
    (80, 308, 5120, 1536, 0.2350, 0.2495, 0.1780), (128, 256, 4096, 7168, 0.2714, 0.3325, 0.1473),
    (128, 256, 7168, 2048, 0.3035, 0.2329, 0.1409), (40, 616, 3072, 5120, 0.4618, 0.3213, 0.2579),
    (40, 616, 5120, 1536, 0.3258, 0.2807, 0.2723), (64, 512, 4096, 7168, 0.3670, 0.4046, 0.2192),
    (64, 512, 7168, 2048, 0.4274, 0.2942, 0.2145), (20, 1232, 3072, 5120, 0.5134, 0.4215, 0.3276),
    (20, 1232, 5120, 1536, 0.3974, 0.3891, 0.3198), (32, 1024, 4096, 7168, 0.4571, 0.4355, 0.2888),
    (32, 1024, 7168, 2048, 0.3842, 0.4301, 0.2744),
]  # fmt: skip
MACHINES = {
    "A100": (A100, {"peak": 312e12, "gemm": 0.75, "memory": 0.8 * 1.935e12, "multiprocessors": 108}),
    "B200": (B200, {"peak": 2250e12, "gemm": 0.488, "memory": 0.8 * 8e12, "multiprocessors": 148}),
}
MIXTURE = {
    "layers": 2, "hidden": 256, "heads": 8, "ffn": 1024, "vocab": 512, "sequence": 128,
    "experts": {"count": 16, "active": 2, "ffn": 128},
}  # fmt: skip


def errors(machine, **more):
    rows, figures = MACHINES[machine]
    flops = figures["peak"] * figures["gemm"]
    rates = {"memory": figures["memory"], "multiprocessors": figures["multiprocessors"], "accumulating": 8, **more}
    device = Device(flops, flops, flops, **rates).of_experts
    return [
        took * figures["peak"] * share / (2 * m * n * k * count) - 1
        for count, m, n, k, *shares in rows
        for took, share in zip(device.layer_product(m, n, k, count), shares, strict=True)
        if share is not None
    ]


def mean(errors):
    return sum(map(abs, errors)) / len(errors)


@pytest.mark.parametrize(("machine", "most"), [("A100", 0.08), ("B200", 0.14)])
def test_calls_per_expert_explain_what_no_share_does(machine, most):
    law = errors(machine, per_expert=PER_EXPERT)
    assert mean(law) < most
    assert abs(sum(law) / len(law)) < 0.04
    assert mean(errors(machine, grouped=0.58)) > 2 * mean(law)


def block(**sections):
    given = load({"model": MIXTURE, "cluster": {"gpu": "h100"}, "schedule": {"microbatches": 2}, **sections})
    return layer_parts(CostBasis.of(given))[1]


def test_each_expert_adds_its_call_unless_one_kernel_does_all():
    called, fused = (
        {one.name: took for one, took in block(experts={"kernel": kernel}).operations}
        for kernel in ("per-expert", "fused")
    )
    for name in ("experts up", "experts down"):
        for one, other in zip(called[name], fused[name], strict=True):
            assert one - other == pytest.approx(16 * PER_EXPERT, rel=1e-9)
    assert called["attention output"] == fused["attention output"]


def host(way="forward", **sections):
    """Microseconds for which the GPU waits for the host in a pass over a block, and those of the rest."""
    given = load({"model": MIXTURE, "cluster": {"gpu": "h100"}, "schedule": {"microbatches": 2}, **sections})
    stage = parts_of(given).costs.stages[0, 0].layers[1]
    waits = getattr(stage.host_times, way)
    return waits / 10**6, (getattr(stage, way) - waits) / 10**6


@pytest.mark.parametrize(("held", "further"), [(16, (4 + 6, 6)), (1, (4, 0))])
def test_a_host_counts_tokens_once_and_sorts_for_several_experts(held, further):
    """Counts have no gradients, and tokens of one expert are in order (Megatron-LM, MoEAlltoAllTokenDispatcher)."""
    cluster = {"gpu": "h100", "nodes": 16 // held, "gpus_per_node": 1}
    alike = {"cluster": cluster, "parallel": {"data": 16 // held, "expert": 16 // held}}
    counted = {"dispatcher": "all-to-all", "kernel": "fused"}
    padded = counted | {"capacity_factor": 1, "pad": True}
    for way, more in zip(("forward", "backward"), further, strict=True):
        waits = [sum(host(way, experts=how, **alike)) for how in (padded, counted)]
        assert waits[1] - waits[0] == pytest.approx(more * 115, abs=0.01)


@pytest.mark.parametrize(("graphs", "further"), [("none", (4, 4)), ("layers", (2, 2)), ("full", (0, 0))])
def test_a_host_launches_conversions_to_eight_bits(graphs, further):
    """Of the inputs of four products, of which two are of experts, and of their gradients; the router stays."""
    for way, more in zip(("forward", "backward"), further, strict=True):
        alike = {"efficiency": {"launch": "10 ms"}, "experts": {"kernel": "fused"}}  # longer than all else
        took = [sum(host(way, precision=bits, cuda_graphs=graphs, **alike)) for bits in ("bf16", "fp8")]
        assert took[1] - took[0] == pytest.approx(more * 10**4, abs=100)


@pytest.mark.parametrize(("precision", "each"), [("bf16", 9), ("fp8", 9 + 4.5)])
def test_a_host_calls_products_and_conversions_of_each_expert(precision, each):
    alike = {"precision": precision, "efficiency": {"launch": "115 us"}}
    fused, called = (sum(host(experts={"kernel": kernel}, **alike)) for kernel in ("fused", "per-expert"))
    assert called - fused == pytest.approx(2 * 16 * each, rel=1e-3)


def test_a_graph_of_the_whole_step_needs_no_host():
    assert host(cuda_graphs="full")[0] == 0
    assert host(efficiency={"launch": 0})[0] == 0
    assert host()[0] > 0


def test_biases_of_experts_are_passes_unless_one_kernel_does_all():
    biased = {"model": MIXTURE | {"bias": True}}
    took = {
        kernel: {one.name: took for one, took in block(**biased, experts={"kernel": kernel}).operations}
        for kernel in ("per-expert", "fused")
    }
    memory = 0.8 * 3350e9
    assert took["per-expert"]["experts' biases"].forward == pytest.approx(128 * 2 * 256 * 28 / memory)
    assert sum(took["fused"]["experts' biases"]) == 0
