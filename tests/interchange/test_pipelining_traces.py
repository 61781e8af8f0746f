"""Profiler traces in which PyTorch's pipelining schedules name their ops."""

import gzip
import json

import pytest
from support.paths import GOLDEN

from hybrid_des import load, replay, simulate
from hybrid_des.interchange.profiles.kineto_pipelining import names_ops
from hybrid_des.measured.imports.importing import import_profile

RECORDED = GOLDEN / "recordings"
STEPS_S = {"gpipe_gloo": 0.4392, "zbv_gloo": 0.8088}  # by time.perf_counter() around each, with a barrier


def event(category, name, start, took, thread=1, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": took, "args": args}


def written(folder, rank, events):
    about = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}))
    return path


def gpu_rank(folder, rank, ops):
    """Named ranges of 50 µs on the host, each of which launches one kernel: (name, start, µs)."""
    events = [event("user_annotation", "ProfilerStep#1", 0, 90_000)]
    for turn, (name, start, took) in enumerate(ops):
        events += [
            event("user_annotation", name, 100 * turn + 10, 50),
            event("cuda_runtime", "cudaLaunchKernel", 100 * turn + 20, 5, correlation=turn),
            event("kernel", "gemm", start, took, 7, stream=7, device=0, correlation=turn),
        ]
    return written(folder, rank, events)


@pytest.mark.parametrize(("folder", "schedule", "chunks"), [("gpipe_gloo", "gpipe", 1), ("zbv_gloo", "zb-v", 2)])
def test_a_recorded_pipeline_over_gloo_is_met(folder, schedule, chunks, tmp_path):
    found = import_profile(RECORDED / folder)
    figures = found.figures
    assert figures["schedule"] == schedule
    assert (figures["pipeline"], figures["chunks"], figures["microbatches"]) == (2, chunks, 4)
    assert figures["simulated_step_time_s"] == pytest.approx(STEPS_S[folder], rel=0.05)
    assert any("holds the wait for its message" in said for said in figures["unknown"])
    found.write(tmp_path)
    again = simulate(load(tmp_path / "scenario.yaml")).summary["step_time_s"]
    assert again == pytest.approx(STEPS_S[folder], rel=0.05)


@pytest.mark.parametrize(("folder", "schedule"), [("gpipe_gloo", "gpipe"), ("zbv_gloo", "zb-v")])
def test_replay_reads_the_names_of_ops(folder, schedule):
    replayed = replay(RECORDED / folder, pauses=True)
    assert (replayed.trace.schedule, replayed.trace.sizes.microbatch) == (schedule, 4)
    assert replayed.steps.error_percent.abs().max() < 1  # with the pauses between ops, as by import
    assert replayed.steps.simulated_s.tolist() == import_profile(RECORDED / folder).simulated


def test_overheads_come_from_traces_that_name_ops():
    found = import_profile(RECORDED / "gpipe_gloo", overheads_from=[RECORDED / "zbv_gloo"]).figures
    assert found["overhead"]["forward"] is not None  # one chunk there, two here
    assert any("holds the wait for its message" in said for said in found["unknown"])


def test_a_packed_trace_is_searched_for_names(tmp_path):
    for packed, text in (("named", '{"name":"PP:0F0"}'), ("other", '{"name":"PP:0RECV_F0"}')):
        path = tmp_path / packed
        path.write_bytes(gzip.compress((" " * (2**20 - 10) + text).encode()))  # a name across two blocks
        assert names_ops(path) == (packed == "named")


def test_the_wait_for_a_message_is_no_part_of_ops():
    table = import_profile(RECORDED / "gpipe_gloo").files["durations.csv"]
    first = table[(table.kind == "F") & (table.microbatch == 0)].set_index("stage").seconds
    assert first.tolist() == pytest.approx([0.030, 0.030], rel=0.05)  # the second one's range lasts 62 ms


def test_the_first_stage_has_its_backward_in_w():
    found = import_profile(RECORDED / "zbv_gloo")
    table = found.files["durations.csv"]
    inputs = table[(table.stage == 0) & (table.chunk == 0) & (table.kind == "I")]
    assert len(inputs) and (inputs.seconds == 0).all()
    assert any("its whole backward in W" in said for said in found.figures["unknown"])


def test_names_of_ops_are_read_from_gpu_traces(tmp_path):
    first = [("PP:0F0", 1_000, 1_000), ("PP:0F1", 2_000, 1_000), ("PP:0B0", 5_000, 2_000), ("PP:0B1", 8_000, 2_000)]
    last = [("PP:1F0", 2_000, 1_000), ("PP:1B0", 3_000, 2_000), ("PP:1F1", 5_000, 1_000), ("PP:1B1", 6_000, 2_000)]
    found = import_profile([gpu_rank(tmp_path, 0, first), gpu_rank(tmp_path, 1, last)])
    assert found.figures["schedule"] == "1f1b"
    assert found.figures["measured_step_time_s"] == pytest.approx(0.009)
    assert found.figures["simulated_step_time_s"] == pytest.approx(0.009)
    assert sorted(found.files["durations.csv"].seconds) == pytest.approx([0.001] * 4 + [0.002] * 4)


def host_rank(folder, rank, ranges, receives):
    """Ranges that end with one operator of 5 µs, and receives that begin in a range of their own: (name, start, µs)."""
    events = [event("user_annotation", "ProfilerStep#1", 0, 90_000)]
    for name, start, took in ranges:
        events += [
            event("user_annotation", name, start, took),
            event("cpu_op", "aten::mm", start + took - 5, 5),
        ]
    for name, start, took in receives:
        events += [
            event("user_annotation", name, start, 20), event("cpu_op", "c10d::recv_", start + 5, 5),
            event("user_annotation", "gloo:recv", start + 8, took - 8, 2),
        ]  # fmt: skip
    return written(folder, rank, events)


def test_on_the_host_an_op_begins_when_its_message_arrives(tmp_path):
    """Python may work before the first operator; messages of other ops arrive meanwhile."""
    first = host_rank(
        tmp_path, 0, [("PP:0F0", 1_000, 1_000), ("PP:0F1", 2_000, 1_000), ("PP:0B0", 3_000, 4_000),
                      ("PP:0B1", 7_000, 4_000)],
        [("PP:0RECV_B0", 2_950, 2_050), ("PP:0RECV_B1", 2_970, 5_030)],
    )  # fmt: skip
    last = host_rank(
        tmp_path, 1, [("PP:1F0", 1_000, 2_000), ("PP:1B0", 3_000, 2_000), ("PP:1F1", 5_000, 1_000),
                      ("PP:1B1", 6_000, 2_000)],
        [("PP:1RECV_F0", 900, 1_100), ("PP:1RECV_F1", 2_100, 1_900)],
    )  # fmt: skip
    found = import_profile([first, last])
    ops = found.files["durations.csv"].set_index(["stage", "kind", "microbatch"]).seconds
    known = {(0, "F", 0): 1, (0, "F", 1): 1, (0, "B", 0): 2, (0, "B", 1): 3, (1, "F", 0): 1, (1, "B", 0): 2,
             (1, "F", 1): 1, (1, "B", 1): 2}  # fmt: skip
    assert ops.to_dict() == pytest.approx({op: milliseconds / 1000 for op, milliseconds in known.items()})
    assert any("inferred from the arrival of the message" in said for said in found.figures["unknown"])


def test_without_all_stages_kernels_stay_a_trace(tmp_path):
    path = gpu_rank(tmp_path, 0, [("PP:0F0", 1_000, 1_000), ("PP:0B0", 5_000, 2_000)])
    assert import_profile(path).figures["schedule"] is None
