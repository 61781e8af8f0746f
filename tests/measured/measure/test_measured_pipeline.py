"""The scenario of measured pipelines: from canned recordings with planted host time, without PyTorch."""

import pytest
from support.scenarios import instant

from hybrid_des import load, simulate
from hybrid_des.measured.measure.machine import Facts, as_yaml, machine_of
from hybrid_des.measured.measure.measured_pipeline import durations_name, durations_of_runs, proofs, sections_of
from hybrid_des.measured.measure.pipelines import SPLIT, runs_of

PLANTED = {"forward": "3 ms", "backward": "7 ms", "weight": "2 ms", "between": "5 ms"}
COLUMNS = ["step", "pipeline_rank", "chunk", "kind", "microbatch", "start_s", "end_s"]
RUNS = runs_of((1, 2))
KINDS = {(SPLIT, 1): "zb-h1", (SPLIT, 2): "zb-v"}  # whose ops stand for PyTorch's split ones
SIZES = [
    {"chunks": chunks, "stage": stage, "pipeline_rank": stage % 4, "output_bytes": 2000,
     "parameters": 100 * (stage + 1), "update_s": 0.001}
    for chunks in (1, 2) for stage in range(4 * chunks)
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A measured folder in which ops of known length hold planted host time, and messages take 4 ms."""
    folder = tmp_path_factory.mktemp("node")
    for run in RUNS:
        kind = KINDS.get((run.kind, run.chunks), run.kind)
        scenario = instant(
            kind, schedule={"chunks": run.chunks}, steps=2, cluster={"nvlink": {"latency": "4 ms"}},
            workload={"overhead": PLANTED},
        )  # fmt: skip
        ops = simulate(scenario).timeline.query("lane == 'compute'")
        ops[COLUMNS].to_csv(folder / run.table, index=False)
    shifts = [
        {"bytes": size, "time_us": 1000 + size / 1000, "collective": "send-receive", "ranks": 4, "nodes": 1}
        for size in (4096, 2**20, 2**24)
    ]
    machine = machine_of(Facts("cpu", None, 2**30, 1, 4, 4), {"collectives.csv": shifts}, {})
    (folder / "machine.yaml").write_text(as_yaml({"name": "node", **machine}))
    return folder


@pytest.fixture(scope="module")
def tables(folder):
    import pandas as pd

    return {run.table: pd.read_csv(folder / run.table) for run in RUNS}


@pytest.fixture(scope="module")
def written(folder, tables):
    sections = {}
    for chunks, name in ((1, "pipeline.yaml"), (2, "pipeline_2.yaml")):
        durations_of_runs(RUNS, tables, chunks).to_csv(folder / durations_name(chunks, 1), index=False)
        sections[chunks] = sections_of(folder, [run for run in RUNS if not run.proves], chunks, SIZES)
        (folder / name).write_text(as_yaml(sections[chunks]))
    return sections


@pytest.mark.parametrize("chunks", [1, 2])
def test_planted_host_time_and_latency_are_given_back(folder, written, chunks):
    scenario = load(folder / ("pipeline.yaml" if chunks == 1 else "pipeline_2.yaml"))
    for name, value in {"forward": 0.003, "backward": 0.007, "weight": 0.002, "between": 0.005}.items():
        assert float(getattr(scenario.workload.overhead, name)) == pytest.approx(value, rel=0.02)
    link = scenario.cluster.kinds[0].nvlink
    assert float(link.latency) + 2000 / float(link.bandwidth) == pytest.approx(0.004, rel=0.02)


def test_the_scenario_has_the_sizes_of_its_stages(written):
    workload = written[2]["workload"]
    assert workload["activation"] == 2000
    assert workload["parameters"] == [600, 800, 1000, 1200]  # stages 0 and 4, 1 and 5, …
    assert workload["optimizer"] == ["2 ms"] * 4


def test_schedules_that_were_run_but_not_used_are_predicted(folder, tables, written):
    proven = list(proofs(folder, RUNS, tables))
    assert [one.what for one in proven] == ["gpipe, chunks: 1", "looped-bfs, chunks: 2", "zb-v, chunks: 2"]
    for proof in proven:
        assert abs(proof.error) < 0.5
        assert proof.to_mapping()["error_percent"] == proof.error


def test_without_split_backwards_whole_ones_are_taken(tables):
    whole = {name: table for name, table in tables.items() if SPLIT not in name}
    assert set(durations_of_runs(RUNS, whole, 1).kind) == {"F", "B"}
    assert set(durations_of_runs(RUNS, tables, 1).kind) == {"F", "B", "W"}  # a B beside a W is its input part
    assert durations_of_runs(RUNS, {}, 1) is None
