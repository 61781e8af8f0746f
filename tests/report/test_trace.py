"""The trace: what Perfetto takes without loss, and what of a run it shows."""

import gzip
import json
import tempfile
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from support.paths import SCENARIOS
from support.results import RESULTS, pipeline_messages, result_of, simulated
from support.scenarios import shared_nics

from hybrid_des.analysis.idle import DEPENDENCY, END_OF_STEP, PHASES
from hybrid_des.report.files.trace import trace_json
from hybrid_des.report.palette import cause_name
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load

EXPERTS = {
    "cluster": {"gpu": "h100", "gpus_per_node": 8}, "parallel": {"tensor": 2, "data": 4, "expert": 2}, "batch": 4,
    "model": {"base": "mixtral-8x7b", "layers": 2}, "sharding": "zero-1",
}  # fmt: skip


def events_of(result):
    with tempfile.TemporaryDirectory() as folder:
        trace_json(result, Path(folder))
        with gzip.open(Path(folder) / "trace.json.gz") as file:
            return json.load(file, parse_float=lambda text: round(Fraction(text) * 1000))["traceEvents"]  # whole ns


def sharded():
    """A run that waits for parameters and gradients inside its step."""
    return simulate(load(SCENARIOS / "llama3.1-8b_8.yaml", ["sharding=zero-3"]))


@cache
def traced(name):
    """One of the results and its events, which no test changes."""
    result = sharded() if name == "sharded" else RESULTS[name]()
    return result, events_of(result)


@pytest.fixture(params=RESULTS)
def run_and_events(request):
    return traced(request.param)


@pytest.fixture(params=[*RESULTS, "sharded"])
def any_run_and_events(request):
    return traced(request.param)


BESIDE = {"wait", "reduction", "gather", "exchange"}  # categories of slices beside the timeline's rows


def test_every_timeline_row_is_a_slice_of_its_length(run_and_events):
    result, events = run_and_events
    lengths = defaultdict(list)
    begun = {}
    for event in events:
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


def test_no_track_or_process_is_number_zero(run_and_events):
    _, events = run_and_events
    assert min(event["pid"] for event in events) > 0
    assert min(event["tid"] for event in events if "tid" in event) > 0
    assert all("tid" in event for event in events if event["ph"] in "Xbesf")
    homes = defaultdict(set)
    for event in events:
        homes[event.get("tid")].add(event["pid"])
    assert all(len(pids) == 1 for tid, pids in homes.items() if tid is not None)


def test_slices_on_a_track_follow_each_other(any_run_and_events):
    _, events = any_run_and_events
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert tracks
    for slices in tracks.values():
        assert slices == sorted(slices)
        assert all(end <= start for (_, end), (start, _) in pairwise(slices))


def test_waits_on_gpu_tracks_sum_to_the_summarys_idle_time(any_run_and_events):
    result, events = any_run_and_events
    waited = Counter()
    for event in events:
        if event.get("cat") == "wait":
            waited[event["name"]] += event["dur"]
    facts = result.summary
    steps = facts["ranks_simulated"] * result.run.scenario.steps
    idle = {(cause,): seconds for cause, seconds in facts["idle_s"].items() if cause not in (DEPENDENCY, END_OF_STEP)}
    idle[*PHASES, END_OF_STEP] = facts["idle_s"][DEPENDENCY] + facts["idle_s"][END_OF_STEP]  # shown by phase
    for parts, seconds in idle.items():
        count = len(result.run.timeline.ops["rank"]) + len(result.run.timeline.waits["rank"]) + 8 * steps
        assert sum(waited[cause_name(part)] for part in parts) == pytest.approx(seconds * steps * 1e9, abs=count)


def test_reductions_of_buckets_are_on_their_gpus_track():
    result = simulated()
    found = Counter(
        (event["pid"] - 1, event["name"], event["ts"], event["dur"])
        for event in events_of(result)
        if event.get("cat") == "reduction"
    )
    rows = result.run.timeline.reductions
    names = [
        f"reduction stage {stage} bucket {bucket}" for stage, bucket in zip(rows["stage"], rows["bucket"], strict=True)
    ]
    start, end = ((rows[name] + 500) // 1000 for name in ("start", "end"))
    assert found == Counter(zip(rows["rank"].tolist(), names, start.tolist(), (end - start).tolist(), strict=True))


@pytest.mark.parametrize("traffic", ["replay", "messages"])
def test_collectives_inside_ops_are_on_their_gpus_track(traffic):
    result = simulate({**EXPERTS, "tensor_traffic": traffic})
    events = [event for event in events_of(result) if event["ph"] == "X"]
    took = defaultdict(int)
    for event in events:
        took[event["name"].split()[0]] += event["dur"] * (event["cat"] == "exchange")
    shares, steps = result.summary["step_shares"], result.run.scenario.steps
    of_all = result.summary["step_time_s"] * steps * result.summary["ranks_simulated"] * 1e9
    for axis in ("tensor", "expert"):
        assert 0 < took[axis] == pytest.approx(shares[axis] * of_all, rel=1e-4)
    ops = {(event["pid"], event["ts"] + event["dur"]): event["ts"] for event in events if event["cat"] in "FB"}
    for event in (event for event in events if event["cat"] == "exchange" and event["name"] == "expert collectives"):
        assert event["ts"] >= ops[event["pid"], event["ts"] + event["dur"]]  # at the end of an op


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_messages_of_a_ring_are_named_by_bucket_and_phase(sharing):
    gradients = {"algorithm": "ring", "bucket": "1 MB", "overlap": True}
    result = simulate(shared_nics(d=4, cluster={"sharing": sharing, "nodes": 4}, gradients=gradients))
    buckets = result.run.timeline.reductions["bucket"].max() + 1
    assert buckets > 1
    found = Counter(
        (event["name"], event["args"]["from"])
        for event in events_of(result)
        if event.get("cat") == "ring" and event["ph"] in "Xb" and event["args"]["hop"] == 0
    )
    layout = result.run.scenario.parallel.layout
    assert found == Counter({
        (f"ring stage {layout.coordinate(rank, 'pipeline')} bucket {bucket} {phase}", rank): 3
        for rank in range(16) for bucket in range(buckets) for phase in ("reduce-scatter", "all-gather")
    })  # fmt: skip


def test_processes_are_gpus_in_order_then_links():
    result = result_of(pipeline=6, data=2)
    events = [event for event in events_of(result) if event["ph"] == "M"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    place = {
        event["pid"]: event["args"]["sort_index"] // 1 for event in events if event["name"] == "process_sort_index"
    }
    ordered = [names[pid] for pid in sorted(names, key=place.__getitem__)]
    assert len(set(place.values())) == len(names) == 24
    assert [name.split(":")[0] for name in ordered[:3]] == ["GPU 00", "GPU 02", "GPU 04"]
    assert [name.startswith("GPU") for name in ordered] == [True] * 12 + [False] * 12
    assert ordered[12:] == [f"links of gpu{rank}" for rank in range(12)]


def test_messages_that_overlap_on_a_link_are_async_slices():
    _, events = traced("a shared link")
    phases = Counter(event["ph"] for event in events if event["pid"] > 6)
    assert (phases["b"], phases["e"]) == (4, 4)
    ids = [event["id"] for event in events if event["ph"] == "b"]
    assert len(set(ids)) == 4


def test_every_pipeline_message_is_an_arrow_between_its_two_ops(run_and_events):
    result, events = run_and_events
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


def test_counters_say_their_unit_and_agree_with_the_peaks():
    result = result_of()
    counters = defaultdict(list)
    for event in events_of(result):
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
