"""The page holds what the timeline says, once for what is alike, and nothing that reaches out."""

import base64
import html
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from support import handmade
from support.plans import plan_of
from support.results import RESULTS, result_of, simulated

from hybrid_des.analysis.idle import DEPENDENCY, END_OF_STEP, PARTS, PHASES, account
from hybrid_des.analysis.reasons import reasons_of
from hybrid_des.analysis.step_times import step_times
from hybrid_des.cluster.purposes import PURPOSES
from hybrid_des.interface.live.schedules import free_run
from hybrid_des.planning.program_table import OP_KINDS
from hybrid_des.report import palette
from hybrid_des.report.content import content_of
from hybrid_des.report.page import drawn as page_tables
from hybrid_des.report.page.document import PageRun, page_of
from hybrid_des.report.page.drawn import tables_of
from hybrid_des.report.palette import ACTIVITIES
from hybrid_des.report.plots.gantt import gantt
from hybrid_des.report.step_rows import COLOURS
from hybrid_des.result import Result, simulate
from hybrid_des.scenario.loading import load

SHIPPED = ("llama3.1-8b_8.yaml", "contention_slower.yaml", "prototype_12gpu.yaml")


@pytest.fixture(params=RESULTS)
def result(request):
    return RESULTS[request.param]()


def unpacked(page, number=0):
    """The tables of a page, decoded as its script does."""
    packed, *texts = re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[1].split(" ")
    about, text = json.loads(zlib.decompress(base64.b64decode(packed)))["runs"][number], texts[number]
    data = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).astype(np.int64)
    at, tables = 0, {}
    for title, head in about["tables"].items():
        table = tables[title] = {}
        for name, planes in head["columns"]:
            values = np.zeros(head["rows"], dtype=np.int64)
            for plane in range(planes):
                values += data[at : at + head["rows"]] << 8 * plane
                at += head["rows"]
            table[name] = values if name in ("asked", "end") else np.cumsum((values >> 1) ^ -(values & 1))
    assert at == len(data)
    times = tables.pop("times")["time"]
    for table in (tables["bars"], tables["idle"]):
        for name, sign in (("asked", -1), ("end", 1)):
            if name in table:
                table[name] = times[table["start"] + sign * table[name]]
        table["start"] = times[table["start"]]
    tables["memory"]["time"] = times[tables["memory"]["time"]]
    return about, tables


def idle_by_cause(timeline):
    """Waits for other ranks are drawn by phase, also those at the end of a step: they are one cause here."""
    idle = reasons_of(timeline).idle
    sums = np.bincount(idle["cause"], idle["end"] - idle["start"], minlength=len(PARTS)).astype(int).tolist()
    return summed(dict(zip(PARTS, sums, strict=True)), (*PHASES, END_OF_STEP))


def summed(causes, ranks):
    """The causes that take time, those of waits for other ranks as one."""
    whole = {"ranks": sum(causes.get(cause, 0) for cause in ranks)}
    return {cause: total for cause, total in {**causes, **whole}.items() if total and cause not in ranks}


def test_pieces_of_idle_time_sum_to_the_summarys(result):
    timeline = result.run.timeline
    whole = account(timeline, step_times(timeline))
    whole.pop("busy")
    assert idle_by_cause(timeline) == summed(whole, (DEPENDENCY, END_OF_STEP))


@pytest.mark.parametrize("name", SHIPPED)
def test_idle_pieces_of_shipped_scenarios_sum_too(name, scenarios):
    timeline = simulate(load(scenarios / name)).run.timeline
    whole = account(timeline, step_times(timeline))
    whole.pop("busy")
    assert idle_by_cause(timeline) == summed(whole, (DEPENDENCY, END_OF_STEP))


def test_idle_pieces_and_ops_tile_every_rank(result):
    timeline = result.run.timeline
    idle = reasons_of(timeline).idle
    for rank in range(timeline.layout.ranks):
        mine, free = timeline.ops["rank"] == rank, idle["rank"] == rank
        parts = [*zip(timeline.ops["start"][mine].tolist(), timeline.ops["end"][mine].tolist(), strict=True)]
        parts += zip(idle["start"][free].tolist(), idle["end"][free].tolist(), strict=True)
        now = 0
        for start, end in sorted(parts):
            assert start == now
            now = end
        assert now == timeline.duration


def test_an_op_that_waits_is_released_by_its_producer():
    timeline = simulated().run.timeline
    rows, by = timeline.op_rows(), reasons_of(timeline).released_by
    waiting = np.flatnonzero(rows["released"] >= 0)
    assert len(waiting) > 10
    for row in waiting.tolist():
        producer = int(by[row])
        facts = [
            (int(rows[name][row]), int(rows[name][producer])) for name in ("kind", "microbatch", "step", "replica")
        ]
        assert all(mine == its for mine, its in facts)
        assert rows["end"][producer] <= rows["start"][row]
        assert abs(rows["pipeline_rank"][row] - rows["pipeline_rank"][producer]) == 1


def test_what_released_a_row_ended_no_later(result):
    timeline = result.run.timeline
    by = reasons_of(timeline).released_by
    tables = [timeline.ops, *([timeline.messages] if timeline.messages else [])]
    start, end = (np.concatenate([table[name] for table in tables]) for name in ("start", "end"))
    known = by >= 0
    assert len(by) == len(start)
    assert (end[by[known]] <= start[known]).all()


def test_a_page_holds_every_row_of_what_it_draws(result):
    about, tables = unpacked(page_of([PageRun(result)]))
    bars, lanes = tables["bars"], about["lanes"]
    rows = result.timeline
    assert "rank" in {lane["group"] for lane in lanes}
    for number, lane in enumerate(lanes):
        mine = bars["lane"] == number
        if lane["group"] == "rank":
            mine &= np.array([about["kinds"][kind]["place"] == "op" for kind in bars["kind"]])
            theirs = rows[(rows["lane"] == "compute") & (rows["rank"] == lane["rank"])]
        else:
            theirs = rows[rows["lane"] == lane["name"]]
        drawn = sorted(zip(*(bars[name][mine].tolist() for name in ("start", "end", "asked")), strict=True))
        exact = (np.rint(theirs[f"{name}_s"] * 1e12).astype(int).tolist() for name in ("start", "end", "asked"))
        assert drawn == sorted(zip(*exact, strict=True))


def test_memory_reaches_the_peaks_of_the_run():
    result = simulated()
    about, tables = unpacked(page_of([PageRun(result)]))
    memory = tables["memory"]
    for number, lane in enumerate(lane for lane in about["lanes"] if lane["group"] == "rank"):
        assert memory["bytes"][memory["lane"] == number].max() == result.run.peak_memory[lane["rank"]]


def test_alike_replicas_are_drawn_once_with_their_number():
    about, tables = unpacked(page_of([PageRun(result_of(data=3))]))
    ranks = [lane for lane in about["lanes"] if lane["group"] == "rank"]
    assert [(lane["name"], lane["alike"], lane["also"]) for lane in ranks] == [
        ("rank 0", 3, [1, 2]), ("rank 3", 3, [4, 5]), ("rank 6", 3, [7, 8]),
    ]  # fmt: skip
    links = [lane for lane in about["lanes"] if lane["group"] == "link"]
    assert {lane["alike"] for lane in links} == {3}
    ops = np.array([about["kinds"][kind]["place"] == "op" for kind in tables["bars"]["kind"]])
    assert ops.sum() == len(result_of(data=1).run.timeline.ops["rank"])


def test_a_replica_that_differs_by_a_picosecond_is_drawn():
    result = result_of()
    timeline = result.run.timeline
    ops = {name: column.copy() for name, column in timeline.ops.items()}
    ops["end"][np.flatnonzero(ops["rank"] == 3)[0]] -= 1
    result.run.timeline = replace(timeline, ops=ops)
    lanes = tables_of(result.run.timeline, reasons_of(result.run.timeline)).lanes
    assert [lane["alike"] for lane in lanes if lane["group"] == "rank"] == [1] * 6


def test_links_without_room_are_counted(monkeypatch):
    monkeypatch.setattr(page_tables, "MOST_BARS", 150)
    about, tables = unpacked(page_of([PageRun(simulated())]))
    assert len(tables["bars"]["lane"]) <= 150
    assert re.fullmatch(r"\d+ less busy links that do not fit on the page", about["left_out"][0])
    drawn = sum(lane["alike"] for lane in about["lanes"] if lane["group"] == "link")
    assert drawn + int(about["left_out"][0].split()[0]) == simulated().timeline["lane"].nunique() - 1


@pytest.mark.slow
def test_a_hundred_thousand_uneven_bars_take_less_than_a_megabyte():
    times = {(kind, rank): 10**7 * (1999 + 7 * rank + 1999 * (kind == "B")) for kind in "FB" for rank in range(32)}
    run = handmade.run(plan_of("1f1b", 32, 800), lambda kind, rank, _: times[kind, rank], delay=1_234_567, size=10**6)
    run.timeline = unevenly(run.timeline)
    page = page_of([PageRun(Result(run))])
    _, tables = unpacked(page)
    assert len(tables["bars"]["lane"]) == page_tables.MOST_BARS
    assert len(np.unique(tables["bars"]["start"])) > 45_000
    assert len(page.encode()) < 1_000_000


def unevenly(timeline):
    """The same timeline with every stretch between two of its times up to a fifth longer or shorter."""
    names = ("asked", "start", "end", "begin", "sent", "reduced", "time")
    tables = {name: getattr(timeline, name) for name in ("ops", "messages", "steps", "reductions", "memory")}
    every = np.unique(np.concatenate([table[name] for table in tables.values() for name in names if name in table]))
    stretch = np.random.default_rng(0).uniform(0.8, 1.2, len(every))
    moved = np.cumsum((np.diff(every, prepend=0) * stretch).astype(np.int64))
    return replace(timeline, **{
        title: {n: moved[np.searchsorted(every, c)] if n in names else c for n, c in table.items()}
        for title, table in tables.items()
    })  # fmt: skip


def test_a_page_reaches_for_nothing(result):
    page = page_of([PageRun(result)])
    assert not re.findall(r"https?:|//[a-z]+\.|@import|url\(", page)
    assert "default-src 'none'" in page


def test_foreign_names_stay_text():
    result = result_of()
    result.run.scenario.name = result.run.scenario.description = "</script><script>alert(1)</script>{{DATA}}"
    page = page_of([PageRun(result)])
    assert "<script>alert" not in page
    assert page.count("<script") == 2
    assert html.escape("</script><script>alert(1)</script>{{DATA}}") in page
    unpacked(page)


def test_two_runs_are_on_one_page():
    page = page_of([PageRun(result_of(), name="slow"), PageRun(simulated(), name="fast")])
    assert [unpacked(page, number)[0]["name"] for number in (0, 1)] == ["slow", "fast"]
    assert "<title>slow against fast</title>" in page


def test_ops_and_messages_have_colours_of_their_own():
    colours = {ACTIVITIES[kind].label: ACTIVITIES[kind].colour for kind in OP_KINDS}
    colours |= {purpose.label: purpose.colour for purpose in PURPOSES}
    assert len(set(colours.values())) == len(colours)


def test_each_kind_of_a_page_has_one_colour(result):
    about, _ = unpacked(page_of([PageRun(result)]))
    colours = {kind["label"]: kind["colours"][0] for kind in about["kinds"]}
    assert len(set(colours.values())) == len(colours)
    assert all(cause["colour"] for cause in about["causes"])


def test_the_critical_path_is_shown_where_it_is_known():
    result = result_of()
    reasons = reasons_of(result.run.timeline)
    path = np.array([0, 5, 7])
    _, tables = unpacked(page_of([PageRun(result, reasons._replace(path=path))]))
    ops = result.run.timeline.ops
    drawn = tables["bars"]["path"] == 1
    first = ops["rank"][path] % 2 == 0  # the other replica is alike and not drawn
    assert sorted(tables["bars"]["start"][drawn].tolist()) == sorted(ops["start"][path][first].tolist())
    assert "bubble-bound &lt;1&gt;" in page_of([PageRun(result, reasons, verdict="bubble-bound <1>")])


@pytest.mark.parametrize(("kind", "idle"), [("1f1b", 4 * 3 * 3), ("gpipe", 4 * 3 * 3), ("zb-h1", 4 * 3)])
def test_the_bubble_is_as_large_as_in_textbooks(kind, idle):
    """(p − 1)(F + B) on each of p ranks for 1F1B and GPipe (arXiv 2104.04473); zb-h1 is left with (p − 1) on each.

    F = 1 and B = 2, or I = W = 1, and links are free.
    """
    run = free_run(kind, 4, 8)
    pieces = reasons_of(run.timeline).idle
    took = np.bincount(pieces["cause"], pieces["end"] - pieces["start"], minlength=len(PARTS)) / 10**12
    assert took[[PARTS.index(phase) for phase in PHASES]].sum() == took.sum() == idle
    shares = {share.label: share.seconds for share in content_of(Result(run)).shares}
    bubble = {label: seconds for label, seconds in shares.items() if label.startswith("bubble: ")}
    assert sum(bubble.values()) == pytest.approx(idle / 4)
    assert Result(run).summary["bubble_ratio"] == pytest.approx(idle / 4 / Result(run).summary["pipeline_time_s"])


@pytest.mark.parametrize(("kind", "label"), [
    ("dualpipe", "from the first rank, from the last rank"), ("chimera", "from the first rank, from the last rank"),
    ("interleaved-1f1b", "chunks 0 to 1, dark to light"), ("1f1b", None),
])  # fmt: skip
def test_a_page_draws_and_names_chunks_as_a_picture(kind, label):
    run = free_run(kind, 4, 8)
    about, tables = unpacked(page_of([PageRun(Result(run))]))
    kinds, shades, _ = about["key"]
    assert shades == ([] if label is None else [[label, palette.shades(ACTIVITIES["F"].colour, 2)]])
    legend = gantt(run, Figure().add_subplot()).get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    assert [name for name, _ in [*kinds, *shades] if name != "pipeline messages"] == names
    if kind == "dualpipe":
        bars = tables["bars"]
        pairs = bars["kind"] == OP_KINDS.index("FB")
        assert (bars["second"][pairs] >= 0).all()
        assert (bars["second"][~pairs] == -1).all()


def test_bars_and_lanes_have_the_same_words_and_colours(result):
    lanes = {cause["name"]: cause["colour"] for cause in unpacked(page_of([PageRun(result)]))[0]["causes"]}
    for share in content_of(result).shares:
        if share.label in lanes:
            assert COLOURS[share.label] == lanes[share.label]
    assert {share.label for share in content_of(result).shares} & lanes.keys()
