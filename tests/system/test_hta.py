"""Holistic Trace Analysis reads the traces of `--hta`, where a Python that has it is named.

    python3 -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis 'pandas<3'
    HYBRID_DES_HTA=/tmp/hta/bin/python pytest tests/system/test_hta.py

It needs an older pandas than this project, so that it cannot stand beside it.
"""

import json
import os
import subprocess

import pytest
from support.paths import SCENARIOS

from hybrid_des.report.files.kineto import write_kineto
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load

pytestmark = pytest.mark.slow

PYTHON = os.environ.get("HYBRID_DES_HTA")
SCRIPT = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
times = analysis.get_temporal_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
path, found = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=0)
print(json.dumps({
    "compute": times.set_index("rank")["compute_time(us)"].to_dict(),
    "overlap": overlap.set_index("rank")["comp_comm_overlap_pctg"].to_dict(),
    "idle": idle[idle["stream"] == 7].groupby("idle_category")["idle_time"].sum().to_dict(),
    "path": bool(found),
}))
"""


@pytest.mark.skipif(PYTHON is None, reason="needs HYBRID_DES_HTA, a Python with HolisticTraceAnalysis")
def test_holistic_trace_analysis_finds_what_was_simulated(tmp_path):
    result = simulate(load(SCENARIOS / "h100_2x8.yaml", ["gradients.overlap=true", "steps=2"]))
    write_kineto(result, tmp_path)
    done = subprocess.run([PYTHON, "-W", "ignore", "-c", SCRIPT, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    rows = result.timeline.query("lane == 'compute' and step == 0")  # HTA leaves the last step out
    busy = rows.groupby("rank").apply(lambda mine: (mine["end_s"] - mine["start_s"]).sum())
    for rank, seconds in busy.items():
        assert found["compute"][str(rank)] == pytest.approx(seconds * 1e6, abs=200)
    assert 0 < found["overlap"]["0"] < 100
    assert found["idle"].get("host_wait", 0) == 0
    assert found["path"]
