"""Comparisons: parts that sum to the difference, ops matched by what they do, a page that begins with three lines."""

import re
from functools import cache
from html import unescape

import pytest
from support.paths import SCENARIOS
from system.test_page import BROWSER, look

from hybrid_des import compare, render_comparison, simulate
from hybrid_des.report.page.compared_page import comparison_page, three_lines

A100, SMALL = SCENARIOS / "a100_8x.yaml", {"model": "gpt2", "cluster": {"gpu": "h100"}, "batch": 32}
PIPED = {**SMALL, "parallel": {"pipeline": 4, "data": 2}, "schedule": {"kind": "1f1b"}}
OTHERS = {
    "schedule": {"schedule.kind": "zb-h1"},
    "layout": {"parallel.pipeline": 2, "parallel.data": 4},
    "micro-batches": {"batch": 64},
    "chunks": {"schedule.kind": "interleaved-1f1b", "schedule.chunks": 3},
    "links": {"cluster.nvlink.bandwidth": "20 GB/s", "gradients.overlap": True},
}


QUICK = ("schedule", "layout")


@cache
def compared(other):
    """A comparison of two runs, for all tests that read it."""
    return compare(PIPED, overrides=OTHERS[other])


@pytest.fixture(params=[one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in OTHERS])
def both(request):
    return compared(request.param)


def test_times_sum_to_the_difference_of_the_steps(both):
    rows = both.times()
    for key, whole in (("a_s", both.a), ("b_s", both.b)):
        assert sum(row[key] for row in rows) == pytest.approx(whole.summary["step_time_s"], rel=1e-12)
    assert sum(row["change_s"] for row in rows) == pytest.approx(both.change, abs=1e-12)


def test_bars_of_the_page_sum_to_the_difference(both):
    page = comparison_page(both)
    bars = re.search(r'<div class="changes">(.*?)</div></div>|<div class="changes">(.*)</span></div>', page)
    spans = [float(width) for width in re.findall(r"width:([\d.]+)%", bars[0])]
    signs = [-1 if hatched else 1 for hatched in re.findall(r'<i( class="hatched")? style', bars[0])]
    sizes = [sign * span for sign, span in zip(signs, spans, strict=True)]
    assert sum(sizes[:-1]) == pytest.approx(sizes[-1], abs=0.01 * len(sizes))


@pytest.mark.parametrize(
    "name", ["layout", *(pytest.param(one, marks=pytest.mark.slow) for one in ("micro-batches", "chunks"))]
)
def test_ops_of_another_layout_are_compared_by_class(name):
    both = compared(name)
    text, found = render_comparison(both, 200), both.to_mapping()
    assert "Others" not in text and "Order" not in text
    assert len(re.findall("^Ops .*compared by what they do", text, re.MULTILINE)) == 1
    assert found["ops"] == found["links"] == found["ranks"] == []
    assert {"forward", "backward"} <= {row["class"] for row in found["classes"]}


def test_weight_gradients_belong_to_a_whole_backward():
    both = compared("schedule")
    assert both.same_ops
    assert both.to_mapping()["unmatched"]["ops_only_in_b"] == 0
    kinds = {kind for row in both.to_mapping()["ops"] for kind in row["kind"]}
    assert kinds <= {"F", "B"}
    for row in both.to_mapping()["ops"]:  # no backward is said to be shorter because a part of it has another name
        assert abs(row["change_s"]) < 0.01 * both.a.summary["step_time_s"]


def test_a_page_begins_with_three_lines_and_one_title(both):
    page = comparison_page(both)
    labels = [unescape(label) for label in re.findall("<dt>(.*?)</dt>", page)]
    assert labels == ["What changed", "By how much", "Why"]
    body = page.split("<body>")[1]
    assert body.count("<h1>") == 1
    assert body.index("Why") < body.index('id="chart"') < body.index('<div class="changes">')


def test_lines_say_what_changed_and_why():
    lines = three_lines(compare(A100, overrides={"schedule.kind": "zb-h1"}))
    assert lines["What changed"] == "schedule.kind 1f1b → zb-h1"
    assert lines["By how much"] == "1.435 s → 1.194 s: the step is 240.9 ms (16.8 %) shorter"
    assert lines["Why"] == "Per GPU: pipeline bubble -240.2 ms, pipeline messages -506.7 µs."


@pytest.mark.usefixtures("unpainted")
def test_a_folder_has_a_page_without_timelines(tmp_path):
    simulate(A100).write(tmp_path / "a")
    both = compare(tmp_path / "a", A100)
    page = comparison_page(both)
    assert 'id="chart"' not in page
    assert "both steps take 1.435 s" in page
    assert both.times() == [] or sum(row["change_s"] for row in both.times()) == 0


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_gpus_come_first_and_links_on_request(tmp_path):
    both = compare(A100, overrides={"schedule.kind": "zb-h1"})
    probe = """
      const groups = () => [...new Set(lanes.filter((lane) => !lane.head).map((lane) => lane.group ?? "memory"))];
      const first = groups(), joins = Number(document.body.dataset.joins), heads = lanes.filter((lane) => lane.head);
      $("links").click();
      report({ first, joins, heads: heads.map((lane) => lane.head), then: groups().length, total,
               ends: runs.map((run) => run.duration) });
    """
    seen = look(comparison_page(both), tmp_path, probe)
    assert seen["first"] == ["rank"]
    assert seen["heads"] == [f"A: {both.a.name} (before)", f"B: {both.b.name} (after)"]
    assert seen["then"] > 1
    assert seen["joins"] > 0  # the critical path is drawn to its end, though messages on it have no lane here
    assert seen["total"] == max(seen["ends"])


def test_nothing_is_compared_with_itself(refused):
    assert "A and B are both" in refused("compare", A100, A100)
