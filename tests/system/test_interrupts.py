"""Ctrl-C, SIGTERM and kills: finished rows are kept, nothing else is left, and nothing goes on running."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys

import pytest
from support.campaigns import thinned
from support.paths import ROOT, TESTS

from hybrid_des.studies.pool import silence_the_tracker

RUN = """
schedule: {kind: 1f1b, microbatches: 4}
workload: {forward: 1 s, backward: 2 s, parameters: 1e6}
parallel: {pipeline: 4, data: 2}
gradients: {algorithm: announced}
steps: 200000
record: none
"""
ANNOUNCED = """
import os

from hybrid_des.collectives import collective, find

announced = []

@collective("announced", summary="recursive doubling that says when the first one of the run starts")
def announced_doubling(group, buffer):
    if not announced and buffer.bytes > 10**5:  # those of the check are smaller
        announced.append(True)
        os.write(1, b"started\\n")
    yield from find("recursive-doubling").build(group, buffer)
"""
ONE_ENDLESS = "schedule: {kind: endless, microbatches: 4}\nworkload: {forward: 1 s, backward: 2 s}\n"
SWEEP = """
schedule: {kind: endless, microbatches: 4}
workload: {forward: 1 s, backward: 2 s}
sweep:
  - {seed: [0, 1, 2, 3]}
"""
ENDLESS = """
import os
import threading

from hybrid_des.pipeline.schedules import schedule

@schedule("endless", summary="says that it starts, and never ends", time="", memory="", source="")
def endless(request):
    os.write(1, b"started\\n")
    threading.Event().wait()
"""
DROPPED = """
import os
import threading
import weakref

from hybrid_des.pipeline.schedules import schedule

def say_and_wait():
    os.write(1, b"started\\n")
    threading.Event().wait()

class Request:
    pass

class Deleted:
    def __del__(self):
        say_and_wait()

@schedule("endless", summary="waits where an exception is dropped, then for ever", time="", memory="", source="")
def endless(request):
    DROPPING
    threading.Event().wait()
"""
THEN_ENDLESS = """
schedule: {microbatches: 4}
workload: {forward: 1 s, backward: 2 s}
sweep:
  - {schedule.kind: [gpipe, 1f1b, endless, endless]}
"""
STARTED = "started\n"


@contextlib.contextmanager
def running(*arguments, workers=1):
    """A command in a session of its own, once every worker has printed that it started."""
    command = [sys.executable, "-m", "hybrid_des", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            started = [process.stdout.readline() for _ in range(workers)]
            assert started == [STARTED] * workers, process.communicate(timeout=300)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def stopped(*arguments, workers=1, by=signal.SIGINT):
    """Signal the command as a terminal does, or its main process alone; its exit code and lines on stderr."""
    with running(*arguments, workers=workers) as process:
        (os.killpg if by == signal.SIGINT else os.kill)(process.pid, by)
        _, errors = process.communicate(timeout=300)  # ends when no worker holds the pipe any more
    return process.returncode, errors.splitlines()


@pytest.mark.parametrize(
    ("by", "ending"),
    [
        (signal.SIGINT, (130, ["interrupted"])),
        pytest.param(signal.SIGTERM, (143, ["terminated"]), marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_leaves_nothing_behind(write, tmp_path, by, ending):
    file, mine = write(RUN), write(ANNOUNCED, "mine.py")
    assert stopped(file, "--import", mine, "--out", tmp_path / "o" / "p", "--quiet", by=by) == ending
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "mine.py"]


@pytest.mark.parametrize(
    ("dropping", "by", "ending"),
    [
        pytest.param("Deleted()", signal.SIGINT, (130, ["interrupted"]), marks=pytest.mark.slow),
        ("weakref.finalize(Request(), say_and_wait)", signal.SIGTERM, (143, ["terminated"])),
    ],
)
def test_an_interrupt_that_python_drops_is_raised_again(write, dropping, by, ending):
    mine = write(DROPPED.replace("DROPPING", dropping), "mine.py")
    assert stopped(write(ONE_ENDLESS), "--import", mine, by=by) == ending


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_without_finished_rows_leaves_nothing_behind(write, tmp_path, jobs):
    file, mine = write(SWEEP), write(ENDLESS, "mine.py")
    arguments = ["--import", mine, "--jobs", jobs, "--out", tmp_path / "o" / "p", "--quiet"]
    assert stopped(file, *arguments, workers=jobs) == (130, ["interrupted"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "mine.py"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("by", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_stopped_sweep_keeps_its_finished_rows(write, tmp_path, jobs, by, code, word):
    file, mine, out = write(THEN_ENDLESS), write(ENDLESS, "mine.py"), tmp_path / "o"
    arguments = ["--import", mine, "--jobs", jobs, "--out", out, "--quiet"]
    said = f"2 of 4 cases finished; their rows are in {out / 'sweep.partial.csv'}, --resume simulates the others"
    assert stopped(file, *arguments, workers=jobs, by=by) == (code, [said, word])
    assert sorted(path.name for path in out.iterdir()) == ["sweep.partial.csv", "sweep.partial.jsonl"]
    assert kinds(out / "sweep.partial.csv") == ["1f1b", "gpipe"]


def kinds(table):
    """The schedules of the rows of a table, all of them complete."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["step_time_s"]) > 0 for row in rows)
    return sorted(row["schedule.kind"] for row in rows)


@pytest.mark.slow
def test_a_stopped_sweep_outputs_its_finished_rows(write):
    file, mine = write(THEN_ENDLESS), write(ENDLESS, "mine.py")
    with running(file, "--import", mine, "--jobs", 2, "--json", workers=2) as process:
        os.killpg(process.pid, signal.SIGINT)
        rows, errors = process.communicate(timeout=300)
    assert [row["schedule.kind"] for row in json.loads(rows)] == ["gpipe", "1f1b"]
    assert errors.splitlines() == ["2 of 4 cases finished", "interrupted"]


@pytest.mark.parametrize("jobs", thinned([1, 2], slow=[2]))
def test_a_killed_sweep_keeps_its_rows_and_ends_its_workers(write, run, tmp_path, jobs):
    file, mine, out = write(THEN_ENDLESS), write(ENDLESS, "mine.py"), tmp_path / "o"
    with running(file, "--import", mine, "--jobs", jobs, "--out", out, "--quiet", workers=jobs) as process:
        process.kill()
        assert process.communicate(timeout=300) == ("", "")  # ends when no worker holds the pipe any more
    assert kinds(out / "sweep.partial.csv") == ["1f1b", "gpipe"]
    assert len(list(out.glob(".part-*"))) == 1
    assert run(file, "--out", out, "--set", "sweep=[{schedule.kind: [gpipe]}]", "--quiet") == (0, "", [])
    assert sorted(path.name for path in out.iterdir()) == ["sweep.csv", "sweep.html"]


@pytest.mark.slow
def test_interrupts_reach_tests_in_the_background():
    tests = f"{TESTS / 'interface/cli/test_cli.py'}::test_an_interrupt_disguised_as_another_error_is_an_interrupt"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", tests]
    shell = ["sh", "-c", 'trap "" INT && exec "$@"', "sh", *command]  # as `nohup … &` starts it
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_workers_that_are_interrupted_are_cleaned_up_in_silence(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error::BytesWarning")
    silence_the_tracker()
    silence_the_tracker()
    assert os.environ["PYTHONWARNINGS"] == "error::BytesWarning,ignore:resource_tracker"
    code = "import warnings\nfor text in ('resource_tracker: leaked', 'something else'):\n    warnings.warn(text)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert "something else" in told
    assert "leaked" not in told
