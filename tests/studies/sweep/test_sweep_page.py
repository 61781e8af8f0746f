"""The page of a sweep: one small picture per figure on a common axis, and a table that a click sorts."""

import json
import re

import pytest
from system.test_page import BROWSER, look

from hybrid_des.studies.sweep import load_sweep, sweep_rows, write
from hybrid_des.studies.sweep.page import sweep_page

BASE = {"name": "cases", "model": "gpt2", "cluster": {"gpu": "h100"}, "batch": 32, "parallel": {"pipeline": 4}}
AXES = [{"schedule.microbatch_size": [1, 2, 4]}, {"schedule.kind": ["1f1b", "gpipe"]}, {"recompute": ["none", "full"]}]
PLOT = {"x": "schedule.microbatch_size", "y": "step_time_s", "hue": ["schedule.kind"], "where": {"recompute": "none"}}


def cases(**more):
    sweep = load_sweep({**BASE, "sweep": AXES, **more})
    return sweep, sweep_rows(sweep, jobs=1)


@pytest.fixture(scope="module")
def simulated():
    return cases()


def charts_of(page):
    return json.loads(re.search(r'id="about">(.*?)</script>', page)[1])["more"]["charts"]


def test_points_are_the_figures_of_their_rows(simulated):
    sweep, rows = simulated
    charts = charts_of(sweep_page(rows, sweep))
    steps = next(chart for chart in charts.values() if chart["y"]["label"] == "step time")
    assert len(charts) >= 3
    assert all(chart["x"]["label"] == steps["x"]["label"] for chart in charts.values())
    points = [point for series in steps["series"] for point in series["points"]]
    assert len(points) == len(rows)
    for size, step, said, place, _ in points:
        assert (step, size) == (rows[place]["step_time_s"], rows[place]["schedule.microbatch_size"])
        assert rows[place]["schedule.kind"] in said and rows[place]["recompute"] in said


def test_a_plot_says_what_is_drawn():
    sweep, rows = cases(plot=PLOT)
    steps = next(iter(charts_of(sweep_page(rows, sweep)).values()))
    assert [series["name"] for series in steps["series"]] == ["1f1b", "gpipe"]
    drawn = [point[3] for series in steps["series"] for point in series["points"]]
    assert sorted(drawn) == [place for place, row in enumerate(rows) if row["recompute"] == "none"]


def test_lines_are_told_apart_without_colours(simulated):
    sweep, rows = simulated
    series = next(iter(charts_of(sweep_page(rows, sweep)).values()))["series"]
    assert len({one["mark"] for one in series}) == len({one["colour"] for one in series}) == len(series) == 4


def test_failed_cases_stand_in_the_table_only(tmp_path):
    sweep, rows = cases(sweep=[{"parallel.pipeline": [2, 4, 5]}], schedule={"kind": "1f1b"})
    assert "error" in rows[2]
    page = sweep_page(rows, sweep)
    assert page.count("<tr data-row=") == 3 and "2 cases" not in page
    points = [point for series in next(iter(charts_of(page).values()))["series"] for point in series["points"]]
    assert [point[3] for point in points] == [0, 1]
    write(rows, sweep, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"sweep.csv", "sweep.html"}
    write(rows[2:], sweep, tmp_path)  # nothing was simulated: an older page does not stay
    assert {path.name for path in tmp_path.iterdir()} == {"sweep.csv"}


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_click_on_a_head_sorts_the_cases(simulated, tmp_path):
    sweep, rows = simulated
    probe = """
      const table = document.querySelector("table.sorted"), heads = [...table.tHead.rows[0].cells], sorted = {};
      for (const name of ["schedule.kind", "step time"]) {
        const head = heads.find((one) => one.textContent === name);
        head.querySelector("button").click();
        sorted[name] = [...table.tBodies[0].rows].map((row) => Number(row.dataset.row));
      }
      const drawn = document.querySelectorAll("[data-chart] svg .open").length;
      document.querySelector("[data-chart] .open").dispatchEvent(new MouseEvent("click"));
      report({ sorted, drawn, chosen: document.querySelectorAll("tr.chosen").length });
    """
    seen = look(sweep_page(rows, sweep), tmp_path, probe)
    steps, kinds = ([rows[place][key] for place in seen["sorted"][name]]
                    for key, name in (("step_time_s", "step time"), ("schedule.kind", "schedule.kind")))  # fmt: skip
    assert steps == sorted(steps) and kinds == sorted(kinds)
    assert seen["drawn"] >= 3 * len(rows)
    assert seen["chosen"] == 1
