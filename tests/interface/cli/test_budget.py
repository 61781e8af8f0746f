"""`--budget`: a run that is not complete says so everywhere, and nothing looks like its result."""

import json
import signal

import pytest

from hybrid_des.interface.cli.deadline import OutOfTimeError, within
from hybrid_des.interface.cli.output import progress_line
from hybrid_des.result import simulate
from hybrid_des.simulation.watch import RunProgress

LONG = ("--set", "steps=50", "--set", "barrier=false")  # with a barrier, steps may repeat earlier ones


@pytest.fixture
def file(scenarios):
    return scenarios / "h100_2x8.yaml"


def test_a_run_that_its_budget_ends_says_so(run, file):
    code, out, err = run(file, *LONG, "--budget", "1 ns")
    assert code == 3
    assert out.splitlines()[0] == "h100_2x8: not complete, stopped by the budget of 1 ns"
    assert "step time" not in out
    assert len(err) == 1
    assert err[0].startswith("h100_2x8: not complete: the budget of 1 ns is spent")


def test_json_says_that_a_run_was_stopped(run, file):
    code, out, _ = run(file, *LONG, "--budget", "1 ns", "--json")
    facts = json.loads(out)
    assert (code, facts["stopped"]) == (3, "budget")
    assert 0 < facts["share_of_ops"] < 1
    assert not [key for key in facts if key.startswith(("step_time", "bubble", "idle"))]


def test_files_of_an_unfinished_run_replace_those_before(run, file, tmp_path):
    assert run(file.parent / "prototype_4gpu.yaml", "--out", tmp_path, "--quiet")[0] == 0
    assert len(list(tmp_path.iterdir())) > 5
    assert run(file, *LONG, "--budget", "1 ns", "--out", tmp_path, "--quiet")[0] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["unfinished.json"]
    assert json.loads((tmp_path / "unfinished.json").read_text())["stopped"] == "budget"
    assert run(file, "--set", "record=none", "--out", tmp_path, "--quiet")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "order.csv"}


def test_a_run_within_its_budget_is_as_without(run, file):
    code, out, err = run(file, "--budget", "1 h")
    assert (code, err) == (0, [])
    assert "step time" in out


@pytest.mark.parametrize("budget", ["0 s", "soon"])
def test_a_budget_is_a_time(run, file, budget):
    code, out, err = run(file, "--budget", budget)
    assert (code, out, len(err)) == (2, "", 1)


def test_several_jobs_have_a_budget(run, scenarios):
    file = [scenarios / "jobs" / "three_placements.yaml", "--set", "sweep=none"]
    code, out, err = run(*file, "--budget", "1 h")
    assert (code, err) == (0, []) and "slowdown" in out
    code, out, err = run(*file, "--budget", "1 ns")
    assert (code, out) == (3, "") and "not complete: the budget of 1 ns is spent" in err[0]


def test_a_sweep_has_no_budget(refused, scenarios):
    line = refused(scenarios / "experiments" / "chunks.yaml", "--budget", "1 s")
    assert "--budget needs a file without a sweep" in line


def test_no_progress_without_a_terminal(run, file, monkeypatch):
    seen = []

    def noted(scenario, **given):
        seen.append(given["progress"])
        return simulate(scenario, **given)

    monkeypatch.setattr("hybrid_des.result.simulate", noted)
    assert run(file)[0] == 0
    assert seen == [None]


def test_progress_names_share_rate_and_time_left():
    assert progress_line(RunProgress(0.25, 10**6, 10, 0)) == "simulating: 25 % of the ops, 100,000 events/s, 30 s left"
    stuck = progress_line(RunProgress(0.97, 10**6, 10, 4))
    assert stuck == "simulating: 97 % of the ops, 100,000 events/s, no op has ended for 4 s"


MANY_BUCKETS = """\
cluster: {gpus_per_node: 8}
parallel: {data: 8}
schedule: {kind: 1f1b, microbatches: 2}
workload: {forward: 1 ms, backward: 2 ms, parameters: 1e5}
"""


@pytest.mark.parametrize("command", ["schedules --verify", "compare", "explain"])
def test_every_command_that_may_take_minutes_has_a_budget(run, write, command):
    file = write(MANY_BUCKETS, "many.yaml")
    words = [*command.split(), file, *(["--with", "seed=1"] if command == "compare" else [])]
    assert run(*words, "--budget", "1 h")[0] == 0  # which also imports what an end must not interrupt
    code, out, err = run(*words, "--set", "gradients.bucket=20 B", "--budget", "50 ms")
    assert (code, out) == (3, "")
    assert len(err) == 1
    assert "not complete: the budget of 50 ms is spent" in err[0]


def test_a_training_of_too_many_messages_is_not_verified(refused, write):
    file = write(MANY_BUCKETS.replace("1e5", "4e5"), "many.yaml")
    line = refused("schedules", "--verify", file, "--set", "gradients.bucket=10 B", "--budget", "1 h")
    assert "in 2 steps of real numbers in fp64, " in line
    assert "messages with `record: all` are more than can be simulated" in line


def test_buckets_of_the_small_model_are_counted(refused, write):
    trained = MANY_BUCKETS.replace(", parameters: 1e5", "") + "numerics: {width: 512}\n"
    line = refused(write(trained), "--set", "gradients.bucket=2 B", "--budget", "1 h")
    assert "messages with `record: all` are more than can be simulated" in line


def test_a_timer_that_interrupts_its_own_end_is_ended(monkeypatch):
    """It would go on to raise in whatever runs next."""
    set_to = []

    def set_timer(which, seconds, again=0.0):
        set_to.append(seconds)
        if set_to == [60.0, 0]:
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(signal, "setitimer", set_timer)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(OutOfTimeError, match="the budget of 60 s is spent"), within(60.0, "a"):
        pass
    assert set_to == [60.0, 0, 0]
    assert signal.getsignal(signal.SIGALRM) is before
