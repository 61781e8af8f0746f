"""GPUs that a job leaves unused are said by every command, and a search uses them."""

import json

import pytest
from support import spaces

from hybrid_des.studies.plan_search.best_plan import search
from hybrid_des.studies.plan_search.space import plans_in

JOB = """\
cluster: {gpu: h100, nodes: 2, gpus_per_node: 4}
parallel: {pipeline: 4}
schedule: {kind: 1f1b, microbatches: 4}
workload: {per: model, forward: 4 ms, backward: 8 ms, parameters: 4e6}
gradients: {codec: bf16}
"""
SAID = "4 of 8 GPUs are unused"
FULL = "parallel.data=2"
FAULTS = """\
faults:
  horizon: 2 h
  replications: 2
  classes: [{what: node, mtbf: 900 h}]
  detect: 1 s
  restart: {time: 30 s}
  checkpoint: {every: 30 min, cost: 2 s}
"""
JITTER = "jitter={distribution: lognormal, sigma: 0.01}"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ([], []), (["explain"], []), (["compare"], ["--with", "schedule.kind=gpipe"]), (["topology"], []),
        (["spread"], ["--set", JITTER, "--runs", "2"]), (["goodput"], []),
    ],
)  # fmt: skip
def test_every_command_says_that_gpus_are_unused(run, write, command, options):
    file = write(JOB + (FAULTS if command == ["goodput"] else ""), "job.yaml")
    _, _, said = run(*command, file, *options)
    (warning,) = (line for line in said if "unused" in line)
    assert warning.startswith("warning: ") and SAID in warning and FULL in warning and "cluster.nodes=1" in warning
    _, _, said = run(*command, file, *options, "--set", FULL)
    assert not any("unused" in line for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("command", [[], ["explain"], ["goodput"]])
def test_json_has_the_warnings(run, write, command):
    file = write(JOB + FAULTS, "job.yaml")
    _, out, _ = run(*command, file, "--json")
    (warning,) = json.loads(out)["warnings"]
    assert SAID in warning
    _, out, _ = run(*command, file, "--json", "--set", FULL)
    assert "warnings" not in json.loads(out)


def test_nodes_that_a_change_adds_are_not_silent(run, write):
    _, _, said = run(write(JOB), "--set", "cluster.nodes=8", "--set", FULL)
    assert any("24 of 32 GPUs are unused" in line and "parallel.data=8" in line for line in said)


def test_hosts_of_servers_and_machines_that_nobody_sized_are_used(run, write):
    servers = ["gradients={algorithm: parameter-server, servers: 4, servers_on: hosts}", "parallel={data: 4}"]
    _, _, said = run(write(JOB), *(part for one in servers for part in ("--set", one)))
    assert not any("unused" in line for line in said)
    _, _, said = run(write(JOB.replace("nodes: 2, gpus_per_node: 4", "topology: nodes")))
    assert not any("unused" in line for line in said)


def test_a_sweep_of_layouts_has_cases_of_all_sizes(run, write):
    _, _, said = run(write(JOB + "sweep: [{schedule.kind: [gpipe, 1f1b]}]\n"))
    assert any(SAID in line for line in said)
    _, _, said = run(write(JOB + "sweep: [{parallel.data: [1, 2]}]\n"))
    assert not any("unused" in line for line in said)


def test_a_search_uses_all_gpus_unless_told_otherwise(run, write):
    values = spaces.of_workload(8, parallel={"pipeline": 2, "data": 2}, sharding="none", recompute="none")
    whole = spaces.settings(values, axes=[{"schedule.kind": ["gpipe"]}])
    assert [plan["parallel.data"] for plan in plans_in(whole)] == [4]
    assert {plan["parallel.pipeline"] for plan in plans_in(whole)} == {2}
    told = spaces.settings(
        values, axes=[{"schedule.kind": ["gpipe"]}, {"parallel.data": [2], "parallel.pipeline": [2]}]
    )
    assert [plan["parallel.data"] for plan in plans_in(told)] == [2]
    found = search({**values, "search": {"axes": [{"schedule.kind": ["gpipe"]}]}})
    assert found.best.row["ranks"] == 8


@pytest.mark.slow
def test_a_search_that_is_told_otherwise_says_what_it_leaves(run, write):
    text = JOB + "search: {axes: [{parallel.data: [1], parallel.pipeline: [4]}, {schedule.kind: [gpipe, 1f1b]}]}\n"
    _, out, said = run("search", write(text), "--json")
    assert any(SAID in line for line in said)
    assert SAID in json.loads(out)["warnings"][0]
    _, out, said = run("search", write(JOB), "--json", "--set", "search.axes=[{schedule.kind: [gpipe, 1f1b]}]")
    assert not any("unused" in line for line in said) and "warnings" not in json.loads(out)
