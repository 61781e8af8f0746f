"""What a model adds to the summary: published definitions, and sums that are exact."""

from fractions import Fraction

import pytest
from support.scenarios import scenario as given

from hybrid_des import load, simulate
from hybrid_des.planning.planner import parts_of
from hybrid_des.workload import models

GPT = {"base": "gpt3-175b", "layers": 8, "attention": "plain"}
AXES = ["tensor", "context", "expert", "pipeline", "gradients"]


def scenario(model=GPT, **sections):
    """A scenario in which collectives inside ops are replayed: they take the same time, whatever else is sent."""
    sections.setdefault("schedule", {"kind": "1f1b", "microbatches": 4})
    return load({"model": model, "cluster": {"gpu": "a100-80gb"}, "tensor_traffic": "replay", **sections})


def test_flop_are_those_of_the_published_formula():
    """Narayanan et al., arXiv 2104.04473: 72·B·L·s·h²·(1 + s/(6h) + V/(12·L·h)) with nothing recomputed."""
    batch, layers, s, h, vocab = 4 * 2 * 2, 8, 2048, 12288, 51200
    model = {**GPT, "vocab": vocab}
    summary = simulate(scenario(model, parallel={"data": 2}, batch=16, schedule={"kind": "1f1b", "microbatch_size": 2}))
    flop = 72 * batch * layers * s * h * h * (1 + Fraction(s, 6 * h) + Fraction(vocab, 12 * layers * h))
    assert summary.summary["flop_per_step"] == flop


@pytest.mark.parametrize(("recompute", "again"), [("none", 0), ("selective", 4), ("full", 24)])
def test_hardware_flop_repeat_what_is_recomputed(recompute, again):
    """Korthikanti et al., arXiv 2205.05198: the attention core, 4·L·s²·h, or every block, 24·L·s·h²·(1 + s/(6h))."""
    summary = simulate(scenario(recompute=recompute)).summary
    layers, s, h = 8, 2048, 12288
    repeated = {0: 0, 4: 4 * layers * s * s * h, 24: 24 * layers * s * h * h + 4 * layers * s * s * h}[again]
    assert summary["hardware_flop_per_step"] - summary["flop_per_step"] == 4 * repeated
    assert summary["hfu"] / summary["mfu"] == pytest.approx(
        summary["hardware_flop_per_step"] / summary["flop_per_step"]
    )


def test_utilisation_is_of_all_gpus_and_the_precision():
    bf16 = simulate(scenario(parallel={"pipeline": 4, "data": 2})).summary
    assert bf16["mfu"] == pytest.approx(bf16["flop_per_step"] / (bf16["step_time_s"] * 8 * 312e12), rel=1e-12)
    fp8 = simulate(scenario(cluster={"gpu": "h100"}, precision="fp8")).summary
    assert fp8["mfu"] == pytest.approx(fp8["flop_per_step"] / (fp8["step_time_s"] * 1979e12), rel=1e-12)


def test_throughput_counts_tokens_or_images():
    tokens = simulate(scenario(parallel={"data": 2})).summary
    assert tokens["tokens_per_s"] == pytest.approx(8 * 2048 / tokens["step_time_s"])
    assert tokens["tokens_per_gpu_s"] == tokens["tokens_per_s"] / 2
    images = simulate(scenario("resnet-50", schedule={"kind": "1f1b", "microbatches": 2, "microbatch_size": 8}))
    assert images.summary["samples_per_s"] == pytest.approx(16 / images.summary["step_time_s"])
    assert "tokens_per_s" not in images.summary
    assert "images per second" in images.report()


def test_look_ups_and_other_samples_change_no_flop():
    model = models.model({**GPT, "vocab": 1024})
    assert model.flop == models.model({**GPT, "vocab": 1024, "token_types": 2}).flop


@pytest.mark.parametrize("share", [0, Fraction(1, 2), 1])
def test_hidden_and_exposed_collectives_add_up(share):
    sizes = {"parallel": {"tensor": 4, "pipeline": 2}, "overlap": {"tensor": share}}
    found = simulate(scenario(**sizes)).summary["communication_s"]
    whole = simulate(scenario(parallel=sizes["parallel"])).summary["communication_s"]
    assert list(found) == AXES
    assert found["tensor"]["exposed"] == pytest.approx(float(1 - share) * whole["tensor"]["exposed"])
    assert found["tensor"]["exposed"] + found["tensor"]["hidden"] == pytest.approx(whole["tensor"]["exposed"])
    assert found["context"] == found["expert"] == {"exposed": 0, "hidden": 0}


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("kind", ["1f1b", "dualpipe", "interleaved-1f1b"])
def test_busy_time_is_computation_and_exposed_collectives(kind, recompute):
    """The same scenario on links that take no time differs by just these collectives."""
    schedule = {"kind": kind, "microbatches": 4, **({"chunks": 2} if kind == "interleaved-1f1b" else {})}
    sizes = {"parallel": {"tensor": 2, "pipeline": 2}, "schedule": schedule, "recompute": recompute}
    sizes |= {"efficiency": {"collective_overhead": 0}, "layer_collectives": "textbook"}
    slow = simulate(scenario(**sizes)).summary
    free = simulate(
        scenario(**sizes, cluster={"gpu": "a100-80gb", "nvlink": {"bandwidth": "inf", "latency": 0}})
    ).summary
    assert slow["busy_s"] - free["busy_s"] == pytest.approx(slow["communication_s"]["tensor"]["exposed"], rel=1e-9)
    assert slow["communication_s"]["gradients"] == slow["gradient_communication_s"]


def test_a_ring_of_context_ranks_hides_behind_attention():
    long = {"base": "llama3.1-8b", "layers": 4, "sequence": 65536}
    found = simulate(scenario(long, parallel={"context": 4})).summary["communication_s"]["context"]
    assert found["hidden"] > 0
    assert found["exposed"] == 0


def test_messages_hide_while_their_receiver_computes():
    """Of 1F1B's messages between two ranks, those of the first forward and the last backward never do."""
    summary = simulate(scenario(parallel={"pipeline": 2}, schedule={"kind": "gpipe", "microbatches": 4})).summary
    pipeline = summary["communication_s"]["pipeline"]
    assert pipeline["exposed"] == summary["idle_s"]["pipeline_message"] > 0
    costs = parts_of(scenario(parallel={"pipeline": 2}))
    route = costs.fabric.route(0, 1)
    flight = route.latency + Fraction(costs.costs.stages[0, 0].message * 10**12) / min(
        costs.fabric.links[name].bandwidth for name in route.links
    )
    # rank 1 computes while the forwards of micro-batches 1 to 3 travel to it; rank 0 waits for every gradient
    assert pipeline["hidden"] == pytest.approx(3 * float(flight) / 10**12 / 2, rel=1e-6)


def test_workloads_have_the_same_keys_as_before():
    assert not {"mfu", "communication_s", "memory_parts_bytes"} & set(simulate(given()).summary)
