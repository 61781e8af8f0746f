"""The page of a search: what a point opens is its plan, and tables are sorted by a click."""

import json
import re
from html import unescape

import pytest
import yaml
from system.test_page import BROWSER, look

from hybrid_des import search
from hybrid_des.interchange.frameworks.megatron import megatron, read_megatron
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.studies.plan_search.best_plan import write as write_search
from hybrid_des.studies.plan_search.page import search_page

MODEL = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 2816, "vocab": 32000, "sequence": 1024, "written": "megatron"}
SCENARIO = {
    "name": "plans", "model": MODEL, "cluster": {"gpu": "h100", "gpus_per_node": 8}, "batch": 16,
    "parallel": {"tensor": 2, "data": 4, "sequence": True}, "schedule": {"kind": "1f1b"},
    "search": {"axes": ["parallel", {"recompute": ["none", "full"]}], "memory": "79 GB"},
}  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return search(SCENARIO, jobs=1)


@pytest.fixture(scope="module")
def page(found):
    return search_page(found)


def data_of(page):
    return json.loads(re.search(r'id="about">(.*?)</script>', page)[1])["more"]


def copied(plan):
    """The texts of a plan that can be copied."""
    return [unescape(text) for text in re.findall("<code>(.*?)</code>", plan, re.DOTALL)]


@pytest.mark.slow
def test_every_point_opens_the_plan_of_its_file(found, page):
    more = data_of(page)
    points = [point for series in more["charts"]["frontier"]["series"] for point in series["points"]]
    opened = {point[3]: point for point in points if point[3] is not None}
    assert opened.keys() == {one.number for one in found.ranked} == {int(number) for number in more["plans"]}
    for one in found.ranked:
        held, step = opened[one.number][:2]
        assert (held, step) == (one.held, one.row["step_time_s"])
        text = copied(more["plans"][str(one.number)])[-1]
        read, plan = (to_mapping(scenario) for scenario in (load(yaml.safe_load(text)), found.scenario(one)))
        assert {**read, "name": ""} == {**plan, "name": ""}


def test_flags_of_a_point_are_those_of_its_plan(found, page):
    plans = data_of(page)["plans"]
    for one in found.ranked:
        *changed, line, _ = copied(plans[str(one.number)])
        read = scenario_from(
            {**nested(read_megatron(line, "line").values), "cluster": SCENARIO["cluster"], "name": "a"}
        )
        scenario = found.scenario(one)
        assert read.parallel.layout == scenario.parallel.layout
        assert (read.recompute, read.batch) == (scenario.recompute, scenario.batch)
        for flag in "\n".join(changed).splitlines():
            said = set(" ".join(megatron(scenario).flags).split())
            assert (
                (flag.removeprefix("drop ").split(", ")[0] not in said) if "drop" in flag else flag.split()[0] in said
            )
        if scenario.parallel.tensor != found.settings.written.parallel.tensor:
            assert f"--tensor-model-parallel-size {scenario.parallel.tensor}" in changed[0].splitlines()


def test_the_frontier_is_drawn_as_one_line(found, page):
    series = {one["name"]: one for one in data_of(page)["charts"]["frontier"]["series"]}
    front = series["simulated, none better in both"]
    assert front["line"]
    assert sorted(point[3] for point in front["points"]) == sorted(one.number for one in found.front())
    steps = [point[1] for point in front["points"]]
    assert steps == sorted(steps, reverse=True)  # more memory, shorter steps


@pytest.mark.slow
def test_the_page_is_written_and_removed_with_its_search(found, tmp_path):
    write_search(found, tmp_path)
    assert (tmp_path / "search.html").read_text(encoding="utf-8").count("<h1>") == 1


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_click_sorts_and_a_point_opens_its_plan(page, found, tmp_path):
    probe = """
      const table = document.querySelector("table.sorted"), heads = [...table.tHead.rows[0].cells];
      const place = heads.findIndex((head) => head.textContent === "memory"), sorts = [];
      for (let i = 0; i < 2; i++) {
        heads[place].querySelector("button").click();
        const shown = [...table.tBodies[0].rows].map((row) => Number(row.cells[place].dataset.value));
        sorts.push([heads[place].getAttribute("aria-sort"), shown]);
      }
      const first = document.querySelector("#plan h3").textContent;
      const points = [...document.querySelectorAll("[data-chart] .open")];
      const other = points.find((point) => point.dataset.row !== String(BEST));
      other.dispatchEvent(new MouseEvent("click"));
      report({ sorts, first, row: other.dataset.row, opened: document.querySelector("#plan h3").textContent,
               chosen: document.querySelector("tr.chosen").dataset.row, wide: document.body.scrollWidth - innerWidth });
    """.replace("BEST", str(found.best.number))
    seen = look(page, tmp_path, probe)
    (up, rising), (down, falling) = seen["sorts"]
    assert (up, down) == ("ascending", "descending")
    assert rising == sorted(one.held for one in found.ranked) == falling[::-1]
    assert seen["first"].startswith(f"Plan {found.best.number}: ")
    assert seen["opened"].startswith(f"Plan {seen['row']}: ")
    assert seen["chosen"] == seen["row"]
    assert seen["wide"] <= 0
