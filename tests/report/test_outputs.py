"""Files: written whole or not at all, the same bytes each time, and a trace that Perfetto takes without loss."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import handmade
from support.paths import SCENARIOS
from support.plans import plan_of
from support.results import RESULTS, pipeline_messages, result_of, shared_link, simulated
from support.scenarios import shared_nics

from hybrid_des.analysis.table import COLUMNS, EXACT, ops_of
from hybrid_des.errors import UsageError
from hybrid_des.report import files as outputs
from hybrid_des.report.files.trace import trace_json
from hybrid_des.report.files.workshop import reserved
from hybrid_des.report.shares import CAUSES as CAUSE_NAMES
from hybrid_des.result import Result, simulate
from hybrid_des.scenario import load


@pytest.fixture(params=RESULTS)
def result(request):
    return RESULTS[request.param]()


def events_of(result, folder):
    trace_json(result, folder)
    with gzip.open(folder / "trace.json.gz") as file:
        return json.load(file, parse_float=lambda text: round(Fraction(text) * 1000))["traceEvents"]  # whole ns


def expected_files():
    return {"summary.json", "timeline.csv", "timeline.parquet", "trace.json.gz", "gantt.png", "gantt.svg"}


# -- files -------------------------------------------------------------------------------------------------------------


def test_all_files_are_there_and_nothing_else(tmp_path):
    written = result_of().write(tmp_path / "deep" / "out")
    names = {path.name for path in (tmp_path / "deep" / "out").iterdir()}
    assert names == {path.name for path in written.paths} >= expected_files()


def test_the_same_run_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        result_of().write(tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_files_that_are_there_are_replaced(tmp_path):
    (tmp_path / "summary.json").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    result_of().write(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["name"] == "handmade"
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_without_recorded_rows_no_file_pretends_to_have_them(tmp_path):
    result_of(record="none").write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"summary.json", "order.csv"}
    assert (tmp_path / "summary.json").exists()


def test_a_second_run_removes_files_that_it_does_not_write(tmp_path):
    result_of().write(tmp_path)
    (tmp_path / "notes.csv").write_text("mine")
    (tmp_path / "gantt.pdf").write_text("mine")
    written = result_of(record="none").write(tmp_path)
    assert {path.name for path in written.paths} == {"order.csv", "summary.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"order.csv", "summary.json", "notes.csv", "gantt.pdf"}


def test_a_folder_of_a_files_name_is_not_removed(tmp_path):
    (tmp_path / "gantt.png").mkdir()
    result_of(record="none").write(tmp_path)
    assert (tmp_path / "gantt.png").is_dir()


def test_every_format_registers_all_its_files(tmp_path):
    written = result_of().write(tmp_path)
    registered = {file for name in outputs.names() for file in outputs.find(name).facts["files"]}
    assert {path.name for path in written.paths} == registered


@pytest.mark.parametrize("moment", ["while files are made", "while they are moved"])
def test_an_interrupted_second_run_leaves_the_first_ones_files(tmp_path, monkeypatch, scratch, moment):
    result_of().write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_):
        raise KeyboardInterrupt

    if moment == "while files are made":
        outputs.output("written last", rows=False)(fail)
    else:
        replace = Path.replace
        monkeypatch.setattr(Path, "replace", lambda self, to: fail() if self.name == "order.csv" else replace(self, to))
    with pytest.raises(KeyboardInterrupt):
        result_of(record="none").write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError("disk full")])
def test_an_interruption_leaves_nothing_behind(tmp_path, scratch, error):
    @outputs.output("written last")
    def fail(*_):
        raise error

    assert outputs.names()[-1] == "written last"
    with pytest.raises(UsageError if isinstance(error, OSError) else error):
        result_of().write(tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_runs_side_by_side_keep_each_others_folders(tmp_path):
    """Each creates the parents, and removes those that it created when it fails."""

    def one(number):
        name = f"{number % 3}"
        try:
            with reserved(tmp_path / "p" / "q" / name) as workshop:
                (workshop / "a").touch()
                if number % 2:
                    raise KeyboardInterrupt
                (workshop / "a").replace(tmp_path / "p" / "q" / name / f"{number}")
        except KeyboardInterrupt:
            return None
        return f"{name}/{number}"

    with ThreadPoolExecutor(8) as pool:
        made = set(filter(None, pool.map(one, range(400))))
    files = {f"{path.parent.name}/{path.name}" for path in (tmp_path / "p" / "q").rglob("*") if path.is_file()}
    assert files == made
    assert len(made) == 200


def test_workshops_of_killed_runs_are_removed(tmp_path):
    (tmp_path / ".part-old").mkdir()
    (tmp_path / ".part-old" / "gantt.png").touch()
    with reserved(tmp_path) as living:
        assert [path.name for path in tmp_path.iterdir()] == [living.name]
        result_of(record="none").write(tmp_path)
        assert (living / "lock").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"order.csv", "summary.json"}


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/below"):
        with pytest.raises(UsageError, match="cannot be written") as caught:
            result_of().write(tmp_path / place)
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_of_a_files_name_keeps_all_files_out(tmp_path):
    (tmp_path / "timeline.csv").mkdir()
    with pytest.raises(UsageError, match=r"timeline.csv is a directory"):
        result_of().write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.csv"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_stays_as_it_was(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        result_of().write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_parquet_holds_what_the_csv_holds(tmp_path):
    pytest.importorskip("pyarrow")
    result = result_of()
    result.write(tmp_path)
    exact = pd.read_parquet(tmp_path / "timeline.parquet")
    pd.testing.assert_frame_equal(exact[[*COLUMNS]], result.timeline)
    assert tuple(exact.columns) == (*COLUMNS, *EXACT)
    text = pd.read_csv(tmp_path / "timeline.csv")
    assert text["end_s"].tolist() == result.timeline["end_s"].tolist()


def test_parquet_keeps_every_picosecond_of_a_long_run(tmp_path):
    pytest.importorskip("pyarrow")
    result = Result(
        handmade.run(plan_of("1f1b", 2, 4), handmade.uniform(997 * 10**12 + 1, 1993 * 10**12 + 2), delay=12345)
    )
    result.write(tmp_path)
    exact = ops_of(pd.read_parquet(tmp_path / "timeline.parquet"))
    rows = result.run.timeline.op_rows()
    order = np.lexsort((rows["rank"], rows["start"]))
    assert rows["end"].max() > 4500 * 10**12
    for name in ("asked", "start", "end"):
        assert exact[name].tolist() == rows[name][order].tolist()
    rounded = ops_of(result.timeline)
    assert rounded["end"].tolist() != exact["end"].tolist()


# -- the rules of trace events -----------------------------------------------------------------------------------------


BESIDE = {"wait", "reduction", "gather"}  # categories of slices beside the timeline's rows


def test_every_timeline_row_is_a_slice_of_its_length(result, tmp_path):
    lengths = defaultdict(list)
    begun = {}
    for event in events_of(result, tmp_path):
        if event.get("cat") in BESIDE:
            continue
        if event["ph"] == "X":
            lengths[event["cat"]].append(event["dur"])
        elif event["ph"] == "b":
            begun[event["id"]] = event["ts"]
        elif event["ph"] == "e":
            lengths[event["cat"]].append(event["ts"] - begun.pop(event["id"]))
    assert not begun
    rows = result.timeline
    assert {kind: len(found) for kind, found in lengths.items()} == rows["kind"].value_counts().to_dict()
    for kind, mine in rows.groupby("kind"):
        exact = sorted((mine["end_s"] - mine["start_s"]) * 1e9)
        assert sorted(lengths[kind]) == pytest.approx(exact, abs=1.001), kind


def test_no_track_or_process_is_number_zero(result, tmp_path):
    events = events_of(result, tmp_path)
    assert min(event["pid"] for event in events) > 0
    assert min(event["tid"] for event in events if "tid" in event) > 0
    assert all("tid" in event for event in events if event["ph"] in "Xbesf")
    homes = defaultdict(set)
    for event in events:
        homes[event.get("tid")].add(event["pid"])
    assert all(len(pids) == 1 for tid, pids in homes.items() if tid is not None)


@pytest.mark.parametrize("name", [*RESULTS, "sharded"])
def test_slices_on_a_track_follow_each_other(name, tmp_path):
    result = sharded() if name == "sharded" else RESULTS[name]()
    tracks = defaultdict(list)
    for event in events_of(result, tmp_path):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        assert slices == sorted(slices)
        assert all(end <= start for (_, end), (start, _) in pairwise(slices))


def sharded():
    """A run that waits for parameters and gradients inside its step."""
    scenario = load(SCENARIOS / "llama3.1-8b_8.yaml", ["sharding=zero-3"])
    return simulate(scenario)


@pytest.mark.parametrize("name", [*RESULTS, "sharded"])
def test_waits_on_gpu_tracks_sum_to_the_summarys_idle_time(name, tmp_path):
    result = sharded() if name == "sharded" else RESULTS[name]()
    waited = Counter()
    for event in events_of(result, tmp_path):
        if event.get("cat") == "wait":
            waited[event["name"]] += event["dur"]
    facts = result.summary
    steps = facts["ranks_simulated"] * result.run.scenario.steps
    for cause, seconds in facts["idle_s"].items():
        count = len(result.run.timeline.ops["rank"]) + len(result.run.timeline.waits["rank"]) + 8 * steps
        assert waited[CAUSE_NAMES.get(cause, cause.replace("_", " "))] == pytest.approx(
            seconds * steps * 1e9, abs=count
        )


def test_reductions_of_buckets_are_on_their_gpus_track(tmp_path):
    result = simulated()
    found = Counter(
        (event["pid"] - 1, event["name"], event["ts"], event["dur"])
        for event in events_of(result, tmp_path)
        if event.get("cat") == "reduction"
    )
    rows = result.run.timeline.reductions
    names = [
        f"reduction stage {stage} bucket {bucket}" for stage, bucket in zip(rows["stage"], rows["bucket"], strict=True)
    ]
    start, end = ((rows[name] + 500) // 1000 for name in ("start", "end"))
    assert found == Counter(zip(rows["rank"].tolist(), names, start.tolist(), (end - start).tolist(), strict=True))


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_messages_of_a_ring_are_named_by_bucket_and_phase(sharing, tmp_path):
    gradients = {"algorithm": "ring", "bucket": "1 MB", "overlap": True}
    result = simulate(shared_nics(d=4, cluster={"sharing": sharing, "nodes": 4}, gradients=gradients))
    buckets = result.run.timeline.reductions["bucket"].max() + 1
    assert buckets > 1
    found = Counter(
        (event["name"], event["args"]["from"])
        for event in events_of(result, tmp_path)
        if event.get("cat") == "ring" and event["ph"] in "Xb" and event["args"]["hop"] == 0
    )
    layout = result.run.scenario.parallel.layout
    assert found == Counter({
        (f"ring stage {layout.coordinate(rank, 'pipeline')} bucket {bucket} {phase}", rank): 3
        for rank in range(16) for bucket in range(buckets) for phase in ("reduce-scatter", "all-gather")
    })  # fmt: skip


def test_processes_are_gpus_in_order_then_links(tmp_path):
    result = result_of(pipeline=6, data=2)
    events = [event for event in events_of(result, tmp_path) if event["ph"] == "M"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    place = {
        event["pid"]: event["args"]["sort_index"] // 1 for event in events if event["name"] == "process_sort_index"
    }
    ordered = [names[pid] for pid in sorted(names, key=place.__getitem__)]
    assert len(set(place.values())) == len(names) == 24
    assert [name.split(":")[0] for name in ordered[:3]] == ["GPU 00", "GPU 02", "GPU 04"]
    assert [name.startswith("GPU") for name in ordered] == [True] * 12 + [False] * 12
    assert ordered[12:] == [f"links of gpu{rank}" for rank in range(12)]


def test_messages_that_overlap_on_a_link_are_async_slices(tmp_path):
    phases = Counter(event["ph"] for event in events_of(shared_link(), tmp_path) if event["pid"] > 6)
    assert (phases["b"], phases["e"]) == (4, 4)
    ids = [event["id"] for event in events_of(shared_link(), tmp_path) if event["ph"] == "b"]
    assert len(set(ids)) == 4


def test_every_pipeline_message_is_an_arrow_between_its_two_ops(result, tmp_path):
    events = events_of(result, tmp_path)
    ends = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
            assert (event.get("bp") == "e") == (event["ph"] == "f")
            assert any(
                x["ph"] == "X" and (x["pid"], x["tid"]) == (event["pid"], event["tid"])
                and x["ts"] <= event["ts"] <= x["ts"] + x["dur"]
                for x in events
            ), event  # fmt: skip
    assert len(ends) == pipeline_messages(result)
    for pair in ends.values():
        assert sorted(event["ph"] for event in pair) == ["f", "s"]
        start, finish = sorted(pair, key=lambda event: event["ph"] == "f")
        assert start["ts"] <= finish["ts"]
        assert start["pid"] != finish["pid"]


def test_counters_say_their_unit_and_agree_with_the_peaks(tmp_path):
    result = result_of()
    counters = defaultdict(list)
    for event in events_of(result, tmp_path):
        if event["ph"] == "C":
            (unit,) = event["args"]
            counters[event["pid"], event["name"], unit].append(event)
    peaks = result.summary["peak_activations"]
    layout = result.run.scenario.parallel.layout
    for rank, place in ((rank, layout.coordinate(rank, "pipeline")) for rank in range(6)):
        found = [
            event["args"]["micro-batches"] for event in counters[rank + 1, "activations in flight", "micro-batches"]
        ]
        assert max(found) == peaks[place]
        assert found[-1] == 0
    assert {unit for _, _, unit in counters} == {"micro-batches", "GB", "GB/s"}
