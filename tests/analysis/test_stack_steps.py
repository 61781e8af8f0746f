"""Where a scenario leaves its stack open, both steps are given, and the interval spans those of both stacks."""

import pytest

from hybrid_des import load, simulate
from hybrid_des.analysis.experience import experience
from hybrid_des.analysis.stack_steps import stack_is_open
from hybrid_des.report.terminal import render

SIZES = {"layers": 8, "hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 32000, "sequence": 4096}
EAGER = {"blocks": "eager", "loss": "eager"}


def given(model=(), **sections):
    parallel = {"pipeline": 2, "tensor": 2, "data": 2}
    chosen = {"parallel": parallel, "schedule": {"kind": "1f1b", "microbatches": 8}, **sections}
    return load({"model": SIZES | dict(model), "cluster": {"gpu": "h100"}, **chosen})


@pytest.mark.parametrize(("sections", "within"), [
    ({}, 0.005),
    ({"parallel": {"pipeline": 4, "data": 2}, "schedule": {"kind": "interleaved-1f1b", "microbatches": 8}}, 0.005),
    ({"parallel": {"data": 8}, "sharding": "zero-3"}, 0.03),
])  # fmt: skip
def test_the_eager_step_is_that_of_a_simulation(sections, within):
    summary = simulate(given(**sections)).summary
    fused, eager = summary["step_time_by_stack_s"].values()
    assert fused == summary["step_time_s"]
    simulated = simulate(given(operators=EAGER, **sections)).summary["step_time_s"]
    assert simulated > 1.05 * fused
    assert eager == pytest.approx(simulated, rel=within)


@pytest.mark.parametrize("said", [
    {"model": {"written": "megatron"}}, {"model": {"written": "pytorch"}}, {"operators": {"blocks": "fused"}},
])  # fmt: skip
def test_a_stack_that_is_said_has_one_step(said):
    scenario = given(**said)
    assert not stack_is_open(scenario)
    summary = simulate(scenario).summary
    assert "step_time_by_stack_s" not in summary
    step, known = summary["step_time_s"], experience(scenario)
    assert summary["experience"]["interval_s"] == list(known.interval(step))


def test_the_interval_spans_both_stacks():
    """From the lower end of the quicker one to the upper end of the slower one."""
    parallel = {"pipeline": 2, "data": 4}
    scenario = given(parallel=parallel)
    summary = simulate(scenario).summary
    ends = [
        experience(scenario, stack).interval(step)
        for stack, step in zip(("megatron", "pytorch"), summary["step_time_by_stack_s"].values(), strict=True)
    ]
    assert summary["experience"]["interval_s"] == [min(low for low, _ in ends), max(high for _, high in ends)]
    assert summary["experience"]["interval_s"][1] > ends[0][1]
    assert summary["experience"]["stack"] == "Megatron on H100 or PyTorch on H100"
    alone = simulate(given({"written": "megatron"}, parallel=parallel)).summary["experience"]
    assert summary["experience"]["rests_on"].items() > alone["rests_on"].items()


def test_the_report_says_what_either_stack_takes():
    result = simulate(given())
    lines = render(result, width=300).splitlines()
    (stack,) = [line for line in lines if line.startswith("stack")]
    assert "fused" in stack
    assert "eager about" in stack
    text = result.summary["experience"]["text"]
    assert "; if fused, " in text
    assert "; if eager, " in text
    assert any(line.endswith(text) for line in lines if line.startswith("step time"))


def test_models_of_pytorch_are_known_by_its_runs():
    scenario = load({"model": "vit-l-16", "cluster": {"gpu": "a100-80gb"}, "parallel": {"data": 8}, "batch": 64})
    assert stack_is_open(scenario)
    assert simulate(scenario).summary["experience"]["stack"] == "PyTorch on A100"
