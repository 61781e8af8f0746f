"""`explain --apply N --write FILE`: the file of a change that was proposed."""

import json

from hybrid_des import advise, load

JOB = {
    "name": "job",
    "cluster": {"gpus_per_node": 4},
    "parallel": {"pipeline": 4},
    "schedule": {"kind": "gpipe", "microbatches": 8},
    "workload": {"forward": "10 ms", "backward": "20 ms", "activation": "1 MB"},
}


def test_the_written_file_has_the_step_that_was_proposed(run, tmp_path):
    file, target = tmp_path / "job.yaml", tmp_path / "next.yaml"
    file.write_text(json.dumps(JOB))
    line = advise(file, ["schedule.microbatches=6"]).lines[0]
    code, _, err = run("explain", file, "--set", "schedule.microbatches=6", "--apply", "1", "--write", target)
    assert code == 0 and f"wrote {target}: {line.change}" in err
    assert load(target).model_copy(update={"name": "job"}) == line.scenario
    _, out, _ = run(target, "--json")
    assert json.loads(out)["step_time_s"] == line.step_s


def test_a_change_that_was_not_proposed_cannot_be_applied(run, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    assert run("explain", file, "--apply", "1")[0] == 2
    code, _, err = run("explain", file, "--apply", "9", "--write", tmp_path / "next.yaml")
    assert code == 2 and err == ["--apply 9: job has 1 change to apply"]
    assert not (tmp_path / "next.yaml").exists()
    file.write_text(json.dumps({**JOB, "cluster": {"gpus_per_node": 1}, "parallel": {"pipeline": 1}}))
    code, _, err = run("explain", file, "--apply", "1", "--write", tmp_path / "next.yaml")
    assert code == 2 and err == ["--apply 1: job has no change to apply"]
