"""Memory of samples of millions of tokens: states on hosts, tiles of an MLP, gathered keys, what autograd keeps."""

import pytest

from hybrid_des import load, simulate
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of

H, HEADS, KEYS, F, V, S = 512, 8, 128, 1024, 4096, 4096  # sizes; keys: elements of a token's keys, and of its values
MODEL = {"layers": 2, "hidden": H, "heads": HEADS, "kv_heads": 2, "ffn": F, "vocab": V, "sequence": S, "qk_norm": True}
SHARDED = {"parallel": {"data": 2}, "sharding": "zero-3", "gradients": {"codec": "fp32"}}
ACTIVE = 2
EXPERTS = {"experts": {"count": 8, "active": ACTIVE, "ffn": 256}}
BLOCK = H * (H + 2 * KEYS) + H * H + 3 * H * F + 2 * H + 2 * (H // HEADS)  # parameters


def scenario(written="megatron", **more):
    own = more.pop("model", {})
    model = own if "base" in own else {**MODEL, "written": written, **own}
    return load({"model": model, "schedule": {"microbatches": 1}, "cluster": {"gpu": "h100"}} | more)


def block(written="megatron", **more):
    return layer_parts(CostBasis.of(scenario(written, **more)))[1]


def test_hosts_hold_exactly_what_is_offloaded():
    usual, moved = (simulate(scenario(**SHARDED, offload={"parameters": share})).summary for share in (0, 1))
    parts = usual["memory_parts_bytes"]
    assert usual["peak_memory_bytes"][0] - moved["peak_memory_bytes"][0] == parts["parameters"] + parts["gradients"]
    assert moved["memory_parts_bytes"] | {"parameters": 0, "gradients": 0} == moved["memory_parts_bytes"]
    everything = simulate(scenario(**SHARDED, offload={"parameters": 1, "optimizer": 1})).summary
    assert everything["memory_parts_bytes"]["optimizer"] == 0


def test_weights_and_gradients_cross_the_link_for_each_use():
    """Weights of 2 bytes before each pass, gradients of 4 after the backward, of each of two ranks' half."""
    cluster = {"gpu": "h100", "host": "1 MB/s"}
    layer = (
        parts_of(scenario(**SHARDED | {"cluster": cluster, "offload": {"parameters": 1}})).costs.stages[0, 0].layers[1]
    )
    assert layer.forward == pytest.approx(2 * BLOCK / 2 * 10**6)  # picoseconds
    assert layer.backward == pytest.approx((2 + 4) * BLOCK / 2 * 10**6)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_tile_as_long_as_the_sample_is_none(recompute):
    for written in ("megatron", "transformers"):
        assert block(written, recompute=recompute, operators={"mlp_tile": S}) == block(written, recompute=recompute)


def test_gradients_of_an_mlp_exist_tile_by_tile():
    whole, tiled = (block(operators=operators) for operators in ({}, {"mlp_tile": S // 4}))
    assert (whole.widest, tiled.widest) == (S * 2 * 3 * F, S // 4 * 2 * 3 * F)
    assert (whole.kept, whole.times, whole.again) == (tiled.kept, tiled.times, tiled.again)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_tile_that_is_repeated_is_not_kept(recompute):
    """Of tiles that were repeated already, the MLP's forward comes a third time (DeepSpeed, TiledMLP)."""
    kept = block("transformers", recompute=recompute, operators={"mlp_tile": S // 4})
    again = block("transformers", recompute=recompute, operators={"mlp_tile": S // 4, "mlp_again": True})
    took = {one.name: took.forward for one, took in again.operations}
    inner = 2 * 3 * F
    less, more = kept.kept + kept.transient - again.kept - again.transient, again.again - kept.again
    assert less == S * inner - S // 4 * inner
    assert more == pytest.approx(sum(took[name] for name in ("MLP gate", "MLP up", "activation", "MLP down")))


@pytest.mark.parametrize(("written", "own", "each"), [("megatron", 0, 4), ("transformers", 16, 2)])
def test_gathered_keys_are_those_of_whole_samples(written, own, each):
    """With Megatron-LM also their gradients; with PyTorch sums in 32 bits, of queries too."""
    parallel = {"context": 4, "context_method": "all-gather"}
    layer = block(written, parallel=parallel)
    tokens, norm, queries = S // 4, 3 if written == "transformers" else 1, 12 * H if own else 0
    before_attention = tokens * 2 * (norm * H + H + 3 * F)  # of the second norm and the MLP, which is freed by then
    keys = tokens * (queries + 2 * KEYS * (own + 4 * each))
    assert layer.attention_backward == layer.transient - layer.widest + keys - before_attention
    sent = [one.size for one in layer.forward if one.axis == "context"]
    assert sent == [4 * tokens * 2 * 2 * KEYS]  # of all ranks, 16 bits each
    assert block(written, parallel={**parallel, "context_method": "ring"}).attention_backward == 0


def test_logits_are_gone_before_attention_gathers():
    """Of both, the larger counts."""
    peaks = [
        simulate(scenario("transformers", model=model, parallel={"context": 4, "context_method": how})).summary
        for model in ({"ffn": 64, "vocab": 64}, {"ffn": 64, "vocab": 2**18})
        for how in ("ring", "all-gather")
    ]
    ring, gathers, many_ring, many_gathers = (one["peak_memory_bytes"][0] for one in peaks)
    assert gathers > ring
    assert many_gathers == many_ring


def test_autograd_keeps_norms_in_32_bits_and_normalized():
    separate, saved = block("pytorch"), block("transformers")
    copies, norms = 2 * 2 * (H - KEYS), 2 * 2 * (2 * H + H + KEYS)  # two norms, and those of queries and keys
    assert saved.kept - separate.kept == S * (norms - copies)
    assert saved.transient - separate.transient == S * 2 * H  # the gradient of its result
    shared = {"context": 2}
    assert block("transformers", parallel=shared).kept * 2 - saved.kept == S * 2 * H  # attention's result twice
    sent = [block(written, parallel=shared).forward[0].size for written in ("pytorch", "transformers")]
    assert sent[0] == HEADS // 2 * sent[1]


def test_fused_operators_keep_inputs_of_norms_in_16_bits():
    """Such as Liger's, which the launch of a job names."""
    fused = {"blocks": "fused"}
    less = 2 * 2 * (2 * H + H + KEYS)
    for more in ({}, {"model": EXPERTS}):
        assert block("transformers", **more).kept - block("transformers", operators=fused, **more).kept == S * less
    again = (
        block("transformers", recompute=["layernorm"]),
        block("transformers", recompute=["layernorm"], operators=fused),
    )
    assert again[0].kept - again[1].kept == S * 2 * 2 * (H + KEYS)  # of queries and keys, which it does not repeat


def test_experts_of_transformers_are_copied_operator_by_operator():
    """A token's vector for each expert: gathered, zeroed, weighed, zeroed, put back and summed."""
    passes = dict.fromkeys(("megatron", "pytorch", "transformers"))
    for written in passes:
        layer, run = block(written, model=EXPERTS), scenario(written, model=EXPERTS)
        took = {one.name: times for one, times in layer.operations}
        passes[written] = [round(time * 3350e9 * float(run.efficiency.memory)) for time in took["routing"][:2]]
        assert ("queries" in took) == (written == "transformers")  # attention as in a dense model
        eager = written == "transformers"
        assert (run.experts.kernel, run.experts.router) == (
            "per-expert" if written == "megatron" else "fused", "eager" if eager else "fused")  # fmt: skip
    assert passes["megatron"] == passes["pytorch"] == [8 * ACTIVE * S * H] * 2
    assert passes["transformers"] == [22 * ACTIVE * S * H, 36 * ACTIVE * S * H]


def test_experts_of_transformers_keep_results_and_norms():
    norms, results = 2 * 2 * (2 * H + H + KEYS), 2 * ACTIVE * H
    kept = {written: block(written, model=EXPERTS).kept for written in ("megatron", "pytorch", "transformers")}
    assert kept["pytorch"] - kept["megatron"] == S * results
    assert kept["transformers"] - kept["pytorch"] == S * norms
    shared = {**EXPERTS, "experts": {**EXPERTS["experts"], "shared": 1}}
    names = [one.name for one, _ in block("transformers", model=shared).operations]
    assert {"shared MLP gate", "shared MLP up", "shared MLP down"} <= {*names}


def test_norms_of_transformers_are_kept_beside_any_mixer():
    """Also where attention is that of Megatron-LM, as DeepSeek's latent one."""
    sizes = {"query": 64, "key_value": 64, "nope": 32, "rope": 32, "value": 32}
    latent = {"latent": sizes, "kv_heads": None, "qk_norm": False, **EXPERTS}
    kept = {written: block(written, model=latent).kept for written in ("pytorch", "transformers")}
    assert kept["transformers"] - kept["pytorch"] == S * 2 * 2 * 2 * H


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"offload": {"parameters": 1}}, "offload.parameters: is read where zero-3 gathers layers for each use"),
        ({"operators": {"mlp_again": True}}, "operators.mlp_again: is read with `operators.mlp_tile` only"),
        (
            {"operators": {"mlp_tile": 64}, "model": {"experts": {"count": 8, "active": 2, "ffn": 64}}},
            "operators.mlp_tile: this model has no MLP outside experts",
        ),
        ({"recompute": ["ops"], "model": {"written": "transformers"}}, "recompute: this model has no ops"),
    ],
)
def test_what_would_have_no_effect_is_refused(more, said):
    with pytest.raises(ScenarioError, match=said):
        scenario(**more)


HOSTS, TILES = {"optimizer": 1, "parameters": 1}, {"mlp_tile": 16384}


@pytest.mark.parametrize(
    ("model", "sequence", "offload", "operators", "gigabytes"),
    [
        ("qwen3-8b", 2**20, {}, {}, 56.2),
        ("qwen3-32b", 2**20, HOSTS, TILES, 60.8),
        ("qwen3-0.6b", 2**22, {}, {}, 73.7),
        ("qwen3-0.6b", 2**20, {"activations": 0}, {}, 27.9),
    ],
)
def test_long_samples_take_as_reported(model, sequence, offload, operators, gigabytes):
    """Qwen3 on 8 H100s with TRL (huggingface/trl, pull request 6845); offloading in the last row is assumed away."""
    run = scenario(
        model={"base": model, "written": "transformers", "sequence": sequence}, sharding="zero-3", recompute="full",
        parallel={"context": 8, "context_method": "all-gather"}, gradients={"codec": "bf16"},
        offload={"activations": 1, **offload}, operators={"loss": "chunked", "loss_chunk": 256, **operators},
    )  # fmt: skip
    assert max(simulate(run).summary["peak_memory_bytes"]) == pytest.approx(gigabytes * 1e9, rel=0.07)
