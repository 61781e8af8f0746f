"""Frozen weights and adapters: FLOP, time, memory and messages of fine-tuning."""

from dataclasses import replace

import pytest

from hybrid_des import simulate
from hybrid_des.cost_model.operation_times import Device, ProductUse
from hybrid_des.errors import ScenarioError
from hybrid_des.workload.models.amounts import Parameters
from hybrid_des.workload.models.kinds.transformer import Transformer, transformer
from hybrid_des.workload.models.operations import Gemm

SIZES = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "sequence": 1024}
ADAPTERS = {"rank": 16}


def network(**values):
    return transformer(Transformer.model_validate({**SIZES, **values}))


def summary(model, **values):
    cluster = {"gpu": "h100", "nodes": 1, "gpus_per_node": 8}
    model = {"kind": "transformer", **SIZES, **model}
    return simulate(
        {"name": "tuned", "cluster": cluster, "model": model, "schedule": {"kind": "1f1b"}, **values}
    ).summary


def test_frozen_products_convert_their_operands_in_one_layout():
    """The other is the gradient of the weights' (NVIDIA/TransformerEngine, ops/basic/basic_linear.py: columnwise)."""
    tokens, n, k = 8192, 2048, 1024
    device = Device(1e15, 5e14, 5e14, 1e12, 132, operand=1.0)
    frozen, trained = (
        device.layer_product(tokens, n, k, 1, ProductUse(quantised=True, trained=value)) for value in (False, True)
    )
    assert trained.forward - frozen.forward == pytest.approx(tokens * k / 1e12)
    assert trained.input - frozen.input == pytest.approx(tokens * n / 1e12)
    assert frozen.weight == 0 < trained.weight


def products_of(model):
    return sum(one.flop for layer in model.layers for one in layer.operations if isinstance(one, Gemm)) * model.tokens


def test_frozen_products_take_two_thirds():
    """All but the first layer's: of products of blocks and logits, one of three is left out."""
    trained, frozen = (summary({"frozen": value} if value else {})["flop_per_step"] for value in (None, 4))
    blocks = 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096) * 2 * 1024
    core = network().flop - products_of(network())
    assert trained - frozen == 2 * (blocks + core)  # nothing before the logits is trained: forwards only
    adapted = summary({"frozen": "all", "adapters": ADAPTERS})["flop_per_step"]
    thin = 4 * 2 * 1024 * 16 * (1024 + 3 * 1024 + 1024 + 1024)
    assert adapted == trained - products_of(network()) + 3 * thin


def test_flop_per_token_is_what_is_published():
    """LoRA of Llama 3 70B: 278.8 GFLOP per token (NVIDIA-NeMo/Megatron-Bridge, performance summary 26.06)."""
    sizes = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256, "sequence": 4096}
    model = network(**sizes, frozen="all", adapters={"rank": 16, "on": ["queries", "keys", "values"]})
    flop = 3 * model.flop - model.tokens * sum(one.flop for one in model.skipped)
    cores = sum(one.flop for layer in model.layers for one in layer.operations if not isinstance(one, Gemm))
    assert float(flop / model.tokens - 3 * cores) / 1e9 == pytest.approx(278.8, rel=0.003)


def test_adapters_have_rank_times_both_sides():
    plain, tuned = network(), network(frozen="all", adapters={"rank": 8, "on": ["output", "down"]})
    each = 8 * (1024 + 1024) + 8 * (4096 + 1024)
    assert tuned.parameters - plain.parameters == 4 * each
    assert sum(layer.parameters.total for layer in tuned.layers) == 4 * each


def test_frozen_weights_have_two_bytes():
    found = summary({"frozen": "all", "adapters": ADAPTERS}, sharding="none")["memory_parts_bytes"]
    own = 4 * 16 * (1024 + 3 * 1024 + 1024 + 1024)
    assert found["parameters"] == 2 * network(frozen="all", adapters=ADAPTERS).parameters
    assert (found["gradients"], found["optimizer"]) == (4 * own, 12 * own)


def test_inputs_that_no_gradient_needs_are_not_kept():
    """Of an MLP: its input, and that of its second product, unless an adapter reads them."""
    kept = [
        network(**values).layers[1].kept.total
        for values in (
            {},
            {"frozen": "all", "adapters": {"rank": 1, "on": ["queries"]}},
            {"frozen": "all", "adapters": {"rank": 1, "on": ["queries", "up", "down"]}},
        )
    ]
    assert kept[0] - kept[1] == 2 * (1024 + 4096) - 2  # less the vector between the products of the adapter
    assert kept[2] - kept[1] == 2 * (1024 + 4096) + 2 * 2


def test_layers_before_all_trained_ones_only_run_forwards():
    model = network(frozen=3)
    assert [layer.passed for layer in model.layers] == [True] * 4 + [False] * 2
    found = {value: summary({"frozen": value}, batch=8) for value in (1, 3)}
    assert found[3]["memory_parts_bytes"]["activations"] < found[1]["memory_parts_bytes"]["activations"]
    assert found[3]["step_time_s"] < found[1]["step_time_s"]


def test_a_model_without_training_runs_forwards_only():
    found = summary({"frozen": "all"})
    assert found["flop_per_step"] == network().flop
    assert found["memory_parts_bytes"]["gradients"] == found["memory_parts_bytes"]["optimizer"] == 0


def test_nothing_of_frozen_weights_is_reduced():
    parallel = {"parallel": {"data": 8}, "batch": 8, "gradients": {"overlap": False}}
    tuned = summary({"frozen": "all", "adapters": ADAPTERS}, **parallel)
    own = 4 * 16 * (1024 + 3 * 1024 + 1024 + 1024)
    whole = summary({}, **parallel)
    share = tuned["bytes_gradients"] / whole["bytes_gradients"]
    assert share == pytest.approx(own / network().parameters, rel=1e-3)


def test_fully_sharded_frozen_weights_are_gathered():
    parallel = {"parallel": {"data": 8}, "batch": 8, "sharding": "zero-3"}
    tuned, whole = (summary(model, **parallel) for model in ({"frozen": "all", "adapters": ADAPTERS}, {}))
    assert tuned["bytes_parameters"] == pytest.approx(whole["bytes_parameters"], rel=0.03)
    assert tuned["bytes_gradients"] < 0.02 * whole["bytes_gradients"]


@pytest.mark.parametrize("tensor", [2, 4])
def test_tensor_ranks_divide_adapters(tensor):
    model = {"frozen": "all", "adapters": ADAPTERS}
    one = summary(model, batch=1)
    found = summary(model, parallel={"tensor": tensor, "sequence": True}, batch=1)
    assert found["flop_per_step"] == one["flop_per_step"]
    assert tensor * found["memory_parts_bytes"]["optimizer"] == one["memory_parts_bytes"]["optimizer"]
    assert found["communication_s"]["tensor"]["exposed"] > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"frozen": "some"}, "expected all, or a number of blocks"),
        ({"frozen": 0}, "model.frozen"),
        ({"frozen": 9}, "9 of only 4 layers"),
        ({"adapters": ADAPTERS}, "beside frozen GEMMs"),
        (
            {"frozen": "all", "adapters": {"rank": 8, "on": ["down"]}, "experts": {"count": 8, "active": 2, "ffn": 64}},
            "model.adapters.on: down: no frozen layer of this model has it",
        ),
        ({"frozen": "all", "adapters": {"rank": 8, "on": ["router"]}}, 'unknown "router"'),
        ({"frozen": "all", "adapters": {"on": ["up"]}}, "adapters.rank"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(model, message):
    with pytest.raises(ScenarioError) as error:
        summary(model)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_forwards_alone_do_not_run_in_pipelines():
    for frozen in ("all", 2):
        with pytest.raises(ScenarioError, match="pipelines send gradients to each stage"):
            summary({"frozen": frozen}, parallel={"pipeline": 2}, batch=4)
    summary({"frozen": "all", "adapters": ADAPTERS}, parallel={"pipeline": 2}, batch=4)


def test_a_trained_model_has_nothing_frozen():
    layers = network().layers
    assert all(layer == replace(layer, frozen=Parameters(), passed=False) for layer in layers)
