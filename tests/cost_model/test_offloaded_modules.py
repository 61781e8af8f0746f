"""Activations of single modules in the memory of the host, as Megatron-LM's fine-grained activation offloading.

A module's are the inputs that it keeps for its backward (NVIDIA/Megatron-LM, docs/source/api-guide,
fine_grained_activation_offloading.md).
"""

import pytest
from support.tables import from_table

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of

M, H = 128, 256  # tokens of a micro-batch, hidden size
SIZES = {"layers": 2, "hidden": H, "heads": 8, "kv_heads": 2, "ffn": 512, "vocab": 1024, "sequence": M}
EXPERTS = {"count": 8, "active": 2, "ffn": 128, "dense_layers": 1}
MODEL = {"kind": "transformer", **SIZES, "experts": EXPERTS}


def scenario(activations, **more):
    return load({
        "model": MODEL, "schedule": {"microbatches": 2}, "cluster": {"gpu": "b200", "gpus_per_node": 4},
        "offload": {"activations": activations}, **more,
    })  # fmt: skip


def offloaded(activations, **more):
    _, dense, mixture, _ = layer_parts(CostBasis.of(scenario(activations, **more)))
    return dense.offloaded / M, mixture.offloaded / M


# module → bytes per token of a dense block, and of one with experts
BYTES = {
    "attn_norm": (2 * H, 2 * H), "mlp_norm": (2 * H, 2 * H), "qkv_linear": (2 * H, 2 * H),
    "core_attn": (2 * (H + 2 * 64), 2 * (H + 2 * 64)), "expert_fc1": (0, 2 * 2 * H), "moe_act": (0, 2 * 2 * 256),
    "fused_group_mlp": (0, 2 * 2 * (H + 256 + 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", BYTES)
def test_a_module_moves_its_inputs(name):
    assert offloaded([name]) == BYTES[name]
    expert = {"parallel": {"expert": 4, "data": 4}}
    assert offloaded([name], **expert) == BYTES[name]


def test_modules_move_what_each_moves():
    names = ["core_attn", "attn_proj", "expert_fc1"]
    assert offloaded(names) == tuple(BYTES["core_attn"][0] + 2 * H + more for more in (0, BYTES["expert_fc1"][1]))


def test_inputs_in_few_bits_move_fewer_bytes():
    assert offloaded(["expert_fc1", "qkv_linear"], precision="fp8-current") == (H, H + 2 * H)


def test_what_was_moved_is_not_kept_and_crosses_the_link():
    cluster = {"gpu": "b200", "gpus_per_node": 4, "host": "1 MB/s"}
    stages = [parts_of(scenario(names, cluster=cluster)).costs.stages[0, 0] for names in (0, ["core_attn"])]
    moved = 2 * M * BYTES["core_attn"][0]
    assert stages[0].kept - stages[1].kept == moved
    assert stages[1].forward >= moved / 10**6 * 10**12 > stages[0].forward  # at a megabyte per second


def test_a_share_moves_as_much_of_a_block_as_before():
    dense = layer_parts(CostBasis.of(scenario(0.25)))[1]
    assert dense.offloaded == round(dense.kept / 4)


@from_table
def test_offloaded_modules_that_are_refused(activations, more, message):
    with pytest.raises(ScenarioError) as caught:
        scenario(activations, **more)
    assert message in str(caught.value)
