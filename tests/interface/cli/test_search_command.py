"""`hybrid-des search`: what it prints, writes and refuses."""

import json

import pytest
from support import scenarios
from support.tables import from_table

from hybrid_des.interchange.frameworks import megatron, torchtitan
from hybrid_des.pipeline.order_csv import read_order
from hybrid_des.scenario.loading import load, scenario_from

SMALL = """\
cluster: {gpu: {memory: 4 GB}, gpus_per_node: 4}
parallel: {pipeline: 2, data: 2}
schedule: {kind: gpipe, microbatches: 4}
workload: {per: model, forward: 12 ms, backward: 24 ms, activation: 4 MB, parameters: 4e7, memory: {activation: 1 GB}}
search:
  axes:
    - parallel
    - {schedule.kind: [gpipe, 1f1b, zb-h1]}
    - {sharding: [none]}
    - {recompute: [none]}
"""


@pytest.fixture
def file(write):
    return write(SMALL, "small.yaml")


def test_the_outcome_is_the_best_plan_with_its_proof(ran, file):
    out, err = ran("search", file, "--jobs", 1)
    assert err[0] == "9 plans of 4 GPUs, by"
    assert "optimal: " in out
    assert "0 unknown" in out
    assert "small" in out  # the winner's report


def test_a_list_runs_nothing(run, file, monkeypatch):
    monkeypatch.setattr("hybrid_des.studies.plan_search.branch.BranchAndBound.run", None)
    code, out, _ = run("search", file, "--list")
    assert (code, out.splitlines()[0]) == (0, "9 plans of 4 GPUs, by")
    assert "  schedule.kind: gpipe, 1f1b, zb-h1" in out.splitlines()


def test_an_order_of_ranks_is_printed_in_words(ran, file):
    axes = "search.axes=[{parallel.order: [[tensor, data, pipeline], [tensor, pipeline, data]]}]"
    listed, _ = ran("search", file, "--set", axes, "--list")
    out, _ = ran("search", file, "--set", axes, "--jobs", 1, "--quiet")
    assert "  parallel.order: tensor-data-pipeline, tensor-pipeline-data" in listed.splitlines()
    assert "tensor-data-pipeline" in out and "['tensor'" not in out


def test_lists_of_a_plan_are_lists_in_json(printed, file):
    axes = "search.axes=[{parallel.order: [[tensor, data, pipeline], [tensor, pipeline, data]]}]"
    plans = printed("search", file, "--set", axes, "--jobs", 1)["best"]
    orders = [plan["values"]["parallel.order"] for plan in plans]
    assert orders and all(sorted(order) == ["data", "pipeline", "tensor"] for order in orders)


def test_what_is_written_is_the_best_plan(ran, file, tmp_path):
    target, order = tmp_path / "best.yaml", tmp_path / "order.csv"
    words = ("--write", target, "--order", order, "--out", tmp_path / "out", "--verify")
    out, err = ran("search", file, "--json", "--jobs", 1, *words)
    best = json.loads(out)["best"][0]
    scenario = load(target)
    assert scenario.parallel.pipeline == best["values"]["parallel.pipeline"]
    assert scenario.schedule.kind == best["values"]["schedule.kind"]
    assert read_order(order.read_text(), "order").pipeline == scenario.parallel.pipeline
    assert any(line.startswith("verified: all ") for line in err)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"best.yaml", "search.csv", "search.html", "search.png", "search.svg", "best"}
    summary = json.loads((tmp_path / "out/best/summary.json").read_text())
    assert summary["step_time_s"] == best["step_time_s"]
    out, _ = ran(target, "--json")
    assert json.loads(out)["step_time_s"] == best["step_time_s"]


@from_table
def test_a_search_without_a_plan_says_why(run, file, change, said):
    code, _, err = run("search", file, "--jobs", 1, "--quiet", "--set", change)
    assert (code, len(err)) == (1, 1)
    assert said in err[0]


@pytest.mark.slow
def test_an_interrupt_prints_what_was_found_and_can_be_resumed(run, ran, file, tmp_path, monkeypatch):
    from hybrid_des.studies.plan_search import branch

    honest, seen = branch.evaluate, []

    def interrupted(settings, step, case):
        if step == "simulate":
            seen.append(str(case))
            if len(seen) == 2:
                raise KeyboardInterrupt
        return honest(settings, step, case)

    monkeypatch.setattr(branch, "evaluate", interrupted)
    words = ("search", file, "--jobs", 1, "--quiet", "--set", "search.top=9", "--out", tmp_path)
    code, out, err = run(*words)
    assert (code, err[-1]) == (130, "interrupted")
    assert "stopped (interrupted), a gap of" in out
    assert (tmp_path / "search.csv").exists()
    out, _ = ran(*words, "--resume")
    assert "optimal: " in out
    assert len(seen) == len(set(seen)) + 1  # only the interrupted one ran again


def test_flags_say_the_recipe_of_a_published_run(scenarios):
    scenario = load(scenarios / "llama3.1-70b_128.yaml")
    said = megatron(scenario)
    assert said.unsaid == ()
    assert set(said.flags) >= {
        "--tensor-model-parallel-size 4", "--pipeline-model-parallel-size 4", "--context-parallel-size 2",
        "--cp-comm-type p2p", "--sequence-parallel", "--num-virtual-stages-per-pipeline-rank 5",
        "--micro-batch-size 1", "--global-batch-size 256", "--bf16", "--use-distributed-optimizer",
        "--overlap-grad-reduce", "--grad-reduce-in-bf16", "--tp-comm-overlap", "--num-layers 80", "--hidden-size 8192",
    }  # fmt: skip


def test_flags_say_what_they_leave_unsaid():
    values = scenarios.values("zb-v", 2, 8, 2)
    values |= {"model": "llama2-7b", "cluster": {"gpu": "h100"}, "sharding": "zero-1"}
    del values["workload"]
    scenario = scenario_from(values)
    assert any("schedule.kind: zb-v" in one for one in megatron(scenario).unsaid)
    said = torchtitan(scenario)
    assert "--parallelism.pipeline_parallel_schedule ZBVZeroBubble" in said.flags
    assert any(one.startswith("sharding: zero-1") for one in said.unsaid)
