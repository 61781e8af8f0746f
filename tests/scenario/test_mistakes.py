"""Mistakes in scenario files: one clear line for each thing that is wrong, all at once."""

import pytest
from support.mistakes import as_said, cases
from support.paths import TESTS
from support.scenarios import MINIMAL, merged
from support.tables import from_table

from hybrid_des import simulate
from hybrid_des.errors import Refusal, ScenarioError
from hybrid_des.scenario.loading import misnamed
from hybrid_des.scenario.problem import other_names
from hybrid_des.studies.plan_search.best_plan import search


def test_all_mistakes_are_told_at_once_in_file_order(problems):
    text = """\
name: bad
clutser: {nodes: 2}
parallel:
  pipline: 4
  data: 0
  order: [data, pipeline]
schedule:
  kind: 1f2b
  microbatches: 4.5
workload:
  forward: 50 mss
  backward: [1, x, -3]
  weight: 0
cluster:
  gpu: a100-80
  nodes: 1
  nvlink: {bandwidth: 0, latency: inf}
  infiniband: 25 GB/s
barrier: yes
record: 'no'
"""
    assert problems(text) == [
        '2: clutser: unknown "clutser"; did you mean "cluster"?',
        '4: parallel.pipline: unknown "pipline"; did you mean "pipeline"?',
        "5: parallel.data: must be at least 1, not 0",
        "6: parallel.order: expected the three axes tensor, data, pipeline in some order, each once",
        '8: schedule.kind: unknown "1f2b"; did you mean "1f1b"?',
        "9: schedule.microbatches: expected a whole number, found 4.5",
        '11: workload.forward: unknown unit "mss"; expected a time such as 50 ms',
        '12: workload.backward[1]: "x" is not a quantity; expected a time such as 50 ms',
        "12: workload.backward[2]: -3 is negative; expected a time such as 50 ms",
        '15: cluster.gpu: unknown "a100-80"; did you mean "a100-80gb"?',
        "17: cluster.nvlink.bandwidth: a bandwidth of 0 delivers nothing; "
        "expected a bandwidth such as 25 GB/s or 200 Gb/s, or inf for a free link",
        '17: cluster.nvlink.latency: "inf" is not a quantity; expected a time such as 50 ms',
        '18: cluster.infiniband: expected a mapping, found "25 GB/s"',
        '19: barrier: expected true or false, found "yes"',
        '20: record: unknown "no"; did you mean "none"?',
    ]


def test_conflicts_are_told_beside_single_mistakes(problems):
    text = """\
parallel: {pipeline: 4, data: 3}
schedule: {kind: gpipe, microbatches: 4, chunks: 2, fused: false}
workload:
  forwards: 1
  forward: [1, 2]
  backward: 2 s
  weight: 3 s
"""
    found = problems(text)
    assert found[0] == (
        "1: parallel: 12 ranks (pipeline 4 × data 3 × tensor 1) need one GPU each; "
        "the cluster has 8 (nodes 1 × gpus_per_node 8)"
    )
    assert found[1] == "2: schedule.chunks: gpipe has 1 per rank, not 2"
    assert found[2].startswith("2: schedule.fused: is not read by gpipe")
    assert found[3:] == [
        '4: workload.forwards: unknown "forwards"; did you mean "forward"?',
        "5: workload.forward: found a list of 2; expected 4, one per pipeline rank",
        "7: workload.weight: the weight gradient takes 3 s, more than the whole backward (2 s)",
    ]


def test_no_verdict_rests_on_a_value_that_is_itself_wrong(problems):
    """The list would not fit a pipeline of 1, and 9 GPUs would not fit either: but neither size is known."""
    text = MINIMAL.replace("1 s", "[1, 1]") + "parallel: {pipeline: two, data: 9}\ncluster: {nodes: x}\n"
    assert problems(text) == [
        '3: parallel.pipeline: expected a whole number, found "two"',
        '4: cluster.nodes: expected a whole number, found "x"',
    ]


@pytest.mark.parametrize("overrides", [("workload.forward=1 s",), ("workload.forward=x", "workload.foward=1")])
def test_a_model_and_a_workload_exclude_each_other(problems, overrides):
    text = "model: llama3.1-8b\nschedule: {kind: 1f1b, microbatches: 4}\n"
    found = problems(text, *overrides)
    assert found[0] == "1: model: replaces `workload`; give only one of the two (null removes an inherited one)"
    assert len(found) == len(overrides) + (len(overrides) > 1)
    assert not any("is required" in line for line in found)


def test_costs_are_required_once(problems):
    assert problems("schedule: {kind: 1f1b, microbatches: 4}\n") == ["1: workload: is required, or a `model`"]


@pytest.mark.parametrize("broken", ["cluster: 8", "precision: 16", "cluster: {gpu: h1000}"])
def test_no_efficiency_is_required_where_its_origin_is_wrong(problems, broken):
    text = "model: llama3.1-8b\nschedule: {kind: 1f1b, microbatches: 4}\n"
    (line,) = problems(text + broken + "\n")
    assert line.startswith(f"3: {broken.split(':')[0]}")


@from_table
def test_a_key_named_as_elsewhere_says_which_is_meant(problems, key, meant):
    (line,) = problems("model: llama3.1-8b\nschedule: {kind: 1f1b, microbatches: 4}\n", f"{key}=2")
    assert line.endswith(f'unknown "{key.rpartition(".")[2]}"; did you mean {meant}?')
    assert misnamed(key) == line.partition(f"{key}: ")[2]  # as an axis of a sweep, or a what-if


def test_every_key_that_is_suggested_exists():
    assert [path for path in other_names() if misnamed(path.partition(":")[0])] == []
    for path, names in other_names().items():
        section = path.rpartition(".")[0]
        assert [name for name in names if not misnamed(f"{section}.{name}".lstrip("."))] == []


def test_tensor_parallelism_is_refused_beside_other_mistakes(problems):
    found = problems(MINIMAL + "parallel: {tensor: 2, data: 8}\nsteps: 0\n")
    assert found == [
        "3: parallel: 16 ranks (pipeline 1 × data 8 × tensor 2) need one GPU each; "
        "the cluster has 8 (nodes 1 × gpus_per_node 8)",
        "3: parallel.tensor: divides the layers of a `model`; with `workload`, expected 1",
        "4: steps: must be at least 1, not 0",
    ]


@from_table
def test_a_file_that_is_no_scenario_says_what_it_is(problems, text, said):
    assert problems(text) == [said]


def test_a_sweep_is_not_one_scenario(problems):
    (line,) = problems(MINIMAL + "sweep:\n  - {steps: [1, 2]}\n")
    assert line.startswith("3: sweep: expands to several scenarios")


@pytest.mark.parametrize(("group", "case"), cases(TESTS / "scenario" / "mistakes.yaml"))
def test_a_mistake_of_any_section_is_one_line(group, case):
    values = merged(group["given"], case["change"])
    with pytest.raises((ScenarioError, Refusal)) as error:
        (search if "search" in values else simulate)(values)
    lines = [line.removeprefix("scenario: ") for line in str(error.value).split("\n")]
    assert as_said(lines, case["said"]), lines
    assert ("quote it" in lines[0]) == ("quote it" in case["said"])
