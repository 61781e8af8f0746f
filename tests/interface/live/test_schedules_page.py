"""The page of all schedules: every one is on it, at the times that its own command prints."""

import json
import re

import pytest

from hybrid_des.interface.live.schedules import ACTIVATIONS, Sizes, schedule_runs, schedules_page
from hybrid_des.pipeline import schedules


def about(page):
    return json.loads(re.search(r'id="about">(.*?)</script>', page, flags=re.DOTALL)[1])


@pytest.fixture(scope="module")
def page():
    return schedules_page(Sizes())


def test_every_schedule_is_on_the_page(page):
    runs = about(page)["runs"]
    assert [run["name"] for run in runs] == schedules.names()
    assert all(run["lanes"] for run in runs)
    texts = re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[1].split(" ")
    assert len(texts) == len(runs)
    assert all(texts)


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v"])
def test_a_run_takes_as_long_as_its_grid(page, run, name):
    ranks = json.loads(run("schedules", name, "--json")[1])["ranks"]
    drawn = next(one for one in about(page)["runs"] if one["name"] == name)
    assert drawn["duration"] == round(1e12 * max(op["end"] for ops in ranks for op in ops))


def test_1f1b_holds_as_many_micro_batches_as_ranks():
    notes = {run["name"]: run["note"] for run, _ in schedule_runs(Sizes(pipeline=6, microbatches=12))}
    assert (
        notes["1f1b"] == "51 s · bubble 29.4% · at most 6 A held, on rank 0"
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
    code, _, err = run("schedules", "--out", file, "--microbatches", "6", "--set", "workload.forward=2")
    assert (code, err) == (0, [f"wrote {file}"])
    text = file.read_text(encoding="utf-8")
    assert about(text)["more"]["sizes"] == {
        "pipeline": 4, "microbatches": 6, "chunks": 2, "forward": 2.0, "backward": 2.0, "weight": None,
    }  # fmt: skip
    assert not re.search(r'(src|href)="(?!data:)|@import|url\(|new WebSocket|fetch\(', text)


def test_a_folder_gets_the_table_and_the_page(run, tmp_path):
    code, _, err = run("schedules", "--out", tmp_path)
    assert (code, err) == (0, [f"wrote {tmp_path / 'schedules.csv'}", f"wrote {tmp_path / 'schedules.html'}"])
    assert run("schedules", "--out", tmp_path / "x.html", "--pipeline", "99") == (
        2, "", ["--pipeline: must be at most 32 for the page of schedules, not 99"],
    )  # fmt: skip
