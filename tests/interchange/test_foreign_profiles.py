"""Files that are no profile, or one in another encoding: read where that is safe, else named with what to do."""

import json
import pickle

import pytest
from support.profiles import Kineto

from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles import json_events
from hybrid_des.measured.imports.importing import import_profile

RECORD = "torch.profiler"


def trace_text():
    trace = Kineto()
    trace.note("ProfilerStep#1", 0, 100)
    trace.kernel("gemm", 10, 50, occupancy=0.5)
    return json.dumps({**trace.about, "traceEvents": trace.events})


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + trace_text().encode(),
        trace_text().replace("0.5", "NaN").encode(),
        trace_text().replace("0.5", "-Infinity").encode(),
        trace_text().replace("0.5", str(2**64 - 1)).encode(),
        trace_text().replace("gemm", "gemm\tof Köln").encode(),
        json.dumps(json.loads(trace_text())["traceEvents"]).encode(),
    ],
    ids=["byte-order mark", "NaN", "Infinity", "64 bits", "control character", "a list"],
)
def test_what_profilers_write_beyond_json_is_read(content, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    assert import_profile(tmp_path / "a.json").simulated == [pytest.approx(50e-6)]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_events_are_the_same_whatever_is_read_at_once(size, tmp_path, monkeypatch):
    whole = {"a": [1, {"b": "]}"}], "traceEvents": [{"n": number, "s": "ü" * number} for number in range(30)], "z": -12}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(whole, ensure_ascii=False), encoding="utf-8")
    monkeypatch.setattr(json_events, "CHUNK", size)
    with path.open("rb") as file:
        assert [*json_events.events_of(file)] == whole["traceEvents"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (trace_text().replace("gemm", "g\x80mm").encode("latin-1"), r"byte \d+ \(0x80\) is not UTF-8; convert it"),
        (trace_text().encode()[:-40], r"it is cut \(after \d events\)"),
        (trace_text().replace('"ph": ', '"ph" ').encode(), r"Expecting ':' delimiter at .*\(after 0 events\)"),
        (trace_text().encode() + b"{", "after its end"),
        (trace_text().replace('"ts": 0', '"ts": 1.7e18').encode(), "are its times nanoseconds"),
        (trace_text().replace('"ts": 0', '"ts": NaN').encode(), "ts: nan µs"),
    ],
    ids=["another encoding", "cut", "broken", "more", "nanoseconds", "no time"],
)
def test_broken_files_are_refused_with_their_place(content, said, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=said) as refused:
        import_profile(tmp_path / "a.json")
    assert len(str(refused.value).splitlines()) == 1


GRAPH = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "x", "start_ts": 5, "nodes": [{"id": 1, "name": "aten::mm"}]}
INSPECTOR = {"header": {"rank": 0}, "metadata": {"inspector_output_format_version": "v4.0"}, "coll_perf": {}}
RECORDER = {"version": "2.4", "pg_config": {"0": {}}, "entries": [{"collective_seq_id": 1, "profiling_name": "x"}]}
FOREIGN = {
    "a.json": (json.dumps(GRAPH), "an execution trace of PyTorch", "chakra_converter"),
    "b.log": (json.dumps(INSPECTOR) + "\n" + json.dumps(INSPECTOR), "NCCL Inspector", RECORD),
    "c.json": (json.dumps(RECORDER), "flight recorder", RECORD),
    "d_rank_0": (pickle.dumps(RECORDER), "flight recorder", RECORD),
    "e.pickle": (pickle.dumps({"segments": [], "device_traces": [[]]}), "a snapshot of PyTorch's memory", RECORD),
    "f.nsys-rep": (b"\x0c\x1f\x03report", "NVIDIA Nsight", RECORD),
    "g.sqlite": (b"SQLite format 3\0CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL", "NVIDIA Nsight", RECORD),
    "h.json": (trace_text().encode("utf-16"), "UTF-16", "iconv"),
    "i.log": ("[2026-01-01 00:00:00] step 1 | time: 5\n", "a file of an unknown kind", "expected a PyTorch"),
    "j.json": ('{"loss": 1}', "JSON of an unknown kind", "expected a PyTorch"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_other_programs_are_named_with_what_to_do(name, refused, tmp_path):
    content, what, then = FOREIGN[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused("import", tmp_path / name, "--out", tmp_path / "out")
    assert line.startswith(f"{tmp_path / name}: ")
    assert what in line
    assert then in line


def test_a_folder_of_foreign_files_names_one(refused, tmp_path):
    for name in ("i.log", "c.json"):
        (tmp_path / name).write_text(FOREIGN[name][0])
    assert "c.json is a dump of PyTorch's flight recorder" in refused("import", tmp_path, "--out", tmp_path / "out")
