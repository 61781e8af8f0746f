"""Models written as torchtitan's: separate products, eager and checkpointed operators, copies, 8-bit gathers."""

import pytest

from hybrid_des import load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of

H, KEYS, F, V, S, HEADS = 512, 128, 1024, 4096, 256, 8  # sizes; M tokens of a micro-batch
M = 2 * S
MODEL = {
    "layers": 3, "hidden": H, "heads": HEADS, "kv_heads": 2, "ffn": F, "vocab": V, "sequence": S, "written": "pytorch",
}  # fmt: skip


def scenario(written="pytorch", **more):
    return load({
        "model": MODEL | {"written": written}, "schedule": {"microbatch_size": 2}, "cluster": {"gpu": "h100"},
        "operators": {"blocks": "fused", "loss": "fused"}, **more,
    })  # fmt: skip


def layers(written="pytorch", **more):
    return layer_parts(CostBasis.of(scenario(written, **more)))


def operations(layer):
    return {one.name: took for one, took in layer.operations}


def test_separate_products_are_those_of_the_joined_ones():
    joined, separate = layers("megatron")[1], layers()[1]
    assert separate.parameters == joined.parameters
    widths = {one.name: one.n for one, _ in separate.operations if hasattr(one, "n")}
    assert [widths[name] for name in ("queries", "keys", "values", "MLP gate", "MLP up")] == [H, KEYS, KEYS, F, F]
    assert separate.kept - joined.kept == M * 2 * 2 * (H - KEYS)  # copies of keys and values for all query heads


def test_checkpointed_operators_keep_every_second_product():
    kept, again = layers(), layers(recompute=["ops"])
    each = {"input": H, "queries": H, "values": KEYS, "attention": H, "MLP gate": F}
    assert again[1].kept == M * 2 * sum(each.values())
    assert again[1].transient - kept[1].transient == kept[1].kept - again[1].kept  # computed again during the backward
    larger = [layers(recompute=how, efficiency={"kept": 1.5})[1].transient for how in ("none", ["ops"])]
    assert larger[1] - larger[0] == 3 * (again[1].transient - kept[1].transient) // 2
    took = operations(again[1])
    names = ("norms and residuals", "rotation", "copies of keys and values", "activation", "keys", "attention output",
             "MLP up")  # fmt: skip
    assert again[1].again == pytest.approx(sum(took[name].forward for name in names), rel=1e-12)
    eager = layers(recompute=["ops"], operators={"blocks": "eager"})
    assert eager[1].kept - again[1].kept == M * 2 * H  # the last product's result, which no backward needs


@pytest.mark.parametrize("sequence", [False, True])
def test_a_repeated_forward_ends_before_its_last_product(sequence):
    divided = {"tensor": 2, "sequence": sequence}
    for written, sums in (("megatron", 2), ("pytorch", 1)):
        block = layers(written, recompute="full", parallel=divided)[1]
        took, whole = operations(block), sum(took.forward for _, took in block.operations)
        copied = took["copies around collectives"].forward / 4 if sequence and sums == 1 else 0  # one of four
        less = took["MLP down"].forward + copied if sums == 1 else 0
        assert block.again == pytest.approx(whole - less)
        does = "reduce-scatter" if sequence else "all-reduce"
        assert [one.repeats for one in block.backward if one.does == does] == [sums, 2]


def test_sums_of_tensor_ranks_are_kept_and_gathers_repeated():
    divided = {"tensor": 2, "sequence": True}
    again, once = layers(recompute=["ops"], parallel=divided)[1], layers(parallel=divided)[1]
    assert again.kept == M * 2 * (2 * H // 2 + (2 * H + KEYS + F) // 2)
    gathers = [one for one in again.backward if one.does == "all-gather"]
    assert sum(one.repeats for one in gathers) == 2 * sum(
        one.repeats for one in once.backward if one.does == "all-gather"
    )


def test_eager_operators_move_what_pytorch_moves():
    """Bytes per token: two norms and residuals, the activation and its gate, rotations."""
    basis = CostBasis.of(scenario())
    memory = 3350e9 * float(basis.efficiency.memory)
    took = operations(layers(operators={"blocks": "eager"})[1])
    moved = {
        "norms and residuals": (84 * H, 180 * H),
        "activation": (10 * F, 18 * F),
        "rotation": (20 * (H + KEYS),) * 2,
    }
    for name, (forward, backward) in moved.items():
        assert took[name][:2] == pytest.approx((M * forward / memory, M * backward / memory))
    fused, eager = operations(layers()[1]), operations(layers("megatron", operators={"blocks": "eager"})[1])
    assert fused["activation"].forward == pytest.approx(M * 6 * F / memory)
    assert eager["norms and residuals"] == took["norms and residuals"]


@pytest.mark.parametrize(("how", "tensor", "size"), [
    ("fused", 1, 8), ("compiled", 1, 4), ("eager", 1, 12), ("fused", 2, 8), ("eager", 2, 16),
])  # fmt: skip
def test_losses_keep_logits_and_their_gradients(how, tensor, size):
    last = layers(operators={"loss": how}, parallel={"tensor": tensor, "sequence": tensor > 1})[-1]
    assert last.widest == M * size * V // tensor


def test_what_tensor_ranks_gather_and_scatter_is_copied():
    block = layers(parallel={"tensor": 2, "sequence": True})[1]
    memory = 3350e9 * float(scenario().efficiency.memory)
    copied = 4 * 2 * M * 2 * H / memory  # two gathers and two scatters, each read and written
    assert operations(block)["copies around collectives"][:2] == pytest.approx((copied, copied))
    assert "copies around collectives" not in operations(layers("megatron", parallel={"tensor": 2})[1])


def test_inputs_in_eight_bits_are_gathered_so():
    divided = {"tensor": 2, "sequence": True}
    for written in ("megatron", "pytorch"):
        sizes = {one.does: one.size for one in layers(written, precision="fp8-current", parallel=divided)[1].forward}
        assert sizes == {"all-gather": M * H, "reduce-scatter": M * 2 * H}
    whole = {one.does: one.size for one in layers(parallel=divided)[1].forward}
    assert set(whole.values()) == {M * 2 * H}


def test_context_ranks_exchange_copies_of_keys_and_values():
    exchanged = {
        written: sum(one.size * one.repeats for one in layers(written, parallel={"context": 2})[1].forward)
        for written in ("megatron", "pytorch")
    }
    assert exchanged["pytorch"] == exchanged["megatron"] * HEADS // 2


def test_a_scale_from_the_tensor_itself_reads_operands_once_more():
    memory = 3350e9 * float(scenario(precision="fp8").efficiency.memory)
    delayed, current, blocks = (
        operations(layers("megatron", precision=name)[1])["MLP down"]
        for name in ("fp8", "fp8-current", "fp8-blockwise")
    )
    assert current.forward - delayed.forward == pytest.approx(2 * M * F / memory)
    assert current.input - delayed.input == pytest.approx(2 * M * H / memory)
    assert current.weight == delayed.weight
    assert delayed.forward < blocks.forward < current.forward


def test_ends_stay_gathered_and_gradients_wait_for_their_scatter():
    transient = parts_of(scenario(sharding="zero-3", parallel={"data": 4})).costs.transient[0]
    parts = parts_of(scenario(sharding="zero-1", parallel={"data": 4}, gradients={"algorithm": "ring"}))
    block, end = (parts.costs.stages[0, 0].layers[place].states.parameters for place in (1, 0))
    last = parts.costs.stages[0, 0].layers[-1].states.parameters
    gathered, scattered = 2 * (2 * block + end + last), 4 * block + 2 * last
    assert transient - parts.costs.transient[0] == gathered + scattered


@pytest.mark.parametrize(("values", "said"), [
    ({"written": "megatron", "recompute": ["ops"]}, "this model has no ops"),
    ({"recompute": ["ops", "mlp"]}, "ops covers all operators"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(values, said):
    with pytest.raises(ScenarioError, match=said):
        scenario(**values)
