"""Pages with causes: what explain and compare found stands on them."""

import numpy as np
import pytest
from support.scenarios import shared_nics

from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.paths import critical_path
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.idle import account
from hybrid_des.analysis.reasons import reasons_of
from hybrid_des.analysis.step_times import step_times
from hybrid_des.report.explained_details import rounded_count
from hybrid_des.report.page.drawn import tables_of
from hybrid_des.report.page.traced_pages import traced_reasons

SMALL = ("--set", "schedule.microbatches=2")


@pytest.fixture(params=["fifo", "fair"])
def graph(request):
    return graph_of(traced_run(shared_nics(cluster={"sharing": request.param}, gradients={"overlap": True})))


def test_idle_time_by_reason_is_all_idle_time(graph):
    timeline, idle = graph.timeline, traced_reasons(graph).idle
    whole = account(timeline, step_times(timeline))
    assert (idle["end"] - idle["start"]).sum() == sum(whole.values()) - whole["busy"]


def test_a_row_begins_when_what_released_it_has_ended(graph):
    timeline, by = graph.timeline, traced_reasons(graph).released_by
    ops = len(timeline.ops["rank"])
    end = np.concatenate([timeline.ops["end"], timeline.messages["end"]])
    start = np.concatenate([timeline.ops["start"], timeline.messages["start"]])
    known = np.flatnonzero(by[:ops] >= 0)
    assert (end[by[known]] <= start[known]).all()
    first = [row for row in range(ops) if by[row] < 0]
    assert (timeline.ops["start"][first] == 0).all()
    assert (by[ops:] >= 0).all()  # every message is sent by something


def test_a_queue_is_told_as_without_causes(graph):
    known, traced = reasons_of(graph.timeline).released_by, traced_reasons(graph).released_by
    queued = known[len(graph.timeline.ops["rank"]) :] >= 0
    assert (known[-len(queued) :][queued] == traced[-len(queued) :][queued]).all()


def test_the_path_is_drawn_though_replicas_are_alike(graph):
    reasons = traced_reasons(graph)
    ops = len(graph.timeline.ops["rank"])
    rows = {piece.activity for piece in critical_path(graph) if 0 <= piece.activity < ops}
    assert rows == {row for row in reasons.path.tolist() if row < ops}
    drawn = tables_of(graph.timeline, reasons)
    on_path = drawn.bars["path"] == 1
    ranks = np.array([lane["rank"] for lane in drawn.lanes])[drawn.bars["lane"][on_path]]
    found = {(rank, start) for rank, start in zip(ranks.tolist(), drawn.bars["start"][on_path].tolist(), strict=True)}
    for row in rows:
        assert (int(graph.timeline.ops["rank"][row]), int(graph.timeline.ops["start"][row])) in found


def test_explain_writes_a_page(run, scenarios, tmp_path):
    code, _, err = run("explain", scenarios / "prototype_4gpu.yaml", *SMALL, "--out", tmp_path / "e")
    assert (code, err) == (0, [f"wrote {tmp_path / 'e' / 'report.html'}"])
    assert 'class="verdict"' in (tmp_path / "e" / "report.html").read_text()


@pytest.mark.slow
def test_compare_writes_a_page(run, scenarios, tmp_path):
    sides = [scenarios / "contention_slower.yaml", scenarios / "contention_faster.yaml"]
    assert run("compare", *sides, *SMALL, "--out", tmp_path / "c")[0] == 0
    page = (tmp_path / "c" / "comparison.html").read_text()
    assert "<title>contention_slower against contention_faster</title>" in page


@pytest.mark.slow
def test_a_comparison_with_a_folder_has_no_timeline(run, scenarios, tmp_path):
    file = scenarios / "prototype_4gpu.yaml"
    run(file, "--quiet", "--out", tmp_path / "a")
    assert run("compare", tmp_path / "a", file, "--out", tmp_path / "c")[0] == 0
    assert 'id="chart"' not in (tmp_path / "c" / "comparison.html").read_text()
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {"comparison.html", "comparison.png", "comparison.svg"}


@pytest.mark.parametrize(
    ("paths", "shown"), [(7, "7"), (10**9 - 1, "999,999,999"), (4 * 10**9, "4e+9"), (2**5000, "1e+1505")]
)
def test_counts_of_paths_are_shown_beyond_all_floats(paths, shown):
    assert rounded_count(paths) == shown
