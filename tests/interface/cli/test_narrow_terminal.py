"""Lines of every command fit a terminal of 80 columns."""

from pathlib import Path

import pytest

from hybrid_des import simulate
from hybrid_des.scenario.loading import load

STEP = """\
name: a_pipeline_of_four_ranks_on_a_single_node_of_four_gpus
cluster: {gpu: {memory: 4 GB}, nodes: 1, gpus_per_node: 4, nvlink: {bandwidth: 50 GB/s, latency: 1 us}}
parallel: {pipeline: 4, data: 1}
schedule: {kind: 1f1b, microbatches: 8}
workload: {per: model, forward: 12 ms, backward: 24 ms, activation: 4 MB, parameters: 4e7, memory: {activation: 1 GB}}
"""
SWEEP = """\
sweep:
    - {parallel.pipeline: [4, 8]}
    - {schedule.kind: [1f1b, zb-h1]}
    - {workload.memory.activation: [1 MB, 100 MB, 5 GB]}
    - {cluster.nvlink.latency: [1 us, 100 us]}
"""
SEARCH = """\
search:
  top: 5
  axes:
    - parallel
    - {schedule.kind: [gpipe, 1f1b, zb-h1]}
    - {sharding: [none]}
    - {recompute: [none]}
    - {workload.memory.activation: [1 MB, 2 MB]}
    - {cluster.nvlink.bandwidth: [50 GB/s, 100 GB/s]}
"""
JOB = "parallel: {pipeline: 1, data: 4}, workload: {forward: 10 ms, backward: 20 ms, parameters: 1e7}"
JOBS = f"""\
name: jobs
description: two jobs with long names, both of which send gradients through the same uplinks of leaf switches
cluster: {{nodes: 4, gpus_per_node: 2, topology: leaf-spine, leaf_size: 2, oversubscription: 2}}
jobs:
  a_job_with_a_long_name: {{nodes: [0, 2], {JOB}, gradients: {{algorithm: ring}}}}
  another_job_with_a_long_name: {{nodes: [1, 3], {JOB}, gradients: {{algorithm: ring}}}}
"""
WEEKS = Path(__file__).with_name("goodput.yaml").read_text(encoding="utf-8")
JITTER = "jitter: {distribution: lognormal, sigma: 0.1}\n"
FILES = {
    "step": STEP,
    "sweep": STEP + SWEEP,
    "search": STEP + SEARCH,
    "jobs": JOBS,
    "weeks": WEEKS,
    "random": STEP + JITTER,
}
COMMANDS = {
    "sweep": ["sweep.yaml", "--jobs", "1"],
    "sweep_of_weeks": ["weeks.yaml", "--set", "sweep=[{faults.spares.nodes: [1, 2]}]", "--jobs", "1"],
    "jobs": ["jobs.yaml"],
    "search": ["search", "search.yaml", "--jobs", "1"],
    "list_of_a_search": ["search", "search.yaml", "--list"],
    "compare": ["compare", "step.yaml", "--with", "schedule.kind=zb-h1"],
    "compared_jobs": ["compare", "jobs.yaml", "--with", "jobs.a_job_with_a_long_name.start=15ms"],
    "goodput": ["goodput", "weeks.yaml"],
    "spread": ["spread", "random.yaml", "--with", "schedule.kind=zb-h1", "--runs", "3", "--jobs", "1"],
    "spread_of_ties": ["spread", "step.yaml", "--ties", "3", "--jobs", "1"],
    "explain": ["explain", "step.yaml"],
    "costs": ["costs", "step.yaml"],
    "schedules": ["schedules"],
    "schedule": ["schedules", "1f1b", "--pipeline", "16", "--microbatches", "4"],
    "collective": ["collective", "auto", "--max", "1MB"],
    "collective_that_chooses": ["collective", "nccl", "--max", "1MB"],
    "topologies": ["topology"],
    "topology": ["topology", "step.yaml", "--route", "0", "3"],
    "scenarios": ["scenarios"],
    "docs": ["docs"],
    "gpus": ["gpus"],
    "models": ["models"],
    "model": ["models", "qwen3-next-80b-a3b"],
    "replay": ["replay", "timeline.csv"],
    "import": ["import", "timeline.csv"],
    "flags": ["flags", "llama3.1-70b_128", "--for", "megatron"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files of the commands, on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name, text in FILES.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal(ran, folder, scenarios, name):
    words = COMMANDS[name]
    if "timeline.csv" in words:
        simulate(load("step.yaml")).timeline.to_csv("timeline.csv", index=False)
    if words[0] == "flags":
        words = [words[0], scenarios / f"{words[1]}.yaml", *words[2:]]
    out, _ = ran(*words)
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert out
