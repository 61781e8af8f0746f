"""Holistic Trace Analysis and TraceLens read the traces of `export --for hta`, where pip can install them.

They need an older pandas than this project, or packages that it lacks, so each has an environment of its own, which is
made once per run; HYBRID_DES_HTA and HYBRID_DES_TRACELENS may name a Python that has them.
"""

import json
import os
import subprocess
import sys

import pytest
from support.paths import SCENARIOS

from hybrid_des.report.files.kineto import write_kineto
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load

pytestmark = pytest.mark.slow

WANTED = {
    "hta": ["HolisticTraceAnalysis==0.5.0", "pandas<3"],
    "tracelens": ["TraceLens @ git+https://github.com/AMD-AGI/TraceLens.git"],
}
HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
times = analysis.get_temporal_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
_, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=100)
path, found = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=0)
print(json.dumps({
    "compute": times.set_index("rank")["compute_time(us)"].to_dict(),
    "overlap": overlap.set_index("rank")["comp_comm_overlap_pctg"].to_dict(),
    "idle": idle[idle["stream"] == 7].groupby("idle_category")["idle_time"].sum().to_dict(),
    "kernels": sorted({*kernels[kernels["kernel_type"] == "COMMUNICATION"]["name"]}),
    "path": bool(found),
    "bound": {str(name): float(share) for name, share in path.summary().items()},
}))
"""
LENS = """
import glob, json, sys
from TraceLens import NcclAnalyser, TreePerfAnalyzer
files = sorted(glob.glob(sys.argv[1] + "/rank-*.json.gz"))
analysis = TreePerfAnalyzer.from_file(files[0])
timeline = analysis.get_df_gpu_timeline().set_index("type")["time ms"].to_dict()
launchers = analysis.get_df_kernel_launchers()
nccl = NcclAnalyser(files, len(files))
rows = nccl.build_df_long()
together = nccl.build_df_nccl_implicit_sync_cat()
print(json.dumps({
    "timeline": timeline,
    "launchers": launchers.groupby("name").size().to_dict(),
    "sends": int((rows["Collective name"] == "send").sum()),
    "sizes": together.groupby("Collective name")["Full msg size (MB)"].max().to_dict(),
}))
"""


def python_with(name, folder):
    """A Python that has a tool; the test is skipped where pip cannot install it."""
    if named := os.environ.get(f"HYBRID_DES_{name.upper()}"):
        return named
    python = folder / "bin" / "python"
    for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q", *WANTED[name]]):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=600)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{name} cannot be installed: {str(error).splitlines()[0][:200]}")
    return python


@pytest.fixture(scope="module")
def hta(tmp_path_factory):
    return python_with("hta", tmp_path_factory.mktemp("hta"))


@pytest.fixture(scope="module")
def tracelens(tmp_path_factory):
    return python_with("tracelens", tmp_path_factory.mktemp("tracelens"))


def analysed(python, script, folder):
    """What a script prints as its last line, as JSON."""
    command = [python, "-W", "ignore", "-c", script, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def busy_by_rank(result):
    rows = result.timeline.query("lane == 'compute' and step == 0")  # HTA leaves the last step out
    return rows.groupby("rank").apply(lambda mine: (mine["end_s"] - mine["start_s"]).sum())


def test_holistic_trace_analysis_finds_what_was_simulated(hta, tmp_path):
    result = simulate(load(SCENARIOS / "h100_2x8.yaml", ["gradients.overlap=true", "steps=2"]))
    write_kineto(result, tmp_path)
    found = analysed(hta, HTA, tmp_path)
    for rank, seconds in busy_by_rank(result).items():
        assert found["compute"][str(rank)] == pytest.approx(seconds * 1e6, abs=200)
    assert 0 < found["overlap"]["0"] < 100
    assert found["idle"].get("host_wait", 0) == 0
    assert found["path"]
    assert found["bound"].get("gpu_kernel_launch_overhead", 0) < 1


def test_holistic_trace_analysis_names_collectives(hta, tmp_path):
    write_kineto(simulate(load(SHARDED)), tmp_path)
    found = analysed(hta, HTA, tmp_path)
    assert found["kernels"] == ["ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter_Sum", "ncclDevKernel_SendRecv"]
    assert found["bound"].get("gpu_kernel_launch_overhead", 0) < 1


SHARDED = {
    "cluster": {"gpus_per_node": 8, "nvlink": {"bandwidth": "100 GB/s", "latency": "1 us"}},
    "parallel": {"pipeline": 2, "data": 4}, "schedule": {"kind": "1f1b", "microbatches": 4}, "sharding": "zero-1",
    "workload": {"forward": "1 ms", "backward": "2 ms", "parameters": 2**25, "activation": "10 MB"}, "steps": 2,
}  # fmt: skip


def test_tracelens_finds_kernels_and_sizes(tracelens, tmp_path):
    result = simulate(load(SHARDED))
    write_kineto(result, tmp_path)
    found = analysed(tracelens, LENS, tmp_path)
    assert found["timeline"]["computation_time"] == pytest.approx(2 * 12, abs=0.01)  # 4 · (1 + 2) ms a step
    assert found["launchers"]["forward"] == found["launchers"]["backward"] == 8
    rows = result.timeline
    assert found["sends"] == int(((rows["hop"] == 0) & rows["kind"].isin(["activation", "gradient"])).sum())
    assert found["sizes"] == {"_reduce_scatter_base": 128, "_allgather_base": 64}  # MiB of 2²⁵ elements
