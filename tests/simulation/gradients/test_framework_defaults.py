"""What a model does with gradients by default: Megatron-LM sums them after the backward, PyTorch during it."""

import pytest
from support.scenarios import merged

from hybrid_des import explain, load, simulate
from hybrid_des.report.terminal import render
from hybrid_des.scenario.loading import scenario_from

MEGATRON, TITAN, IMAGES = (
    {"base": "gpt3-1.3b", "layers": 4},
    {"base": "llama2-7b", "layers": 2, "written": "pytorch"},
    "vit-b-16",
)
PIPELINED = {"parallel": {"pipeline": 2, "data": 2}, "schedule": {"kind": "1f1b"}}
SLOW_NETWORK = {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 2, "infiniband": {"bandwidth": "2 GB/s"}}


def trained(model, microbatches=1, **sections):
    """Four replicas of a model on two nodes with a slow network between them."""
    base = {"cluster": SLOW_NETWORK, "model": model, "parallel": {"data": 4},
            "schedule": {"microbatches": microbatches, "microbatch_size": 4}, "record": "none"}  # fmt: skip
    return scenario_from(merged(base, sections))


def reduced(scenario):
    """What of a scenario's gradients its framework decides."""
    gradients = scenario.gradients
    return gradients.codec, gradients.overlap, gradients.bucket_rule, gradients.pad


def step(scenario):
    return simulate(scenario).summary["step_time_s"]


@pytest.mark.parametrize(("model", "rule"), [(MEGATRON, "megatron"), (TITAN, "ddp"), (IMAGES, "ddp")])
def test_overlap_overlaps_with_one_micro_batch_and_no_pipeline(model, rule):
    overlapped, apart = (trained(model, gradients={"overlap": overlap}) for overlap in (True, False))
    summary = simulate(overlapped).summary
    assert summary["gradient_communication_s"]["hidden"] > 0
    assert summary["step_time_s"] < step(apart)
    assert overlapped == trained(model, gradients={"overlap": True, "bucket_rule": rule})


@pytest.mark.parametrize(
    ("model", "sections", "expected"),
    [
        (MEGATRON, {}, ("fp32", False, "stage", False)),
        (MEGATRON, {"precision": "fp16"}, ("fp16", False, "stage", False)),
        (MEGATRON, {"gradients": {"overlap": True}}, ("fp32", True, "megatron", False)),
        (MEGATRON, {"gradients": {"overlap": True}, "sharding": "zero-1"}, ("fp32", True, "megatron", True)),
        (TITAN, {}, ("fp32", True, "ddp", False)),
        (TITAN, {"sharding": "zero-3"}, ("fp32", True, "stage", False)),
        (TITAN, {"sharding": "zero-2", **PIPELINED}, ("fp32", True, "stage", False)),
        (TITAN, {"sharding": "zero-3", "overlap": {"parameters": False}}, ("fp32", False, "stage", False)),
        (IMAGES, {}, ("fp32", True, "ddp", False)),
        (IMAGES, {"precision": "fp16"}, ("fp32", True, "ddp", False)),
    ],
)
def test_a_model_without_gradients_has_its_frameworks(model, sections, expected):
    assert reduced(trained(model, **sections)) == expected


def test_what_a_file_states_stays():
    stated = {"overlap": True, "bucket_rule": "stage", "codec": "bf16"}
    assert reduced(trained(TITAN, gradients=stated)) == ("bf16", True, "stage", False)
    assert reduced(trained(TITAN, gradients={"overlap": False})) == ("fp32", False, "stage", False)


def test_a_workload_has_no_framework():
    workload = {"forward": "2 ms", "backward": "4 ms", "parameters": 1e6}
    values = {"workload": workload, "parallel": {"data": 2}, "schedule": {"microbatches": 1}}
    assert reduced(scenario_from({**values, "gradients": {"overlap": True}})) == ("fp32", True, "stage", False)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (MEGATRON, "fp32, after the backward Megatron-LM's default; NeMo's recipes overlap (gradients.codec, overlap)"),
        (IMAGES, "fp32, during the backward PyTorch's default (gradients.codec, overlap)"),
    ],
)
def test_the_report_says_whose_default_it_is(model, said):
    assert said in " ".join(render(simulate(trained(model))).split())
    assert "'s default (gradients" not in render(simulate(trained(model, gradients={"codec": "bf16"})))


def test_one_stated_bucket_that_overlap_cannot_hide_is_named():
    text = render(simulate(trained(MEGATRON, gradients={"overlap": True, "bucket": "none"})))
    assert "gradients.overlap hides nothing" in text and "gradients.bucket: 25 MiB fills them" in text


def test_advice_on_overlap_of_given_times_has_an_effect():
    """Of times given by hand, buckets that are full at the end of the only op bring nothing; those of DDP do."""
    workload = {"forward": "20 ms", "backward": "40 ms", "parameters": 200e6}
    values = {"cluster": SLOW_NETWORK, "workload": workload, "parallel": {"data": 4}, "schedule": {"microbatches": 1}}
    for stated, change in (({}, "gradients.overlap=true,gradients.bucket_rule=ddp"),
                           ({"overlap": True}, "gradients.bucket_rule=ddp")):  # fmt: skip
        scenario = {**values, "gradients": stated}
        gains = {one.change: one.gain for one in explain(load(scenario)).proposals}
        better = step(load(scenario, change.split(",")))
        assert gains[change] == pytest.approx(1 - better / step(load(scenario)), rel=1e-4)  # proposals pad
        assert gains[change] > 0.05


def test_advice_on_overlap_of_a_model_has_an_effect():
    gains = {one.change: one.gain for one in explain(trained(MEGATRON)).proposals}
    assert gains["gradients.overlap=true"] > 0
