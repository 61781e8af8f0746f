"""A warning where variants of a scenario are models of different sizes."""

import pytest
from support.scenarios import MINIMAL
from support.tables import from_table

SAID = "parallel.pipeline changes the size of the model"


@pytest.mark.parametrize(
    "arguments",
    [["parallel.pipeline=2"], ["parallel.pipeline=2", "schedule.kind=gpipe"]],
)
def test_an_override_of_the_pipeline_is_noted(run, ran, write, arguments):
    file = write(MINIMAL)
    sets = [word for one in arguments for word in ("--set", one)]
    _, err = ran(file, *sets)
    assert len(err) == 1
    assert err[0].startswith(f"warning: {file}: {SAID}")
    assert run(file, *sets, "--json")[2] == err
    assert run(file, *sets, "--quiet")[2] == []


@from_table
def test_an_override_that_keeps_or_states_the_model_is_not(run, write, arguments):
    assert run(write(MINIMAL), *(word for one in arguments for word in ("--set", one)))[2] == []


def test_a_model_is_divided(run, write):
    file = write("model: {base: gpt2, layers: 4}\nschedule: {kind: 1f1b, microbatches: 4}\n")
    assert run(file, "--set", "parallel.pipeline=2")[2] == []


def test_a_sweep_over_pipelines_is_noted(run, write):
    sweep = "sweep: [{parallel.pipeline: [1, 2]}, {schedule.kind: [gpipe, 1f1b]}]\n"
    err = run(write(MINIMAL + sweep), "--json")[2]
    assert [SAID in line for line in err] == [True]
    assert run(write(MINIMAL + sweep), "--json", "--set", "workload.per=model")[2] == []
    together = "sweep: [{parallel.pipeline: [1, 2], workload.forward: [2 s, 1 s]}]\n"
    assert run(write(MINIMAL + together), "--json")[2] == []


def test_shipped_sweeps_say_what_they_divide(scenarios):
    files = sorted((scenarios / "experiments").glob("*.yaml"))
    assert len(files) > 8
    for file in files:
        text = file.read_text(encoding="utf-8") + (scenarios / "experiments" / "base.yaml").read_text(encoding="utf-8")
        assert "per: model" in text or "per: rank" in text


def test_the_first_scenario_divides_one_model(run, scenarios):
    code, out, err = run(scenarios / "a100_8x.yaml", "--set", "parallel.pipeline=2", "--json")
    assert code == 0 and [SAID in line for line in err] == [False]  # 4 of its 8 GPUs are unused
    assert '"bytes_gradients": 4000000000' in out


def test_replicas_added_to_recorded_ops_are_noted(run, write, tmp_path):
    """They reduced nothing, without a word."""
    rows = [f"0,{replica},0,{kind},{i},0.01" for replica in range(4) for kind in "FB" for i in range(2)]
    (tmp_path / "ops.csv").write_text("\n".join(["step,replica,stage,kind,microbatch,seconds", *rows]))
    file = write("schedule: {kind: gpipe, microbatches: 2}\nworkload: {durations: ops.csv, timing: auto}\n")
    said = f"warning: {file}: parallel.data reduces no gradients: recorded ops do not say how many; "
    said += "set workload.parameters"
    assert run(file, "--set", "parallel.data=4")[2] == [said]
    assert run(file, "--set", "parallel.data=4", "--set", "workload.parameters=1e6")[2] == []
    assert run(file, "--set", "parallel.data=1")[2] == run(file)[2] == []
