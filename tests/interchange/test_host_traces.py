"""Profiler traces of nodes without accelerators: operators compute, gloo communicates."""

import json

import pytest
from support.paths import GOLDEN

from hybrid_des import load, simulate
from hybrid_des.errors import UsageError
from hybrid_des.measured.imports.importing import import_profile

RECORDED = GOLDEN / "recordings" / "ddp_gloo"
STEP_S = 0.1945  # of both processes, around the calls, by time.time()


def event(category, name, start, took, thread=1, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": took, "args": args}


def host_trace(folder, rank, late=0):
    """One step of 10 ms of work, an all-reduce of 4 kB that takes 2 ms after the last has come, and 1 ms of work."""
    first, met = 10_000 + late, 15_000
    shape = {"Input Dims": [[1000]], "Input type": ["float"]}
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 20_000),
        event("cpu_op", "aten::mm", 0, first), event("cpu_op", "aten::add", 10, 100),
        event("user_annotation", "gloo:all_reduce", first + 20, met + 2_000 - first - 20, 2, **shape),
        event("cpu_op", "aten::mul", met + 2_010, 1_000),
    ]  # fmt: skip
    about = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}))
    return path


def test_a_recorded_step_over_gloo_is_met(tmp_path):
    found = import_profile(RECORDED)
    figures = found.figures
    assert figures["measured_step_time_s"] == pytest.approx(STEP_S, rel=0.05)
    assert figures["simulated_step_time_s"] == pytest.approx(STEP_S, rel=0.05)
    sizes = found.files["collectives.csv"].query("step == 4 and rank == 0").bytes.tolist()
    assert sizes == [1_050_624] * 3  # one bucket per layer: 512 × 512 weights and 512 biases in 32 bits
    assert any("outermost operators are taken as computation" in said for said in figures["unknown"])
    found.write(tmp_path)
    again = simulate(load(tmp_path / "scenario.yaml")).summary["step_time_s"]
    assert again == pytest.approx(figures["simulated_step_time_s"], rel=1e-9)


def test_outermost_operators_are_the_stream_of_ops(tmp_path):
    files = [host_trace(tmp_path, 0), host_trace(tmp_path, 1, late=5_000)]
    found = import_profile(files)
    assert found.figures["measured_step_time_s"] == pytest.approx(0.018_01)
    assert found.figures["simulated_step_time_s"] == pytest.approx(0.018_01, rel=0.01)
    table = found.files["collectives.csv"]
    assert table.bytes.tolist() == [4000, 4000]
    assert table.transfer_s.tolist() == pytest.approx([0.001_98] * 2)
    assert table.wait_s.tolist() == pytest.approx([0.005, 0])
    names = found.files["durations.csv"].name.tolist()
    assert names == ["aten::mm", "gloo:all_reduce", "aten::mul"] * 2


def test_a_trace_without_any_work_is_refused(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event("python_function", "main", 0, 5)]}))
    with pytest.raises(UsageError, match=r"on a CPU with ProfilerActivity\.CPU"):
        import_profile(path)
