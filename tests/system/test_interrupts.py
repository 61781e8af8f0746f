"""Ctrl-C ends a run or a sweep in one line, with exit code 130, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hybrid_des.sweep.runner import silence_the_tracker

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

@collective("announced", summary="a ring that says when the first one starts")
def ring(group, buffer):
    if not announced:
        announced.append(True)
        os.write(1, b"started\\n")
    yield from find("ring").build(group, buffer)
"""
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


def interrupted(*arguments, workers=1):
    """Run the command until every worker has printed that it started, press Ctrl-C as a terminal does."""
    command = [sys.executable, "-m", "hybrid_des", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        started = [process.stdout.readline() for _ in range(workers)]
        if all(started):
            os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert started == ["started\n"] * workers, errors
    return process.returncode, errors.splitlines()


def test_an_interrupted_run_leaves_nothing_behind(write, tmp_path):
    file, mine = write(RUN), write(ANNOUNCED, "mine.py")
    assert interrupted(file, "--import", mine, "--out", tmp_path / "o", "--quiet") == (130, ["interrupted"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "mine.py"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupted_sweep_leaves_nothing_behind(write, tmp_path, jobs):
    file, mine = write(SWEEP), write(ENDLESS, "mine.py")
    arguments = ["--import", mine, "--jobs", jobs, "--out", tmp_path / "o" / "p", "--quiet"]
    assert interrupted(file, *arguments, workers=jobs) == (130, ["interrupted"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "mine.py"]


def test_workers_that_are_interrupted_are_cleaned_up_in_silence(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error::BytesWarning")
    silence_the_tracker()
    silence_the_tracker()
    assert os.environ["PYTHONWARNINGS"] == "error::BytesWarning,ignore:resource_tracker"
    code = "import warnings; warnings.warn('resource_tracker: leaked'); warnings.warn('something else')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert "something else" in told
    assert "leaked" not in told
