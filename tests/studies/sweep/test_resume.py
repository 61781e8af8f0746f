"""Sweeps that are stopped and resumed: the same table, only what is left is simulated, and only the same sweep."""

import json

import pandas as pd
import pytest
from support.campaigns import thinned

from hybrid_des.studies.sweep import runner
from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.log import LOG, sweep_log
from hybrid_des.studies.sweep.rows import PARTIAL

FILE = """\
model: gpt2
parallel: {pipeline: 2}
schedule: {kind: gpipe, microbatches: 4}
sweep:
  - {schedule.kind: [gpipe, 1f1b, dualpipe]}
  - {schedule.microbatches: [3, 4, 1/2 p]}
plot: {x: schedule.microbatches, y: step_time_s, hue: schedule.kind}
"""


@pytest.fixture
def stop(monkeypatch):
    """Stops a sweep at its case of this number; the number of cases that were begun."""
    honest, begun = runner._Simulated.__call__, []

    def stop(at):
        begun.clear()

        def counted(self, case):
            begun.append(case)
            if len(begun) == at:
                raise KeyboardInterrupt
            return honest(self, case)

        monkeypatch.setattr(runner._Simulated, "__call__", counted)
        return begun

    return stop


def rows_in(folder):
    return pd.read_csv(folder / "sweep.csv").drop(columns="wall_s")


@pytest.mark.parametrize("at", thinned([1, 3, 9], slow=[3, 9]))
def test_a_resumed_sweep_gives_the_table_of_a_whole_one(run, ran, write, tmp_path, stop, at):
    file, whole, out = write(FILE), tmp_path / "whole", tmp_path / "out"
    ran(file, "--out", whole, "--jobs", 1)
    stop(at)
    code, _, err = run(file, "--out", out, "--jobs", 1)
    assert (code, err[-1]) == (130, "interrupted")
    assert at == 1 or err[-2].startswith(f"{at - 1} of 9 cases finished; ")
    begun = stop(0)
    if at == 1:
        code, _, err = run(file, "--out", out, "--jobs", 1, "--resume")
        assert (code, err) == (2, [f"{out / LOG}: nothing to resume; expected the rows of an earlier sweep"])
        return
    said, _ = ran(file, "--out", out, "--jobs", 1, "--resume")
    assert len(begun) == 9 - (at - 1)
    assert len(said.splitlines()) > 9
    pd.testing.assert_frame_equal(rows_in(out), rows_in(whole))
    assert sorted(path.name for path in out.iterdir()) == ["sweep.csv", "sweep.html", "sweep.png"]


def test_a_sweep_that_is_stopped_twice_keeps_all_rows(run, ran, write, tmp_path, stop):
    file, out = write(FILE), tmp_path / "out"
    stop(3)
    run(file, "--out", out, "--jobs", 1)
    stop(1)
    run(file, "--out", out, "--jobs", 1, "--resume")
    stop(3)
    run(file, "--out", out, "--jobs", 1, "--resume")
    assert len((out / LOG).read_text().splitlines()) == 1 + 4
    assert len((out / PARTIAL).read_text().splitlines()) == 1 + 4
    begun = stop(0)
    ran(file, "--out", out, "--jobs", 1, "--resume")
    assert len(begun) == 5


def test_a_changed_scenario_is_not_resumed(run, write, tmp_path, stop):
    file, out = write(FILE), tmp_path / "out"
    stop(3)
    run(file, "--out", out, "--jobs", 1)
    stop(0)
    words = ("--out", out, "--jobs", 1, "--resume", "--set")
    same = "--resume needs the same scenario, cases, plug-ins and version"
    code, _, err = run(file, *words, "parallel.data=2")
    assert (code, err) == (2, [f"{out / LOG}: from a different sweep; {same}"])
    code, _, err = run(file, *words, "sweep.1.schedule.microbatches=[3]")
    assert (code, err) == (2, [f"{out / LOG}: from a different sweep of 9 cases, not 3; {same}"])
    assert len((out / LOG).read_text().splitlines()) == 3


def test_rows_are_read_as_they_were_written(ran, write, tmp_path):
    sweep, kept = load_sweep(write(FILE)), {}
    with pytest.raises(KeyboardInterrupt), sweep_log(tmp_path, sweep) as (_, note):
        rows = runner.sweep_rows(sweep, finished=note)
        raise KeyboardInterrupt
    with sweep_log(tmp_path, sweep, resume=True) as (known, _):
        kept |= known
    assert [kept[place] for place in range(9)] == rows
    assert list(tmp_path.iterdir()) == [tmp_path / "a.yaml"]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:20]], 1),
        (lambda lines: [*lines[:-1], json.dumps({"case": 1, "row": {"error": "worker lost twice"}}) + "\n"], 2),
        (lambda lines: [*lines[:-1], json.dumps({"case": 1, "row": {"error": f"{runner.LOST}: "}}) + "\n"], 1),
    ],
)
def test_what_was_cut_short_is_simulated_again(write, tmp_path, change, kept):
    sweep, path = load_sweep(write(FILE)), tmp_path / LOG
    with pytest.raises(KeyboardInterrupt), sweep_log(tmp_path, sweep) as (_, note):
        for place in range(2):
            note(place, {"step_time_s": 1.5})
        raise KeyboardInterrupt
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    with sweep_log(tmp_path, sweep, resume=True) as (known, _):
        assert len(known) == kept


@pytest.mark.parametrize("line", ["x", "[]", '{"case": 9, "row": {}}', '{"case": 0}'])
def test_a_line_that_is_no_row_is_named(run, write, tmp_path, line):
    file = write(FILE)
    with pytest.raises(KeyboardInterrupt), sweep_log(tmp_path, load_sweep(file)) as (_, note):
        note(0, {"step_time_s": 1.5})
        raise KeyboardInterrupt
    with (tmp_path / LOG).open("a") as log:
        log.write(line + "\n")
    code, _, err = run(file, "--out", tmp_path, "--resume")
    assert (code, err) == (
        2, [f"{tmp_path / LOG}:3: not a row of a sweep; delete this line to simulate its case again"]
    )  # fmt: skip
