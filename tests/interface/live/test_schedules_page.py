"""The page of all schedules: every one is on it, at the times that its own command prints."""

import json
import re

import pytest
from support.paths import PACKAGE

from hybrid_des.interface.live.schedule_formulas import NO_TIMES, SPAN, UNEXPLAINED
from hybrid_des.interface.live.schedules import (
    ACTIVATIONS,
    Sizes,
    by_bubble,
    free_run,
    schedule_runs,
    schedules_page,
)
from hybrid_des.pipeline import schedules
from hybrid_des.result import Result


def about(page):
    return json.loads(re.search(r'id="about">(.*?)</script>', page, flags=re.DOTALL)[1])


@pytest.fixture(scope="module")
def page():
    return schedules_page(Sizes())


def test_every_schedule_is_on_the_page(page):
    runs = about(page)["runs"]
    assert sorted(run["name"] for run in runs) == schedules.names()
    assert all(run["lanes"] for run in runs)
    texts = re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[1].split(" ")
    assert len(texts) == len(runs)
    assert all(texts)


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v"])
def test_a_run_takes_as_long_as_its_grid(page, run, name):
    ranks = json.loads(run("schedules", name, "--json")[1])["ranks"]
    drawn = next(one for one in about(page)["runs"] if one["name"] == name)
    assert drawn["duration"] == round(1e12 * max(op["end"] for ops in ranks for op in ops))


def test_schedules_are_ordered_by_their_bubble():
    runs = [run for run, _ in by_bubble(schedule_runs(Sizes(pipeline=3, microbatches=4)))]
    shown = [run["row"]["bubble"] for run in runs if "row" in run]
    assert shown == sorted(shown)
    assert "refused" in runs[-1]
    assert len(shown) < len(runs)


def test_a_formula_agrees_with_the_simulation_or_says_why():
    rows = {run["name"]: run["row"] for run, _ in schedule_runs(Sizes())}
    assert rows["1f1b"]["bubble"] == pytest.approx(3 / 11)
    assert rows["1f1b"]["by_formula"] == pytest.approx(3 / 11)
    for name, row in rows.items():
        assert bool(row["remark"]) == (
            row["by_formula"] is None or row["by_formula"] != pytest.approx(row["bubble"])
        ), name
        assert UNEXPLAINED not in row["remark"]
        assert row["source"]


def test_zb_h2_equals_zb_h1_unless_steps_overlap():
    rows = {run["name"]: run["row"] for run, _ in schedule_runs(Sizes())}
    assert rows["zb-h2"]["step_s"] == rows["zb-h1"]["step_s"] == 27
    assert (rows["zb-h2"]["by_formula"], rows["zb-h2"]["remark"]) == (0, SPAN.format(span="24 s"))
    overlapping = [Result(free_run(name, 4, 8, None, ["steps=10", "barrier=false"])) for name in ("zb-h1", "zb-h2")]
    assert [result.summary["step_time_s"] for result in overlapping] == [27, 24.3]  # spans of 24 s, and 3 s at the end


def test_weights_held_twice_are_named():
    notes = {run["name"]: run["note"] for run, _ in schedule_runs(Sizes())}
    assert [name for name, note in notes.items() if "weights held twice" in note] == ["chimera", "dualpipe"]


def test_times_that_differ_between_ranks_have_no_formula():
    rows = {run["name"]: run["row"] for run, _ in schedule_runs(Sizes(), ["workload.forward=[1, 1, 2, 1]"])}
    assert (rows["1f1b"]["by_formula"], rows["1f1b"]["remark"]) == (None, NO_TIMES)


def test_1f1b_holds_as_many_micro_batches_as_ranks():
    notes = {run["name"]: run["note"] for run, _ in schedule_runs(Sizes(pipeline=6, microbatches=12))}
    assert (
        notes["1f1b"] == "51 s · bubble 29.4 % · at most 6 A held, on rank 0"
    )  # (m + p − 1)(F + B), (p − 1)/(m + p − 1)
    assert "at most 12 A held" in notes["gpipe"]
    assert ACTIVATIONS == 10**9


def test_a_schedule_that_refuses_the_sizes_says_why():
    runs = {run["name"]: run for run, _ in schedule_runs(Sizes(pipeline=3, microbatches=4))}
    assert runs["1f1b"]["duration"] > 0
    refused = {name: run["refused"] for name, run in runs.items() if "refused" in run}
    assert "chimera" in refused
    assert all(refused.values())


def test_one_file_holds_the_page_and_reaches_out_to_nothing(run, tmp_path):
    file = tmp_path / "all.html"
    code, out, err = run("schedules", "--out", file, "--microbatches", "6", "--set", "workload.forward=2")
    assert (code, out, err) == (0, "", [f"wrote {file}"])
    text = file.read_text(encoding="utf-8")
    assert about(text)["more"]["sizes"] == {
        "pipeline": 4, "microbatches": 6, "chunks": 2, "forward": 2.0, "backward": 2.0, "weight": None,
    }  # fmt: skip
    assert not re.search(r'(src|href)="(?!data:)|@import|url\(|new WebSocket|fetch\(', text)


def test_a_folder_gets_the_table_and_the_page(run, tmp_path):
    code, out, err = run("schedules", "--out", tmp_path)
    assert (code, out, err) == (0, "", [f"wrote {tmp_path / 'schedules.csv'} and {tmp_path / 'schedules.html'}"])
    assert run("schedules", "--out", tmp_path / "x.html", "--pipeline", "99") == (
        2, "", ["--pipeline: must be at most 32 for the page of schedules, not 99"],
    )  # fmt: skip


def test_scripts_of_one_page_declare_a_name_once():
    """A second declaration stops the whole script."""
    pieces = [*(PACKAGE / "report" / "page").glob("timeline.js"), PACKAGE / "interface" / "live" / "schedules.html"]
    declared = [
        re.findall(r"^(?:const|let|function|class) (\w+)", path.read_text("utf-8"), re.MULTILINE) for path in pieces
    ]
    names = [name for each in declared for name in each]
    assert len(declared) == 2 and all(declared)
    assert sorted(names) == sorted({*names})
