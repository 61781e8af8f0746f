"""Several jobs with many seeds, and two files with jobs side by side."""

import json
from random import Random

import pytest
from support.joint_foldings import jobs_values
from support.neighbours import BERT, CLUSTER, GPT

from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.main import main
from hybrid_des.scenario.jobs import load_jobs
from hybrid_des.shortcuts import joint_folds
from hybrid_des.studies.jobs import neighbours
from hybrid_des.studies.jobs.seeds import spread_jobs

JITTER = {"distribution": "lognormal", "sigma": 0.05}
JOBS = {"gpt": {**GPT, "ranks": [0, 4, 8, 12], "jitter": JITTER}, "bert": {**BERT, "ranks": [1, 5, 9, 13]}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(json.dumps({"cluster": CLUSTER, "jobs": JOBS}))
    return path


def test_seeds_vary_the_jobs_with_jitter(file, capsys):
    assert main(["spread", str(file), "--runs", "4", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    gpt, bert = (facts[f"jobs.{name}.alone_step_time_s"] for name in ("gpt", "bert"))
    assert gpt["std"] > 0 == bert["std"] and gpt["n"] == 4
    table = spread_jobs(load_jobs(file), 2)
    assert table["jobs.gpt.slowdown"].tolist() == pytest.approx(
        (table["jobs.gpt.step_time_s"] / table["jobs.gpt.alone_step_time_s"]).tolist()
    )
    assert main(["spread", str(file), "--runs", "3"]) == 0
    assert "bert  slowdown" in capsys.readouterr().out


def test_jobs_without_jitter_have_no_spread(file):
    with pytest.raises(UsageError, match="nothing is random"):
        spread_jobs(load_jobs(file, ["jobs.gpt.jitter=null"]), 2)


def test_jobs_are_compared_folded_as_with_all_ranks(tmp_path, capsys, monkeypatch):
    fold, folded = neighbours.folded_jobs, list[bool]()

    def noted(*given):
        made = fold(*given)
        folded.append(made is not None)
        return made

    monkeypatch.setattr(joint_folds, "MESSAGES", 0)
    monkeypatch.setattr(neighbours, "folded_jobs", noted)
    file = tmp_path / "two.yaml"
    file.write_text(json.dumps(jobs_values(Random(8))))
    assert main(["compare", str(file), "--with", "jobs.job0.fold=off", "--json"]) == 0
    assert folded == [True, False]
    for job in json.loads(capsys.readouterr().out)["jobs"].values():
        assert job.pop("change_s") == 0 and all(first == second for first, second in job.values())


def test_files_are_compared_job_by_job(file, capsys):
    command = ["compare", str(file), "--with", "jobs.gpt.schedule.kind=gpipe", "--with", "jobs.bert.start=9 ms"]
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    before, after = facts["jobs"]["gpt"]["step_time_s"]
    assert facts["jobs"]["gpt"]["change_s"] == pytest.approx(after - before) and before != after
    assert main([*command, "--max-regression", "0%"]) in (0, 1)
    assert "slowdown in A" in capsys.readouterr().out
    assert main(["compare", str(file), "--out", "x", "--with", "jobs.gpt.start=1"]) == 2
    assert main(["compare", str(file)]) == 2
