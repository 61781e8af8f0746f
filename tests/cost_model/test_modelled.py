"""Costs from a model: equal to the same costs given outright, and to published formulas."""

from dataclasses import replace
from fractions import Fraction

import pytest

from hybrid_des import load, simulate
from hybrid_des.cost_model.rank_costs import Sharding
from hybrid_des.planning.planner import parts_of

GPT = {
    "kind": "transformer", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "mlp": "gelu", "vocab": 8192,
    "sequence": 512, "attention": "plain",
}  # fmt: skip


REACHED = {"gemm": 0.8, "attention": 0.5, "memory": 0.8, "launch": 0}


def scenario(model=GPT, **sections):
    return load({"model": model, "schedule": {"kind": "1f1b", "microbatches": 4}, **sections})


def stages_of(scenario):
    plan_and_costs = parts_of(scenario)
    places = plan_and_costs.plan.paths[0]
    return [plan_and_costs.costs.stages[place] for place in places], plan_and_costs.costs


@pytest.mark.parametrize("kind", ["1f1b", "gpipe", "zb-h1"])
def test_a_model_runs_as_its_costs_given_outright(kind):
    modelled = scenario(
        parallel={"pipeline": 4, "data": 2},
        schedule={"kind": kind, "microbatches": 8},
        gradients={"algorithm": "ring"},
    )
    stages, costs = stages_of(modelled)
    given = load({
        "cluster": {"nvlink": {"bandwidth": modelled.efficiency.network * 300 * 10**9}},
        "parallel": {"pipeline": 4, "data": 2},
        "schedule": {"kind": kind, "microbatches": 8},
        "workload": {
            "forward": [Fraction(stage.forward, 10**12) for stage in stages],
            "backward": [Fraction(stage.backward, 10**12) for stage in stages],
            "weight": [Fraction(stage.weight, 10**12) for stage in stages],
            "optimizer": [Fraction(time, 10**12) for time in costs.optimizer],
            "activation": stages[0].message,
            "parameters": [stage.states.parameters for stage in stages],
        },
    })  # fmt: skip
    ours, theirs = (simulate(each).timeline for each in (modelled, given))
    assert ours.equals(theirs)


@pytest.mark.parametrize("bandwidth", ["2 GB/s", "20 TB/s"])
@pytest.mark.parametrize("sequence", [False, True])
def test_gradients_of_inputs_are_summed_during_weight_products(sequence, bandwidth):
    def backward(kind="1f1b", *, beside, **efficiency):
        found = scenario(
            cluster={"nvlink": {"bandwidth": bandwidth, "latency": 0}}, parallel={"tensor": 4, "sequence": sequence},
            schedule={"kind": kind, "microbatches": 2},
            overlap={"weight_gradients": beside},
            efficiency={**REACHED, "collective_overhead": 0, "slowed": 0, **efficiency},
        )  # fmt: skip
        return stages_of(found)[0][0]

    waiting, beside = backward(beside=False), backward(beside=True)
    block = waiting.layers[1].collectives[1][-1]
    products = [2 * 512 * 1024 * n / 4 / (0.8 * 312e12) for n in (3 * 1024, 4096)]  # of queries, keys, values; up
    hidden = [beside.layers[1].collectives[1][which].overlapped / 10**12 for which in (0, 1)]
    assert all(0.5 < ideal / found < 1 for ideal, found in zip(products, hidden, strict=True))  # shapes are not ideal
    took = (block.launch + block.alone) / 10**12
    of_logits = beside.layers[-1].collectives[1][0].overlapped / 10**12
    gained = 8 * sum(min(took, one) for one in hidden) + min(took, of_logits)
    assert (waiting.backward - beside.backward) / 10**12 == pytest.approx(gained, rel=1e-4)
    slowed = backward(beside=True, slowed=0.25)  # a sum that takes longer than its product anyway ends no later
    assert beside.backward + (bandwidth == "20 TB/s") <= slowed.backward < waiting.backward
    split = [replace(backward("zb-h1", beside=each), layers=()) for each in (False, True)]
    assert split[0] == split[1]


@pytest.mark.parametrize(("codec", "bytes_apart"), [("fp16", 6 - 2), ("fp32", 10 - 6)])
def test_sums_of_gradients_may_be_another_pass_over_memory(codec, bytes_apart):
    """Bytes per weight: 16-bit sums take 6, fused 2; sums of 32 bits 10, or fused 6 more of a product's own bytes."""
    times = {}
    for fused in (True, False, None):
        gpu = {"memory": "80 GB", "peak": "1e9 TFLOP/s", "bandwidth": "1 TB/s", "multiprocessors": 108}  # memory binds
        gradients = {"codec": codec} if fused is None else {"codec": codec, "fused": fused}
        given = scenario(cluster={"gpu": gpu}, gradients=gradients, efficiency=REACHED)
        (stage,), _ = stages_of(given)
        times[fused] = stage.layers[1].weight
    assert times[None] == times[codec == "fp32"]
    weights = 12 * 1024**2
    assert times[False] - times[True] == pytest.approx(weights * bytes_apart / (0.8 * 10**12) * 10**12, rel=1e-4)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_activations_are_those_of_the_published_formula(tensor, sequence, recompute):
    """Korthikanti et al., arXiv 2205.05198, table 2: bytes per layer."""
    s, b, h, a, t, layers = 512, 2, 1024, 16, tensor, 8
    found = scenario(
        parallel={"tensor": t, "sequence": sequence},
        recompute=recompute,
        schedule={"kind": "1f1b", "microbatches": 4, "microbatch_size": b},
    )
    (stage,), _ = stages_of(found)
    regular = t if sequence else 1
    per_layer = {
        "none": s * b * h * (Fraction(10, regular) + Fraction(24, t) + Fraction(5 * a * s, h * t)),
        "selective": s * b * h * (Fraction(10, regular) + Fraction(24, t)),
        "full": Fraction(2 * s * b * h, regular),
    }[recompute]
    logits = Fraction(4 * s * b * h, regular)  # the inputs of the last norm and of the logits
    assert stage.kept == layers * per_layer + logits


def test_bytes_per_parameter_are_those_of_zero():
    """Rajbhandari et al., arXiv 1910.02054, section 3: 16 bytes, divided over the ranks."""
    n, d = 10**6, 8
    assert Sharding.of("none", d).bytes(n, 2) == 16 * n
    assert Sharding.of("zero-1", d).bytes(n, 2) == 4 * n + 12 * n // d
    assert Sharding.of("zero-2", d).bytes(n, 2) == 2 * n + 14 * n // d
    assert Sharding.of("zero-3", d).bytes(n, 2) == 16 * n // d
    assert Sharding.of("none", d).bytes(n, 4) == 18 * n


def test_a_pipeline_holds_the_whole_sum_of_gradients():
    n, d = 1000, 8
    assert Sharding.of("zero-2", d, once=True) == Sharding.of("zero-1", d)
    assert Sharding.of("zero-3", d, once=True).bytes(n, 4) == 4 * n + 14 * n // d
    for p, whole in ((1, False), (2, True)):
        sections = {"parallel": {"pipeline": p, "data": 4}, "gradients": {"codec": "bf16"}}
        one, two = (stages_of(scenario(sharding=name, **sections))[0] for name in ("zero-1", "zero-2"))
        assert (one[0].states.gradients == two[0].states.gradients) == whole
        assert (one[0].weight == two[0].weight) == whole  # the product that makes them adds them up


def test_gradients_are_reduced_per_tensor_rank():
    whole = simulate(scenario(parallel={"data": 4})).summary
    halves = simulate(scenario(parallel={"data": 4, "tensor": 2})).summary
    _, costs = stages_of(scenario(parallel={"data": 4, "tensor": 2}))
    assert halves["bytes_gradients"] == 2 * 2 * 3 * 4 * sum(costs.parameters)
    assert halves["bytes_gradients"] == pytest.approx(whole["bytes_gradients"], rel=0.01)


def test_context_ranks_share_the_work_of_a_sample():
    flash, how = {**GPT, "attention": "flash"}, {"efficiency": {"launch": 0}}
    one, two = (stages_of(scenario(flash, parallel={"context": c}, **how))[0][0] for c in (1, 2))
    assert two.kept == pytest.approx(one.kept / 2, rel=0.01)
    assert one.forward / 2 < two.forward < one.forward
    assert two.states.parameters == one.states.parameters


def test_full_recomputation_repeats_the_forward():
    kept, again = (stages_of(scenario(recompute=recompute))[0][0] for recompute in ("none", "full"))
    assert again.forward == kept.forward
    assert kept.forward * 0.9 < again.backward - kept.backward < kept.forward
    assert again.weight == kept.weight


def test_recomputation_of_some_layers_is_their_share():
    """Megatron-LM: --recompute-method block --recompute-num-layers 3, of 8 layers."""
    none, some, full = (
        scenario(recompute=level, recompute_layers=layers)
        for level, layers in (("none", None), ("full", 3), ("full", None))
    )
    costs = [stages_of(one)[0][0] for one in (none, some, full)]
    figures = [simulate(one).summary["hardware_flop_per_step"] for one in (none, some, full)]
    for low, middle, high in ([one.backward for one in costs], [one.kept for one in costs], figures):
        assert 8 * (middle - low) == 3 * (high - low)


def test_a_batch_stands_for_its_microbatches():
    given = load({
        "model": GPT, "batch": 64, "parallel": {"data": 4}, "schedule": {"kind": "1f1b", "microbatch_size": 2},
    })  # fmt: skip
    assert given.schedule.microbatches == 8


def test_gradients_in_fp16_are_added_by_a_kernel():
    """Six bytes per weight of a block, for every micro-batch of several."""
    weights = 8 * (12 * 1024**2)
    bandwidth = REACHED["memory"] * 2039 * 10**9

    def weight(microbatches, codec):
        stages, _ = stages_of(
            scenario(
                gradients={"codec": codec},
                efficiency=REACHED,
                schedule={"kind": "1f1b", "microbatches": microbatches, "microbatch_size": 8},
            )
        )
        return stages[0].weight / 10**12

    logits = 1024 * 8192
    assert weight(2, "fp16") - weight(1, "fp16") == pytest.approx(6 * (weights + logits) / bandwidth, rel=1e-6)
    assert weight(2, "fp32") == weight(1, "fp16")


def test_tensor_ranks_each_send_their_share_of_a_message():
    for sequence in (False, True):
        stages, _ = stages_of(scenario(parallel={"pipeline": 2, "tensor": 4, "sequence": sequence}))
        assert stages[0].message == 2 * 512 * 1024 // 4


def test_a_collective_has_an_overhead_per_launch_and_member():
    def forward(overhead):
        efficiency = {**REACHED, "collective_overhead": overhead}
        stages, _ = stages_of(scenario(parallel={"tensor": 4}, efficiency=efficiency))
        return stages[0].forward

    reductions = 2 * 8 + 1  # two per block, and the embedding's
    assert forward("10 us") - forward(0) == pytest.approx(reductions * 10 * 10**6 * (1 + 3 / 5), abs=20)


def test_a_group_over_nodes_uses_the_adapters_of_all_members():
    """Eight members of two nodes send as fast as eight rings of one member per node."""

    def forward(gpus):
        cluster = {"nodes": 8 // gpus, "gpus_per_node": gpus, "nvlink": {"bandwidth": "inf", "latency": 0}}
        cluster["infiniband"] = {"bandwidth": "1 GB/s", "latency": 0, "nics_per_node": gpus}
        reached = {**REACHED, "network": 1}
        stages, _ = stages_of(scenario(parallel={"tensor": 8}, cluster=cluster, efficiency=reached))
        return stages[0].forward

    assert forward(1) > 3 * forward(4)


TIED = {
    "kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 10_000, "sequence": 32,
    "tied": True,
}  # fmt: skip
MATRIX = 10_000 * 64


@pytest.mark.parametrize(("kind", "pipeline", "chunks", "microbatches"), [
    ("1f1b", 1, 1, 2), ("interleaved-1f1b", 1, 2, 2), ("zb-v", 2, 2, 4), ("dualpipe-v", 2, 2, 4), ("hanayo", 2, 2, 4),
    ("chimera", 2, 1, 4), ("dualpipe", 2, 1, 4),
])  # fmt: skip
def test_tied_embedding_counts_once_where_both_ends_meet(kind, pipeline, chunks, microbatches):
    schedule = {"kind": kind, "microbatches": microbatches, "chunks": chunks}
    found = scenario(TIED, parallel={"pipeline": pipeline}, schedule=schedule)
    stages, costs = stages_of(found)
    parameters, copies = found.model.network.parameters, len(parts_of(found).plan.paths)
    assert sum(costs.parameters) == sum(stage.states.parameters for stage in stages) == parameters
    assert sum(costs.resident) - sum(costs.transient) == copies * 18 * parameters  # with fp32 gradients
    updates = sum(stage.states.optimizer for stage in stages)
    apart = sum(stage.states.optimizer for stage in stages_of(scenario({**TIED, "tied": False}))[0])
    assert updates == pytest.approx(apart * parameters / (parameters + MATRIX), rel=1e-6)


def test_tied_embedding_counts_twice_if_ends_are_apart():
    found = scenario(TIED, parallel={"pipeline": 2})
    assert sum(stages_of(found)[1].parameters) == found.model.network.parameters + MATRIX


@pytest.mark.parametrize(("sharding", "gradients", "parameters"), [
    ("none", 2, 0), ("zero-1", 1, 1), ("zero-2", 3, 1), ("zero-3", 3, 2 * 3),
])  # fmt: skip
@pytest.mark.parametrize("chunks", [1, 2])
def test_tied_embedding_is_reduced_and_gathered_once(sharding, gradients, parameters, chunks):
    """Amounts per 2(n−1)·P bytes, with 3 micro-batches."""
    schedule = {"kind": "looped-bfs", "microbatches": 3, "chunks": chunks}
    found = scenario(TIED, parallel={"data": 4}, sharding=sharding, gradients={"codec": "bf16"}, schedule=schedule)
    result = simulate(found)
    each = 2 * 3 * found.model.network.parameters
    assert result.summary["bytes_gradients"] == gradients * each
    assert result.summary.get("bytes_parameters", 0) == parameters * each


def test_tied_gradient_stays_whole_until_both_uses_are_summed():
    whole, scattered = (
        stages_of(scenario(TIED, parallel={"data": 4}, sharding=sharding)) for sharding in ("zero-1", "zero-2")
    )
    block, norm = whole[0][0].layers[1], 2 * 64
    waiting = 4 * block.states.parameters + 2 * 64  # a block's gradient in 32 bits, and that of the last norm
    assert scattered[1].transient[0] == whole[1].transient[0] - norm + block.transient + waiting


def test_tied_embedding_is_gathered_where_a_pass_begins():
    rows = simulate(scenario(TIED, parallel={"data": 4}, sharding="zero-3")).run.timeline.gathers
    took = rows["end"] - rows["start"]
    first, last = (took[(rows["rank"] == 0) & (rows["layer"] == layer)].tolist() for layer in (0, 5))
    assert len(first) == 4  # once per micro-batch, in its forward: the backward still has it from the logits
    assert last[::2] == [min(last)] * 4
    assert last[1::2] == [max(last)] * 4
    assert max(last) > max(first) > min(last)  # with the last norm, alone, and that norm alone
