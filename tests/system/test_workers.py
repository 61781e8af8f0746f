"""Sweeps on other processes: executors, local workers and a Dask cluster give the table of this process."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import subprocess
import sys

import pytest
from support import experiments
from support.sweeps import AXES, BASE, OWN, OWN_AXES, without_wall

from hybrid_des.sweep import load_sweep, run_sweep

CLUSTER = """
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


@pytest.fixture
def own(write):
    """A file with a user-defined schedule."""
    return write(OWN, "my_schedule.py")


@pytest.fixture(scope="module")
def chunks():
    """A few cases of an experiment, and their rows from this process."""
    axes = "[{parallel.pipeline: [2, 4]}, {schedule.kind: [interleaved-1f1b, hanayo]}, {schedule.chunks: [2, 3, 4]}]"
    few = load_sweep(experiments.FOLDER / "chunks.yaml", [f"sweep={axes}", "plot=none"])
    return few, without_wall(run_sweep(few))


@pytest.mark.parametrize("pool", [concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor])
def test_any_executor_gives_the_same_table(chunks, pool):
    few, rows = chunks
    options = {}
    if pool is concurrent.futures.ProcessPoolExecutor:
        options["mp_context"] = multiprocessing.get_context("spawn")
    with pool(2, **options) as executor:
        assert without_wall(run_sweep(few, executor=executor)) == rows


def test_local_workers_give_the_same_table(chunks):
    few, rows = chunks
    seen = []
    assert without_wall(run_sweep(few, jobs=2, progress=lambda *done: seen.append(done))) == rows
    assert seen[-1] == (len(few), len(few))


@pytest.mark.parametrize("experiment", experiments.FILES)
def test_local_workers_give_the_published_figures(experiment):
    assert experiments.compare(experiment, ranks=(8,), jobs=2) >= 18


def test_local_workers_know_a_user_defined_schedule(run, write, own, scratch):
    file = write(BASE + OWN_AXES)
    mine = load_sweep(file, imports=[own])
    parallel = run_sweep(mine, jobs=2)
    assert without_wall(parallel) == without_wall(run_sweep(mine))
    assert [row["schedule.kind"] for row in parallel if "error" in row] == []
    assert parallel[4]["bubble_ratio"] == pytest.approx(1 - 1 / 3, abs=1e-3)
    assert run(file, "--import", own, "--jobs", 2, "--json")[0] == 0


def test_a_dask_cluster_gives_the_same_table(write, own, scratch, tmp_path):
    pytest.importorskip("distributed")
    file = write(BASE + OWN_AXES)
    command = [sys.executable, "-m", "hybrid_des", file, "--import", own, "--json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([sys.executable, write(CLUSTER, "cluster.py")], cwd=tmp_path, **pipes) as cluster:
        address = cluster.stdout.readline().strip()
        assert address.startswith("tcp://127.0.0.1:")
        done = subprocess.run([*command, "--dask", address], capture_output=True, text=True, timeout=300)
        cluster.communicate("\n", timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    mine = load_sweep(file, imports=[own])
    assert without_wall(json.loads(done.stdout)) == without_wall(run_sweep(mine))


def test_a_cluster_that_does_not_answer_is_one_line(write):
    pytest.importorskip("distributed")
    command = [sys.executable, "-m", "hybrid_des", write(BASE + AXES), "--dask", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "--dask nowhere: no scheduler responds" in done.stderr
