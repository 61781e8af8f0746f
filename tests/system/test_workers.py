"""Sweeps on other processes: executors, local workers and a Dask cluster give the table of this process."""

import concurrent.futures
import contextlib
import json
import multiprocessing
import re
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from support import experiments
from support.campaigns import TIMES
from support.local_cluster import end, local_cluster
from support.sweeps import AXES, BASE, OWN, OWN_AXES, without_wall

from hybrid_des.errors import UsageError
from hybrid_des.interface.cli import dask_workers
from hybrid_des.studies.pool import WorkersLostError
from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.runner import sweep_rows

pytestmark = pytest.mark.slow

KILLED = """
import os
import signal

from hybrid_des.pipeline.schedules import find, schedule

@schedule("deadly", summary="kills its process, once or always", time="", memory="", source="")
def deadly(request):
    if not os.path.exists("ALWAYS"):
        try:
            open("ONCE", "x").close()
        except FileExistsError:
            return find("1f1b").build(request)
    os.kill(os.getpid(), signal.SIGNAL)
"""


@pytest.fixture
def own(write):
    """A file with a user-defined schedule."""
    return write(OWN, "my_schedule.py")


@pytest.fixture(scope="module")
def chunks():
    """A few cases of an experiment, and their rows from this process."""
    axes = "[{parallel.pipeline: [2, 4]}, {schedule.kind: [interleaved-1f1b, hanayo]}, {schedule.chunks: [2, 3, 4]}]"
    few = load_sweep(  # a loss takes seconds
        experiments.FOLDER / "chunks.yaml", [f"sweep={axes}", "plot=none"]
    )
    return few, without_wall(sweep_rows(few))


def test_any_executor_gives_the_same_table(chunks, workers):
    few, rows = chunks
    assert without_wall(sweep_rows(few, executor=workers)) == rows
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        assert without_wall(sweep_rows(few, executor=executor)) == rows


def test_local_workers_give_the_same_table(chunks):
    few, rows = chunks
    seen = []
    assert without_wall(sweep_rows(few, jobs=2, progress=lambda *done: seen.append(done))) == rows
    assert seen[-1] == (len(few), len(few))


@pytest.fixture(scope="module")
def workers():
    """Two processes that last for several sweeps."""
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize("experiment", experiments.FILES)
def test_workers_give_the_published_figures(experiment, workers):
    """On 4 ranks; a campaign does those on 8 ranks too, whose plans tests/pipeline holds against the same table."""
    ranks = (4, 8) if TIMES > 1 else (4,)
    assert experiments.compare(experiment, ranks, executor=workers) >= 18 * len(ranks)


def test_local_workers_know_a_user_defined_schedule(write, own, scratch):
    file = write(BASE + OWN_AXES)
    mine = load_sweep(file, imports=[own])
    parallel = sweep_rows(mine, jobs=2)
    assert without_wall(parallel) == without_wall(sweep_rows(mine))
    assert [row["schedule.kind"] for row in parallel if "error" in row] == []
    assert parallel[4]["bubble_ratio"] == pytest.approx(1 - 1 / 3, abs=1e-3)


def test_a_dask_cluster_gives_the_same_table(write, own, scratch, cluster):
    file = write(BASE + OWN_AXES)
    address, _ = cluster(2)
    assert address.startswith("tcp://127.0.0.1:")
    command = [sys.executable, "-m", "hybrid_des", file, "--import", own, "--json", "--dask", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    mine = load_sweep(file, imports=[own])
    assert without_wall(json.loads(done.stdout)) == without_wall(sweep_rows(mine))


@pytest.mark.parametrize("by", ["SIGKILL", "SIGTERM"])
def test_a_killed_worker_costs_no_row(write, scratch, tmp_path, by):
    killed = KILLED.replace("ONCE", str(tmp_path / "once")).replace("ALWAYS", str(tmp_path / "always"))
    mine = write(killed.replace("SIGNAL", by), "mine.py")
    axes = "sweep:\n  - {schedule.kind: [gpipe, deadly, 1f1b]}\n  - {seed: [0, 1]}\n"
    sweep = load_sweep(write(BASE + axes), imports=[mine])
    rows = sweep_rows(sweep, jobs=2)
    assert [row.get("error") for row in rows] == [None] * 6
    assert [row["seed"] for row in rows] == [0, 1] * 3
    (tmp_path / "always").touch()
    lost = ["its worker was lost twice: " in row.get("error", "") for row in sweep_rows(sweep, jobs=2)]
    assert lost == [False, False, True, True, False, False]


def test_an_interrupt_of_a_worker_changes_nothing(write, scratch):
    mine = write(
        KILLED.replace("ALWAYS", "/").replace("SIGNAL", "SIGINT") + "    return find('1f1b').build(request)\n",
        "mine.py",
    )
    axes = "sweep:\n  - {schedule.kind: [gpipe, deadly]}\n  - {seed: [0, 1]}\n"
    rows = sweep_rows(load_sweep(write(BASE + axes), imports=[mine]), jobs=2)
    assert [row.get("error") for row in rows] == [None] * 4


@pytest.fixture
def cluster(tmp_path):
    """Start a cluster of some workers: its address and process."""
    pytest.importorskip("distributed")
    with contextlib.ExitStack() as stack:
        yield lambda workers: stack.enter_context(local_cluster(tmp_path, workers))


def test_a_dead_scheduler_is_one_line_and_rows_are_kept(write, cluster, tmp_path):
    waits = KILLED.replace("ALWAYS", "/").replace(
        "os.kill(os.getpid(), signal.SIGNAL)", "__import__('threading').Event().wait()"
    )
    mine = write(waits, "mine.py")
    file = write(BASE + "sweep:\n  - {schedule.kind: [gpipe, deadly]}\n")
    address, process = cluster(2)
    table = tmp_path / "o" / "sweep.partial.csv"
    command = [sys.executable, "-m", "hybrid_des", file, "--import", mine, "--dask", address, "--out", table.parent]
    with subprocess.Popen([*command, "--quiet"], stderr=subprocess.PIPE, text=True) as sweep:
        until(lambda: table.exists() or sweep.poll() is not None)
        end(process)
        _, errors = sweep.communicate(timeout=300)
    assert (sweep.returncode, len(errors.splitlines())) == (1, 2), errors
    assert errors.startswith(
        f"1 of 2 cases finished; their rows are in {table}, --resume simulates the others\n--dask {address}: "
    )
    assert table.read_text(encoding="utf-8").count("\n") == 2


def test_a_cluster_without_workers_says_so_and_is_interrupted(write, cluster):
    address, _ = cluster(0)
    command = [sys.executable, "-m", "hybrid_des", write(BASE + AXES), "--dask", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as sweep:
        assert sweep.stderr.readline() == f"--dask {address}: waiting for workers\n"
        sweep.send_signal(signal.SIGINT)
        _, errors = sweep.communicate(timeout=300)
    assert (sweep.returncode, errors) == (130, "interrupted\n")


def test_a_cluster_whose_workers_stay_away_is_given_up(monkeypatch):
    monkeypatch.setattr(dask_workers, "LONGEST_WITHOUT_S", -1)
    client = SimpleNamespace(nthreads=dict, scheduler=SimpleNamespace(address="tcp://nowhere"))
    check = dask_workers.workers_check(client)
    check()
    with pytest.raises(WorkersLostError, match="no workers for"):
        check()


def until(holds):
    """Wait until a condition holds, for up to five minutes."""
    for _ in range(6000):
        if holds():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come to pass")


def test_a_cluster_that_does_not_answer_is_one_line(write):
    pytest.importorskip("distributed")
    command = [sys.executable, "-m", "hybrid_des", write(BASE + AXES), "--dask", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "--dask nowhere: no scheduler responds" in done.stderr


def test_a_port_that_never_answers_is_one_line(monkeypatch, run, write):
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_workers, "LONGEST_SILENCE_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        code, out, err = run(write(BASE + AXES), "--dask", address)
    assert (code, out) == (2, "")
    assert err == [f"--dask {address}: no scheduler responds (silence for 1 s)"]


def test_an_executor_without_submit_is_refused(chunks):
    few, _ = chunks
    with pytest.raises(UsageError, match=re.escape("executor: SimpleNamespace has no submit(), as those of")):
        sweep_rows(few, executor=SimpleNamespace(map=map))
