"""Commands on a file with `rl`: those that simulate the loop, take its training step, or refuse it."""

import argparse
import csv
import json

import pytest
from support.small_loop import TEXT

from hybrid_des.interface.cli.loops import loop_notes
from hybrid_des.scenario.loops import ALONE

SWEEP = "sweep: [{rl.ahead: [0, 1]}]\n"


@pytest.fixture
def file(write):
    """A file with a loop."""
    return write(TEXT, "small.yaml")


def test_a_file_with_a_loop_is_simulated(ran, file):
    out, err = ran(file)
    lines = out.splitlines()
    assert lines[0] == "small"
    assert lines[1].startswith("Verdict    The trainer waits")
    assert [line.split()[0] for line in lines if line[:1] not in (" ", "")][1:-1] == [
        "Verdict", "Setup", "Cycle", "Trainer", "Engines", "Queue", "Ages", "Lengths", "Lost", "Basis",
    ]  # fmt: skip
    assert err == []


def test_json_has_the_figures_of_the_loop(printed, file):
    facts = printed(file)
    assert (facts["name"], facts["rl"]["warm_up_cycles"], len(facts["rl"]["cycles_s"])) == ("small", 1, 3)
    assert sum(facts["rl"]["trainer"]["time_s"].values()) == pytest.approx(facts["rl"]["cycle_s"])


@pytest.mark.usefixtures("unpainted")
def test_a_quiet_loop_writes_its_files(ran, file, tmp_path):
    assert ran(file, "--quiet", "--out", tmp_path / "out") == ("", [])
    assert (tmp_path / "out" / "loop.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "out" / "what_ifs.json").read_text())


@pytest.mark.usefixtures("unpainted")
def test_files_that_were_written_are_told(ran, file, tmp_path):
    assert ran(file, "--out", tmp_path / "out")[1] == [f"wrote 11 files to {tmp_path / 'out'}"]


def test_a_spent_budget_ends_a_loop(run, file):
    code, out, (err,) = run(file, "--set", "rl.updates=400", "--budget", "50ms")
    assert (code, out) == (3, "")
    assert "small.yaml: not complete: the budget of 50 ms is spent" in err


@pytest.mark.parametrize("option", [["--jobs", "2"], ["--dask", "tcp://x:1"]])
def test_options_of_sweeps_are_refused(refused, file, option):
    assert "this one has rl, a loop" in refused(file, *option)


def test_explain_has_a_line_per_change(ran, file):
    out, _ = ran("explain", file, "--what-if", "rl.ahead=2")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if line[:1] not in (" ", "")] == [
        "small", "Verdict", "Trainer", "Engines", "Asked", "What", "Bounds",
    ]  # fmt: skip
    assert "--set rl.ahead=2" in out


def test_explain_in_json_has_all_changes(printed, file):
    facts = printed("explain", file, "--what-if", "rl.ahead=2")
    assert facts["what_if"][0]["set"] == ["rl.ahead=2"]
    kinds = {what_if["kind"] for what_if in facts["what_if"]}
    assert kinds == {"asked", "split", "ahead", "cap", "engine", "sync", "tail"}
    assert facts["verdict"].startswith("The trainer waits")


@pytest.mark.usefixtures("unpainted")
def test_explain_writes_the_page_and_details(ran, file, tmp_path):
    out, err = ran("explain", file, "--details", "--out", tmp_path / "out")
    assert "Lengths" in out
    assert err == [f"wrote {tmp_path / 'out'}"]
    assert (tmp_path / "out" / "loop.html").exists()


def test_a_wrong_what_if_is_refused(refused, file):
    assert "rl.ahaed" in refused("explain", file, "--what-if", "rl.ahaed=1")


def test_changes_of_a_loop_are_not_applied(refused, file, tmp_path):
    assert "--apply is for a training step" in refused("explain", file, "--apply", "1", "--write", tmp_path / "b.yaml")


@pytest.mark.parametrize(
    "command",
    [
        ["costs"],
        ["export", "--for", "torchtitan"],
        ["explain", "--memory"],
        ["figure", "gantt"],
    ],
)
def test_commands_of_a_step_say_that_it_is_alone(run, file, tmp_path, command):
    name, *options = command
    given = [name, *options, file, "--out", tmp_path / "a.svg"] if name == "figure" else [name, file, *options]
    code, _, err = run(*given)
    assert f"note: {file}: rl is left out: this is the training step alone" in err[0]
    assert code == 0, err


@pytest.mark.parametrize("command", ["live", "costs", "export", "figure"])
def test_every_command_of_a_step_has_a_note(file, command):
    args = argparse.Namespace(file=str(file), set=[])
    assert loop_notes(command, args) == [f"{file}: {ALONE}"]
    assert loop_notes("topology", args) == []


@pytest.mark.parametrize("command", ["compare", "spread", "goodput"])
def test_commands_without_a_use_for_loops_refuse_them(refused, file, command):
    changes = ["--with", "rl.ahead=1"] if command == "compare" else []
    assert f"rl: {command} takes training steps, not a loop" in refused(command, file, *changes)


def test_compare_refuses_a_loop_as_the_second_file(refused, file, scenarios):
    assert str(file) in refused("compare", scenarios / "first.yaml", file)


@pytest.mark.usefixtures("unpainted")
def test_a_sweep_has_a_row_per_loop(ran, write, tmp_path):
    swept = write(TEXT + SWEEP)
    out, _ = ran(swept, "--out", tmp_path / "out", "--jobs", "1")
    heads, first, _, _, best, count = out.splitlines()
    assert heads.split("  ")[0] == "rl.ahead"
    for head in ("cycle", "trainer waits", "engines busy", "mean age", "samples/s", "tokens/s per GPU"):
        assert f"  {head}" in heads
    assert first.split()[0] == "0"
    assert best.startswith("shortest cycle: rl.ahead 1:")
    assert count == "2 cases, 0 failed"
    with (tmp_path / "out" / "sweep.csv").open() as text:
        rows = [*csv.DictReader(text)]
    assert {"rl.cycle_s", "rl.trainer.wait_s", "rl.staleness.mean"} <= rows[0].keys()
    assert float(rows[0]["rl.staleness.mean"]) == 0
    page = (tmp_path / "out" / "sweep.html").read_text()
    assert "Shortest cycle: rl.ahead 1" in page
    assert "trainer waits" in page


def test_a_sweep_draws_figures_of_loops(ran, write, tmp_path):
    swept = write(TEXT + SWEEP + "plot: {x: rl.ahead, y: rl.cycle_s}\n")
    ran(swept, "--out", tmp_path / "out", "--jobs", "1")
    assert (tmp_path / "out" / "sweep.png").exists()


def test_a_case_that_is_impossible_says_why(ran, write):
    swept = write(TEXT + "sweep: [{rl.rollout.tensor: [4, 3]}]\n")
    out, _ = ran(swept, "--jobs", "1")
    assert "failed:" in out
    assert out.splitlines()[-1] == "2 cases, 1 failed"


def test_tools_of_agents_answer_with_the_loop(file):
    from hybrid_des.interface.mcp.arguments import arguments_of
    from hybrid_des.interface.mcp.tools import reply

    simulated = reply("simulate", arguments_of("simulate", {"scenario": str(file)}), float("inf"))
    answer = simulated.found.model_dump(exclude_unset=True)
    assert simulated.text.splitlines()[1].startswith("Verdict")
    assert {"name", "gpus", "loop", "warnings"} == answer.keys()
    assert answer["loop"]["cycle_s"] > answer["loop"]["trainer_wait_s"]
    why = reply("explain", arguments_of("explain", {"scenario": str(file), "what_if": ["rl.ahead=2"]}), float("inf"))
    assert why.found.what_if["rl.ahead=2"] > 0
    assert why.found.main_loss.startswith("The trainer waits")


def test_tools_that_compare_refuse_loops(file):
    from hybrid_des.errors import UsageError
    from hybrid_des.interface.mcp.arguments import arguments_of
    from hybrid_des.interface.mcp.tools import reply

    given = arguments_of("compare", {"scenario": str(file), "with": ["rl.ahead=1"]})
    with pytest.raises(UsageError, match="rl: a loop of engines"):
        reply("compare", given, float("inf"))
