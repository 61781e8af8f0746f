"""Runs whose messages are too many for memory: their files are those of runs that keep all rows."""

import importlib.util

import pandas as pd
import pytest
from support.campaigns import thinned
from support.scenarios import scenario

from hybrid_des.analysis import table
from hybrid_des.engine import clock, long_rows
from hybrid_des.errors import installing
from hybrid_des.report.bars import bars_of
from hybrid_des.report.files import run_files
from hybrid_des.report.files.run_files import timeline_csv, timeline_parquet
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load
from hybrid_des.simulation import timeline

HOSTS = {"nodes": 5, "gpus_per_node": 4}
SENT = {"activation": "1 MB", "parameters": 100_000_000}


@pytest.fixture
def long(monkeypatch):
    """Treat what is simulated from here on as long."""

    def long():
        for place, name, size in (
            (clock, "BEAT", 64), (long_rows, "KEPT", 300), (long_rows, "BLOCK", 100), (long_rows, "EVERY", 4),
            (timeline, "MOST_WHOLE", 10),
        ):  # fmt: skip
            monkeypatch.setattr(place, name, size)

    return long


def both(setting, long):
    """A run that keeps all rows in memory, and the same as a long run."""
    kept = simulate(setting)
    long()
    streamed = simulate(setting)
    assert streamed.run.timeline.stream is not None
    assert streamed.run.timeline.messages is None
    return kept, streamed


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("algorithm", thinned(["ring", "parameter-server"], slow=["ring"]))
def test_the_file_of_a_long_run_is_the_usual_one(long, tmp_path, sharing, algorithm):
    pytest.importorskip("pyarrow")
    gradients = {"algorithm": algorithm, "overlap": True, "bucket": "50 MB"}
    if algorithm == "parameter-server":
        gradients |= {"servers": 2, "servers_on": "hosts"}
    cluster = {**HOSTS, "sharing": sharing}
    kept, streamed = both(scenario("1f1b", 2, 8, 8, cluster=cluster, workload=SENT, gradients=gradients), long)
    for name, result in (("kept", kept), ("streamed", streamed)):
        (tmp_path / name).mkdir()
        timeline_parquet(result, tmp_path / name)
    files = [pd.read_parquet(tmp_path / name / "timeline.parquet") for name in ("kept", "streamed")]
    pd.testing.assert_frame_equal(*files)
    pd.testing.assert_frame_equal(files[0], table.table(kept.run.timeline, exact=True))
    pd.testing.assert_frame_equal(kept.timeline, streamed.timeline)


@pytest.mark.parametrize("record", ["all", "compute"])
def test_files_are_made_piece_by_piece(tmp_path, monkeypatch, record):
    parquet = pytest.importorskip("pyarrow.parquet")
    gradients = {"algorithm": "parameter-server", "servers": 2, "servers_on": "hosts"}
    whole = simulate(scenario("1f1b", 2, 8, 8, cluster=HOSTS, workload=SENT, gradients=gradients, record=record))
    monkeypatch.setattr(table, "PIECE", 100)
    monkeypatch.setattr(run_files, "ROW_GROUP", 150)
    timeline_parquet(whole, tmp_path)
    timeline_csv(whole, tmp_path)
    file = parquet.ParquetFile(tmp_path / "timeline.parquet")
    assert file.num_row_groups == -(-len(whole.timeline) // 200) > 1
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "timeline.parquet"), table.table(whole.run.timeline, True))
    assert (tmp_path / "timeline.csv").read_text() == whole.timeline.to_csv(index=False, lineterminator="\n")


def test_the_other_files_are_made_without_all_rows(long, tmp_path):
    kept, streamed = both(scenario("1f1b", 2, 8, 8, workload=SENT, gradients={"overlap": True}), long)
    different = {"wall_s": 0, "events": 0}
    assert {**streamed.summary, **different} == {**kept.summary, **different}
    assert streamed.report().split("real time")[0] == kept.report().split("real time")[0]
    drawn = [bars_of(result.run.timeline) for result in (kept, streamed)]
    assert (drawn[0].lines == drawn[1].lines).all()
    assert (drawn[0].waits == drawn[1].waits).all()
    written = streamed.write(tmp_path)
    assert {path.name for path in written.paths} >= {"report.html", "trace.json.gz", "timeline.parquet", "summary.json"}
    count = len(streamed.run.timeline.stream)
    assert f"trace.json.gz and report.html leave out {count:,} rows of messages" in written.notes


def test_without_the_parquet_extra_long_runs_are_text(long, tmp_path, monkeypatch):
    kept, streamed = both(scenario("1f1b", 2, 8, 8, workload=SENT), long)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    notes, texts = [], []
    for result in (kept, streamed):
        notes.append(timeline_csv(result, tmp_path))
        texts.append((tmp_path / "timeline.csv").read_text())
    assert texts[0] == texts[1]
    assert notes[0] == []
    assert f"{installing('parquet')} writes a smaller timeline.parquet" in notes[1][0]


def test_a_long_folded_run_expands_like_any_other(long, scenarios):
    nodes = ["cluster.nodes=8", "parallel.data=8", "gradients.pad=true", "fold=2", "gradients.bucket=100 MB"]
    kept, streamed = both(load(scenarios / "h100_2x8.yaml", nodes), long)
    pd.testing.assert_frame_equal(kept.table(all_replicas=True), streamed.table(all_replicas=True))


def test_an_interrupt_of_a_long_run_leaves_nothing(long, run, scenarios, tmp_path, monkeypatch):
    long()

    def interrupted(findings, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("hybrid_des.result.write", interrupted)
    file = scenarios / "h100_2x8.yaml"
    assert run(file, "--out", tmp_path / "a" / "b", "--quiet")[0] == 130
    assert not list(tmp_path.iterdir())


def test_a_summary_alone_needs_no_rows_of_messages(run, scenarios, monkeypatch):
    seen = []

    def noted(scenario, **given):
        seen.append(scenario.record)
        return simulate(scenario, **given)

    monkeypatch.setattr("hybrid_des.result.simulate", noted)
    for option in ("--json", "--quiet"):
        assert run(scenarios / "h100_2x8.yaml", option)[0] == 0
    assert run(scenarios / "h100_2x8.yaml")[0] == 0
    assert seen == ["compute", "compute", "all"]
