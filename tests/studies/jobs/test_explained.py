"""Why jobs take as long as they do: what is another job's doing has a name of its own."""

import json

import numpy as np
import pytest
from support.neighbours import BERT, CLUSTER, GPT

from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.paths import critical_path
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.idle import OTHERS
from hybrid_des.analysis.tasks import in_turn
from hybrid_des.interface.cli.main import main
from hybrid_des.scenario.jobs import load_jobs
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.jobs import variants
from hybrid_des.studies.jobs.explained import explain_jobs


def jobs(sharing, **changes):
    heavy = {**BERT["workload"], "parameters": 2e8}
    return {
        "cluster": {**CLUSTER, "sharing": sharing},
        "jobs": {
            "gpt": {**GPT, "ranks": [0, 4, 8, 12], **changes},
            "bert": {**BERT, "workload": heavy, "ranks": [1, 5, 9, 13], "start": "3 ms"},
        },
    }


@pytest.mark.parametrize("sharing", ["fifo", "fair", "priority", "priority-fair"])
def test_the_causes_of_each_job_explain_every_time(sharing):
    urgent = {"priority": 2} if "priority" in sharing else {}
    found = explain_jobs(load_jobs(jobs(sharing, **urgent)))
    for one in found.jobs:
        graph = graph_of(one.run.together, found.neighbours.rows.beside(one.run.job.name))
        assert np.array_equal(graph.recomputed(), graph.time)
        assert sum(one.path.values()) == one.run.together.duration
        summed = sum(one.to_mapping()["idle_by_reason_s"].values())
        assert summed == pytest.approx(sum(one.run.facts[1]["idle_s"].values()), rel=1e-9)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_what_a_job_loses_is_named_after_the_other(sharing):
    found = explain_jobs(jobs(sharing), ["jobs.bert.start=0"])
    assert found.tried[0].change == "jobs.bert.start=0" and len(found.tried) == 6
    for one in found.jobs:
        facts = one.to_mapping()
        lost = facts["step_time_s"] - facts["alone_step_time_s"]
        assert facts["critical_path_s"][OTHERS] > 0.5 * lost > 0


def test_messages_lose_no_more_to_another_job_than_they_lose():
    """The one before in a flow is waited for as long as it takes, of which others account for what it loses only."""
    found = explain_jobs(load_jobs(jobs("fair")))
    for one in found.jobs:
        services = graph_of(one.run.together, found.neighbours.rows.beside(one.run.job.name)).messages.services
        others = services.parts["others"]
        assert others.any() and np.all(others <= services.lost[:, None])


def test_causes_and_changes_are_tasks_that_may_run_at_once():
    sizes = []

    def at_once(tasks):
        sizes.append(len(tasks))
        return in_turn(tasks)

    found = explain_jobs(jobs("fair"), ["jobs.bert.start=0"], at_once=at_once)
    assert sizes == [len(found.jobs) + len(found.tried)]
    changes = [one.change for one in found.tried]
    assert changes[:5] == ["jobs.bert.start=0", "without gpt", "without bert", "gpt first", "bert first"]
    assert changes[5].endswith("links 2x")
    assert "rows" in found.neighbours.__dict__  # the report does not find the messages of all jobs again


def test_events_of_jobs_on_one_clock_count_once(monkeypatch):
    monkeypatch.setattr(variants, "MOST_EVENTS", 0)
    found = explain_jobs(jobs("fifo"))
    (events,) = {one.run.together.events for one in found.jobs}
    assert found.not_tried == f"5 changes of about {events:,} events each are more than 0 events"


def test_a_job_apart_waits_for_nobody():
    values = jobs("fifo")
    values["jobs"]["gpt"]["ranks"], values["jobs"]["bert"]["ranks"] = [0, 1, 2, 3], [8, 9, 10, 11]
    found = explain_jobs(load_jobs(values))
    assert [one.path[OTHERS] for one in found.jobs] == [0, 0]
    assert "no message of another job is on its critical path" in found.report()
    assert not found.tried and found.not_tried == "the jobs do not slow each other down"


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_background_traffic_is_another_job(sharing):
    flows = [{"from": "node0", "to": "node1", "rate": "9 GB/s"}, {"from": "node2", "to": "node0", "rate": "9 GB/s"}]
    values = {**GPT, "cluster": {**CLUSTER, "sharing": sharing}, "parallel": {"pipeline": 2, "data": 8}}
    quiet = run(load(values))
    traced = traced_run(load({**values, "background": flows}))
    graph = graph_of(traced)
    assert traced.duration > quiet.duration
    assert np.array_equal(graph.recomputed(), graph.time)
    assert (sum(one.others for one in critical_path(graph)) > 0) == (sharing == "fifo")


def test_the_command_explains_each_job(tmp_path, capsys):
    file = tmp_path / "two.yaml"
    file.write_text(json.dumps(jobs("fifo")))
    assert main(["explain", str(file)]) == 0
    said = capsys.readouterr().out
    assert "of its critical path is waiting for messages of bert" in said and "What helps" in said
    assert main(["explain", str(file), "--details"]) == 0
    said = capsys.readouterr().out
    assert (
        "% of the critical path is waiting for messages of other jobs." in said
        and "Waits for      bert on link node" in said
    )
    assert main(["explain", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["jobs"]["gpt"]["critical_path_s"][OTHERS] > 0
    assert main(["explain", str(file), "--what-if", "jobs.brt=none"]) == 2
    assert '--what-if jobs.brt=none: unknown job "brt"; did you mean "bert"?' in capsys.readouterr().err
    assert main(["explain", str(file), "--what-if", "jobs.gpt.batch=2x", "--out", str(tmp_path / "out")]) == 2
    assert "the scenario has no value there to scale" in capsys.readouterr().err


@pytest.mark.slow
def test_an_explanation_of_jobs_is_written(tmp_path, capsys):
    work = {"parallel": {"data": 2}, "schedule": {"microbatches": 1}, "workload": {**BERT["workload"]}}
    both = {"gpt": {**work, "ranks": [0, 4]}, "bert": {**work, "ranks": [1, 5]}}
    file, out = tmp_path / "two.yaml", tmp_path / "out"
    file.write_text(json.dumps({"cluster": {**CLUSTER, "nodes": 2}, "jobs": both}))
    assert main(["explain", str(file), "--json", "--out", str(out)]) == 0
    assert json.loads((out / "explanation.json").read_text()) == json.loads(capsys.readouterr().out)
    assert {path.name for path in out.iterdir()} >= {"gpt", "bert", "fabric.html", "explanation.txt"}


def test_what_ifs_of_jobs_are_simulated(tmp_path, capsys):
    file = tmp_path / "two.yaml"
    file.write_text(json.dumps(jobs("fair")))
    asked = [
        "jobs.bert=none",
        "links.bandwidth=inf,links.latency=0x",
        "jobs.bert.steps=3",
        "jobs.gpt.workload.forward=2x",
    ]
    flags = [word for text in asked for word in ("--what-if", text)]
    assert main(["explain", str(file), *flags, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    steps = {one["change"]: one["step_time_s"] for one in facts["what_if"]}
    gpt, bert = facts["jobs"]["gpt"], facts["jobs"]["bert"]
    assert steps["jobs.bert=none"] == steps["without bert"] == {"gpt": gpt["alone_step_time_s"]}
    assert steps["without gpt"] == {"bert": bert["alone_step_time_s"]}
    assert steps["links.bandwidth=inf,links.latency=0x"] == pytest.approx(
        {"gpt": 0.15, "bert": 0.03}
    )  # (m + p − 1) 30 ms
    assert steps["jobs.gpt.workload.forward=2x"]["gpt"] > gpt["step_time_s"]
    assert steps["gpt first"]["gpt"] == pytest.approx(gpt["alone_step_time_s"])
    assert steps["leaf and nic links 2x"]["bert"] < bert["step_time_s"]
