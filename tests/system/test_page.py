"""The page in a browser: headless Chromium, as Debian's package `chromium` or Google Chrome install it.

`apt-get install chromium` is enough; where no browser is found, these tests are skipped. A script added to the page
uses it as a person would and leaves what it found in the document, which the browser prints.
"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.browser import Tab, browser
from support.campaigns import thinned
from support.paths import SCENARIOS
from support.results import RESULTS, result_of, simulated
from support.scenarios import shared_nics
from support.verdicts import of_model

from hybrid_des import simulate
from hybrid_des.analysis.explanation import explain
from hybrid_des.report.page.document import PageRun, page_of
from hybrid_des.report.page.traced_pages import explanation_page
from hybrid_des.scenario.loading import load
from hybrid_des.studies.advice import explain as explain_file

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--window-size=1400,1000", "--virtual-time-budget=10000",
         "--enable-logging=stderr", "--dump-dom")  # fmt: skip
PROBE = Path(__file__).with_name("probe.html").read_text(encoding="utf-8")
LANES = """
  let used = 0;                        // a thousand messages that take three tenths of the view, as they are drawn
  const every = (view[1] - view[0]) / 1000, rows = [...Array(1000).keys()];
  const bars = { start: rows.map((i) => view[0] + i * every), length: rows.map(() => 0.3 * every),
                 kind: rows.map(() => 0) };
  const pen = { fillRect: (x, y, wide, high) => { used += wide * high; } };
  drawUse(pen, { run: { bars, kinds: [{ colours: ["#000000"] }] }, y: 0, height: 25 }, rows);
  const folded = Number(document.body.dataset.lanes);
  if (!$("unfold").hidden) $("unfold").click();
  report({ painted: Number(document.body.dataset.lanes), lanes: runs.flatMap((run) => run.lanes).length, folded,
           ranks: runs.flatMap((run) => run.lanes).filter((lane) => lane.group === "rank").length,
           bands: lanes.filter((lane) => lane.links?.length).length,
           used: used / 24 / (width - LEFT) });"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium")


def look(page, folder, probe, address=""):
    """What a script finds out in the page, and what the browser's console said."""
    file = folder / "report.html"
    file.write_text(page.replace("</body>", f"{PROBE.replace('PROBE', probe)}</body>"), encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"file://{file}{address}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    text = re.search(r'<pre id="found-by-test">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert text, done.stderr[-2000:]
    found = json.loads(html.unescape(text[1]))
    assert (found["wrong"], found["requests"], found.get("error")) == ([], 0, None)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    return found


@pytest.mark.parametrize("name", thinned(RESULTS, slow=[name for name in RESULTS if name != "simulated"]))
def test_every_lane_is_painted_without_an_error(name, tmp_path):
    found = look(page_of([PageRun(RESULTS[name]())]), tmp_path, LANES)
    assert found["painted"] == found["lanes"] > 0
    assert found["folded"] == found["ranks"]
    assert (found["bands"] > 0) == (found["lanes"] > found["ranks"])
    assert found["used"] == pytest.approx(0.3, rel=0.01)


def test_a_click_on_an_op_shows_its_numbers(tmp_path):
    result = result_of(pipeline=2, microbatches=2, data=1, steps=1)
    rows = result.timeline
    backward = rows[(rows["kind"] == "B") & (rows["rank"] == 1) & (rows["microbatch"] == 0)].iloc[0]
    middle = (backward.start_s + backward.end_s) / 2 * 1e12
    probe = f"""
      const lane = lanes.find((one) => one.name === "rank 1");
      mouse("mousemove", xOf({middle}), lane.y + 4); const tip = $("tip").textContent;
      mouse("mousedown", xOf({middle}), lane.y + 4); mouse("click", xOf({middle}), lane.y + 4);
      report({{ facts: facts(), tip, address: location.hash }});"""
    found = look(page_of([PageRun(result)]), tmp_path, probe)
    lines = found["facts"].splitlines()
    assert lines[0] == "B0 (backward) on rank 1"
    assert (backward.start_s, backward.end_s) == pytest.approx((11.235565e-6, 18.2360660e-6))
    assert "start 11.236 µs, end 18.236 µs, took 7.001 µs" in lines  # of 7.000501, start and end as finely
    assert "released by F0 on rank 1" in lines
    assert found["tip"] == found["facts"]
    assert found["address"].endswith("&rank=1")


@pytest.mark.slow
def test_an_address_leads_to_an_op(tmp_path):
    result = result_of(pipeline=2, microbatches=2, steps=1)
    rows = result.timeline
    last = rows[(rows["kind"] == "F") & (rows["rank"] == 3)].iloc[-1]
    address = f"#t={(last.start_s + last.end_s) / 2}&rank=3"
    found = look(page_of([PageRun(result)]), tmp_path, "report({ facts: facts() });", address)
    assert found["facts"].startswith(f"F{last.microbatch} (forward) on rank 2 and 1 other identical rank\n")


@pytest.mark.slow
def test_curves_of_memory_have_names(tmp_path):
    probe = "report({ curves: runs[0].curves.map((lane) => lane.name) });"
    many = look(page_of([PageRun(result_of(pipeline=16, data=1))]), tmp_path, probe)
    assert many["curves"] == [f"rank {rank}" for rank in (0, 2, 4, 6, 8, 10, 12, 14, 15)]


@pytest.mark.slow
def test_only_wide_stops_of_a_path_are_joined(tmp_path):
    found = explain(shared_nics(1, 2, 8, gradients={"bucket": "500 kB"}))
    probe = """
      const joins = () => Number(document.body.dataset.joins), stops = runs[0].path.length, far = joins();
      const first = runs[0].path[0], b = runs[0].bars;
      look(b.start[first], b.start[first] + 4 * b.length[first]);
      const wide = runs[0].path.filter((i) => b.start[i] <= view[1] && b.start[i] + b.length[i] >= view[0]).length;
      report({ stops, far, near: joins(), wide });"""
    seen = look(explanation_page(found), tmp_path, probe)
    assert seen["stops"] > 100
    assert 0 < seen["far"] < seen["stops"] / 4
    assert 0 < seen["near"] < seen["wide"]


@pytest.mark.slow
def test_keys_move_and_searching_finds(tmp_path):
    probe = """
      const views = [[...view]];
      for (const key of ["w", "d", "a", "s", "0"]) { press(key); views.push([...view]); }
      $("search").value = "b1 rank 2"; search("b1 rank 2"); press("Enter");
      report({ views, found: $("found").textContent, facts: facts() });"""
    found = look(page_of([PageRun(result_of(data=1, steps=1))]), tmp_path, probe)
    whole, nearer, right, left, _, again = found["views"]
    assert nearer[1] - nearer[0] == pytest.approx(0.7 * (whole[1] - whole[0]))
    assert right[0] > nearer[0]
    assert left == pytest.approx(nearer)
    assert again == whole
    assert found["found"] == "1 found"
    assert found["facts"].startswith("B1 (backward) on rank 2")


@pytest.mark.slow
def test_two_runs_share_one_time_axis(tmp_path):
    runs = [PageRun(result_of(), name="A"), PageRun(simulated(), name="B")]
    probe = """report({ heads: lanes.filter((one) => one.head).map((one) => one.head), total,
                         ends: runs.map((run) => run.duration) });"""
    found = look(page_of(runs), tmp_path, probe)
    assert found["heads"] == ["A", "B"]
    assert found["ends"] == [run.findings.run.timeline.duration for run in runs]
    assert found["total"] == max(found["ends"])


def test_an_explained_run_is_painted_with_its_path(tmp_path):
    found = explain(shared_nics(gradients={"overlap": True}))
    probe = """
      const on = [...runs[0].bars.path.keys()].filter((i) => runs[0].bars.path[i]);
      choose([runs[0], on[0]]);
      $("unfold").click();
      report({ painted: Number(document.body.dataset.lanes), lanes: runs[0].lanes.length, on: on.length,
               facts: facts() });"""
    seen = look(explanation_page(found), tmp_path, probe)
    assert seen["painted"] == seen["lanes"] > 0
    assert seen["on"] >= len({piece.activity for piece in found.path})
    assert seen["facts"].endswith("on the critical path")


def test_links_are_folded_by_kind_until_they_are_clicked(tmp_path):
    """Their mean use, of collectives inside ops too, is the share of the time in which they are busy."""
    probe = """
      const band = lanes.find((one) => one.links), links = () => lanes.filter((one) => one.group === "link");
      const names = () => links().map((one) => one.name);
      const before = names(), y = band.y + 4;
      const b = runs[0].bars, i = [...b.kind.keys()].find((one) => kindOf(runs[0], one).place === "axis");
      mouse("mousemove", xOf(b.start[i] + b.length[i] / 2), y); const tip = $("tip").textContent;
      mouse("mousemove", 20, y); const named = $("tip").textContent;
      const click = () => { mouse("mousedown", 20, y); mouse("click", 20, y); mouse("mouseup", 20, y); };
      click(); const open = names();
      const inside = lanes.filter((one) => one.inside !== undefined).map((one) => one.name);
      click();
      report({ before, tip, named, open, inside, after: names(), busy: band.band.busy, name: band.band.name });"""
    scenario = of_model(parallel={"tensor": 4, "data": 2})
    result = simulate(scenario)
    found = look(page_of([PageRun(result)]), tmp_path, probe)
    links = {name for name in result.timeline["lane"].unique() if "nvlink" in name}
    assert (found["before"], found["after"], found["name"]) == ([], [], "NVLink")
    assert set(found["open"]) <= links and found["open"] == found["inside"]
    assert found["tip"].startswith("NVLink links (")
    assert "tensor-parallel communication: " in found["tip"]
    head, *parts = found["named"].splitlines()
    assert head == found["tip"].partition(",")[0] + ", mean use over the whole run:"
    shares = [float(part.partition(": ")[2].removesuffix(" %")) for part in parts if part.endswith(" %")]
    assert sum(shares) == pytest.approx(100 * found["busy"], abs=1)
    assert found["busy"] >= float(result.breakdown.shares["tensor"])


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["fair", "fifo"])
def test_messages_at_the_same_time_use_a_link_once(sharing, tmp_path):
    scenario = load(SCENARIOS / "contention_slower.yaml", [f"cluster.sharing={sharing}"])
    result = simulate(scenario)
    probe = "report({ busy: Object.fromEntries(runs[0].bands.map((band) => [band.name, band.busy])) });"
    found = look(page_of([PageRun(result)]), tmp_path, probe)["busy"]
    rows, end = result.timeline, result.run.timeline.duration / 1e12
    for name, kind in (("NVLink", "nvlink"), ("NIC", "/nic")):
        links = [mine for link, mine in rows.groupby("lane") if kind in link]
        used = [busy(zip(mine["start_s"], mine["end_s"], strict=True)) / end for mine in links]
        assert found[name] == pytest.approx(sum(used) / len(used), rel=0.03)


def busy(spans):
    """How long any of these spans lasts."""
    total = until = 0.0
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def test_a_rank_says_its_place_and_its_groups(tmp_path):
    result = simulate(of_model(parallel={"tensor": 2, "pipeline": 2, "data": 2}) | {"record": "all"})
    rank = next(rank for rank in range(8) if result.run.timeline.layout.coordinate(rank, "pipeline") == 1)
    probe = f"""
      const lane = lanes.find((one) => one.name === "rank {rank}");
      mouse("mousemove", 10, lane.y + 4); report({{ tip: $("tip").textContent, wide: LEFT }});"""
    found = look(page_of([PageRun(result)]), tmp_path, probe)
    layout = result.run.timeline.layout
    lines = found["tip"].splitlines()
    assert lines[0] == f"rank {rank}: tp 0, pp 1, dp 0"
    for short, axis in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data")):
        assert f"{short} group: ranks {', '.join(map(str, layout.line(rank, axis)))}" in lines


@pytest.mark.slow
def test_buttons_copy_flags_and_choose_tabs(tmp_path):
    probe = """
      const card = document.querySelector(".card"), written = [];
      navigator.clipboard.writeText = (text) => { written.push(text); return Promise.resolve(); };
      card.querySelector(".copy").click();
      const tabs = [...document.querySelectorAll("[role=tab]")];
      const panels = [...document.querySelectorAll("[role=tabpanel]")];
      const seen = () => panels.map((one) => !one.hidden);
      const first = seen(); tabs[tabs.length - 1].click(); const last = seen();
      const text = panels[panels.length - 1].textContent; tabs[0].click();
      report({ written, flags: card.querySelector("code:last-of-type").textContent, first, last, again: seen(),
               text: text.slice(0, 5), drawn: chart.width });"""
    found = look(explanation_page(explain_file(SCENARIOS / "first.yaml")), tmp_path, probe)
    assert found["written"] and found["written"][0].startswith("--")
    assert found["first"] == found["again"] == [True] + [False] * (len(found["first"]) - 1)
    assert found["last"] == found["first"][::-1]
    assert (found["text"], found["drawn"] > 1000) == ("first", True)


@pytest.mark.slow
def test_a_page_never_scrolls_sideways(tmp_path):
    """On a telephone and on a desk, behind every tab, on light and on dark paper."""
    file = tmp_path / "report.html"
    file.write_text(explanation_page(explain_file(SCENARIOS / "first.yaml")), encoding="utf-8")
    with browser(tmp_path / "profile") as where:
        tab = Tab(where)
        for width, dark in ((390, False), (390, True), (1400, False)):
            tab.screen(width, 1000, dark)
            tab.open(f"file://{file}")
            wide = tab.run("""[...document.querySelectorAll("[role=tab]")].map((one) => {
                one.click();
                const { scrollWidth, clientWidth } = document.documentElement;
                return scrollWidth - clientWidth; })""")
            assert (wide, tab.run("innerWidth"), tab.wrong) == ([0] * len(wide), width, [])
        tab.close()
