"""What is wrong with a file of several jobs: one clear line each, with file and line."""

import json

import pytest
from support.neighbours import BERT, CLUSTER, GPT

from hybrid_des.errors import ScenarioError
from hybrid_des.interface.cli.main import main
from hybrid_des.studies.jobs.result import simulate_jobs

JOB = "{scenario: gpt.yaml, nodes: 0}"
WRONG = {
    "  gpt: {scenario: gpt.yaml, nodes: 0-1}\n  bert: {scenario: bert.yaml, nodes: [1, 2]}":
        "two.yaml:4: jobs.bert.nodes: GPU 4 on node 1 is also given to gpt",
    "  gpt: {scenario: gpt.yaml, ranks: 0-2}":
        "two.yaml:3: jobs.gpt.ranks: 4 ranks need one GPU each; these are 3",
    "  gpt: {scenario: gpt.yaml, nodes: []}":
        "two.yaml:3: jobs.gpt.nodes: 4 ranks need one GPU each; these are 0",
    "  gpt: {scenario: gpt.yaml, nodes: 0-3}\n  bert: {scenario: bert.yaml}":
        "two.yaml:4: jobs.bert: 4 ranks need one GPU each; 0 of 16 are left",
    "  gpt: {scenario: gpt.yaml, nodes: 9}":
        "two.yaml:3: jobs.gpt.nodes: the cluster has 4 nodes, numbered from 0",
    "  gpt: {scenario: gpt.yaml, nodes: 7-2}":
        "two.yaml:3: jobs.gpt.nodes: expected a range such as 0-7, found \"7-2\"",
    "  gpt: {scenario: two.yaml}":
        "two.yaml:3: jobs.gpt.scenario: \"two.yaml\" is this file itself; expected the scenario of one job",
    "  gpt: {scenario: round.yaml}":
        "two.yaml:3: jobs.gpt.scenario: holds jobs itself; expected the scenario of one job",
    "  gpt: {scenario: none.yaml}":
        "two.yaml:3: jobs.gpt.scenario: none.yaml: no such file",
    "  gpt: {scenario: gpt.yaml, nodes: 0, placement: spread}":
        "two.yaml:3: jobs.gpt: nodes, ranks and placement exclude each other; expected one of them",
    "  gpt: {scenario: gpt.yaml, cluster: {nodes: 2}}":
        "two.yaml:3: jobs.gpt.cluster: the jobs share the cluster of the file; expected none here",
    "  gpt: {scenario: gpt.yaml, scedule: {kind: gpipe}}":
        "two.yaml:3: scedule: unknown \"scedule\"; did you mean \"schedule\"?",
    "  gpt: {scenario: gpt.yaml, start: -1}":
        "two.yaml:3: jobs.gpt.start: -1 is negative; expected a time such as 50 ms",
    "  gpt: 3": "two.yaml:3: jobs.gpt: expected {scenario: FILE, nodes: 0-7}, found 3",
    "  a/b: {scenario: gpt.yaml}":
        "two.yaml:3: jobs.a/b: a job's name consists of letters, digits, _ and -, since a folder has it",
    f"  gpt: {JOB}\nbackground: [{{from: node3, to: node7, rate: 1 GB/s}}]":
        "two.yaml:4: background[0].to: there is no node7; the cluster has 4 nodes",
    f"  gpt: {JOB}\nparallel: {{data: 2}}":
        "two.yaml:4: parallel: unknown \"parallel\"",
    f"  gpt: {JOB}\nsweep: [{{jobs.gpt.schedule.knd: [gpipe]}}]":
        "two.yaml:4: sweep[0].jobs.gpt.schedule.knd: unknown \"knd\"",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, values in (("gpt", GPT), ("bert", BERT)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(values))
    (tmp_path / "round.yaml").write_text("base: two.yaml\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("jobs", "message"), WRONG.items(), ids=range(len(WRONG)))
def test_a_wrong_file_gets_one_line(folder, capsys, jobs, message):
    (folder / "two.yaml").write_text(f"cluster: {json.dumps(CLUSTER)}\njobs:\n{jobs}\n")
    assert main(["two.yaml"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(message)
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("text", "message"), [("", "jobs: expected jobs by name"), ("jobs: {}", "expected jobs by")])
def test_a_file_needs_jobs_by_name(folder, capsys, text, message):
    (folder / "two.yaml").write_text(f"cluster: {{nodes: 1}}\njobs: 3\n{text if not text.startswith('jobs') else ''}")
    assert main(["two.yaml"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("changes", [[], ["sweep=none"], ["jobs=none"]])
def test_the_scenario_of_one_job_is_no_file_of_jobs(folder, changes):
    with pytest.raises(ScenarioError, match=r"jobs: is required, such as gpt: ") as refused:
        simulate_jobs("gpt.yaml", changes)
    assert len(str(refused.value).splitlines()) == 1


def test_commands_for_one_scenario_say_so(folder, capsys):
    (folder / "two.yaml").write_text(f"cluster: {json.dumps(CLUSTER)}\njobs:\n  gpt: {JOB}\n")
    for command in (["costs"], ["topology"], ["goodput"], ["live"]):
        assert main([*command, "two.yaml"]) == 2
        assert "two.yaml:2: jobs: holds several scenarios" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["3", "x", "[1]", "{a: 1}", "{3: 1}", "true"])
@pytest.mark.parametrize(
    "key", ["slow", "efficiency", "background", "placement", "seed", "name", "description", "version"]
)
def test_a_shared_key_of_another_type_gets_one_line(folder, capsys, key, text):
    expected = {"efficiency": "{", "name": "x", "description": "x", "seed": "3"}
    if text.startswith(expected.get(key, "?")):
        return
    jobs = f"jobs:\n  gpt: {JOB}\n  bert: {{scenario: bert.yaml, nodes: 1}}\n"
    (folder / "two.yaml").write_text(f"cluster: {json.dumps(CLUSTER)}\n{jobs}{key}: {text}\n")
    assert main(["two.yaml"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"two.yaml:5: {key}") and len(said.splitlines()) == 1


@pytest.mark.parametrize("key", ["slow", "efficiency"])
@pytest.mark.parametrize("where", ["gpt: {KEY: 3, MORE}", "gpt: {scenario: {KEY: 3, MORE}}"])
def test_a_key_of_another_type_in_jobs_is_refused(folder, capsys, key, where):
    more = json.dumps({"model": {"base": "gpt3-1.3b"}, "batch": 4, "schedule": {"kind": "1f1b"}})[1:-1]
    shared = "slow: [{gpu: 0, factor: 0.5}]\nefficiency: {gemm: 0.5}"
    job = where.replace("KEY", key).replace("MORE", more)
    (folder / "two.yaml").write_text(f"cluster: {json.dumps(CLUSTER)}\n{shared}\njobs:\n  {job}\n")
    assert main(["two.yaml"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"two.yaml:5: {key}") and len(said.splitlines()) == 1
