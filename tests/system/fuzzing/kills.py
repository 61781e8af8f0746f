"""Sweeps whose workers or main process are killed at a random moment, and what is left of them.

A user-defined schedule notes every case that starts and the process that runs it, so that a moment is a number of
cases, and what was finished by then is known.
"""

import contextlib
import csv
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from support.interrupts import heed_interrupts
from support.local_cluster import local_cluster
from support.paths import ROOT

CASES = 80
BATCH = CASES // 16 + 1  # cases that a worker of two may hold back until they are returned together
SWEEP = f"""\
schedule: {{kind: noted, microbatches: 100}}
workload: {{forward: 1 s, backward: 2 s}}
parallel: {{pipeline: 4}}
sweep:
  - {{seed: [{", ".join(map(str, range(CASES)))}]}}
"""
NOTED = """\
import os

with open(os.environ["NOTES"], "a") as notes:
    notes.write("imported\\n")  # before what takes long to import

from hybrid_des.pipeline.schedules import find, schedule

@schedule("noted", summary="1F1B that is noted down", time="", memory="", source="")
def noted(request):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{os.getpid()}\\n")
    return find("1f1b").build(request)
"""
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")
TICK = 0.05


@dataclass(frozen=True)
class Kill:
    """What is killed, how, and after how many cases.

    Attributes:
        sweep: "jobs" or "dask"; "run": one simulation that writes files.
        target: "worker", "main", or "all" processes at once, as a terminal does on Ctrl-C.
        cases: how many cases have started by then.
        pause: seconds after that.
    """

    sweep: str
    target: str
    signal: str
    cases: int
    pause: float


def kill_of(seed: int, dask: bool) -> Kill:
    """The kill of a seed."""
    rng = Random(seed)
    sweep = rng.choice(("jobs", "jobs", "jobs", "run") + ("dask",) * dask)
    target = (
        "main" if sweep == "run" else rng.choice(("worker", "main", "all") if sweep == "jobs" else ("worker", "main"))
    )
    name = "SIGINT" if target == "all" else rng.choice(SIGNALS)
    pause = rng.random() * (2 if sweep == "run" else 0.2)
    return Kill(sweep, target, name, 0 if sweep == "run" else rng.randint(1, CASES - 10), round(pause, 3))


def wrong(kill: Kill, patience: float = 60) -> list[str]:
    """Run a sweep, kill, and say what went wrong: each line begins with what was killed and how."""
    with tempfile.TemporaryDirectory(prefix="kill-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "tmp").mkdir()
        (folder / "a.yaml").write_text(SWEEP, encoding="utf-8")
        (folder / "noted.py").write_text(NOTED, encoding="utf-8")
        notes = folder / "notes"
        notes.touch()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # this checkout's package
        environment = {**os.environ, "NOTES": str(notes), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": path}
        command = [sys.executable, "-m", "hybrid_des", "a.yaml", "--import", "noted.py", "--out", "o", "--quiet"]
        if kill.sweep == "dask":
            address, _ = stack.enter_context(local_cluster(folder, 2, environment))
            command += ["--dask", address]
        elif kill.sweep == "jobs":
            command += ["--jobs", "2"]
        else:
            command += ["--set", "sweep=none"]
        errors = stack.enter_context((folder / "errors").open("wb"))  # a pipe would end with the last worker only
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
        heed_interrupts()
        process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **options)
        stack.callback(process.wait)
        stack.callback(_end, process.pid)
        found = list(_killed(kill, process, notes, patience))
        return [f"{kill.sweep}, {kill.signal} to {kill.target}: {one}" for one in found]


def _killed(kill: Kill, process: subprocess.Popen[bytes], notes: Path, patience: float) -> Iterator[str]:
    if not _wait(lambda: _far_enough(kill, notes) or process.poll() is not None, 120):
        yield "nothing started within two minutes"
        return
    Event().wait(kill.pause)
    finished = _finished(_noted(notes))
    targets = _targets(kill, process, notes)
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[kill.signal])
    survives = kill.target == "worker"
    try:
        process.wait(timeout=120 if survives else patience)
    except subprocess.TimeoutExpired:
        yield "still running" if survives else f"still running after {patience:g} s"
        return
    yield from _left_running(process.pid, patience)
    errors = (notes.parent / "errors").read_text(encoding="utf-8", errors="replace")
    yield from _said(kill, process.returncode, errors)
    yield from _rows(kill, process.returncode, notes.parent / "o", finished)
    if kill.signal != "SIGKILL" or survives:
        left = [path.name for path in (notes.parent / "tmp").iterdir()] if kill.sweep != "dask" else []
        left += [path.name for path in (notes.parent / "o").rglob(".part-*")]
        if left:
            yield f"left behind: {', '.join(re.sub('[0-9a-f_]{6,}|[0-9]+', '…', name) for name in left[:3])}"


def _far_enough(kill: Kill, notes: Path) -> bool:
    """Whether this many cases have started; before the entry point is reached, Python itself handles Ctrl-C."""
    return notes.stat().st_size > 0 and len(_noted(notes)) >= kill.cases


def _noted(notes: Path) -> list[int]:
    """The process of every case that has started."""
    return [int(line) for line in notes.read_text(encoding="utf-8").splitlines() if line.isdecimal()]


def _finished(started: list[int]) -> int:
    """How many rows must have been returned: those that a process started more than a batch ago."""
    return sum(max(0, started.count(pid) - 2 * BATCH) for pid in set(started))


def _targets(kill: Kill, process: subprocess.Popen[bytes], notes: Path) -> list[int]:
    if kill.target == "main":
        return [process.pid]
    if kill.target == "all":
        return _session(process.pid)
    return [
        pid for pid in dict.fromkeys(reversed(_noted(notes))) if pid != process.pid and Path(f"/proc/{pid}").exists()
    ][:1]


def _session(leader: int) -> list[int]:
    """The processes of a session, without those that have ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def _left_running(leader: int, patience: float) -> Iterator[str]:
    if not _wait(lambda: not _session(leader), patience):
        yield f"{len(_session(leader))} processes are left after {patience:g} s"


def _said(kill: Kill, code: int, errors: str) -> Iterator[str]:
    lines = errors.splitlines()
    if kill.signal == "SIGKILL" and kill.target == "main":
        return
    if "Traceback" in errors:
        yield f"a traceback: {re.sub('[0-9]+', '…', lines[-1])[:100]}"
    elif len(lines) > 3:
        yield f"{len(lines)} lines on stderr: {re.sub('[0-9]+', '…', lines[0])[:100]}"
    if kill.target == "worker":
        codes = {0, 1, 2}
    else:
        codes = {130, -signal.SIGINT, 0} if kill.signal == "SIGINT" else {-signal.SIGTERM, 128 + signal.SIGTERM, 0}
    if code not in codes:
        yield f"exit code {code}"


def _rows(kill: Kill, code: int, folder: Path, finished: int) -> Iterator[str]:
    """Rows that were finished are in the table; a sweep that succeeds has them all."""
    if kill.sweep == "run":
        return
    tables = [folder / name for name in ("sweep.csv", "sweep.partial.csv") if (folder / name).exists()]
    rows: list[Any] = []
    for table in tables[:1]:
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    good = sum(not row.get("error") and bool(row.get("step_time_s")) for row in rows)
    if code == 0 and good < CASES:
        yield f"only {good} of {CASES} rows, though it succeeds"
    elif good < finished:
        yield "finished rows are lost"


def _end(leader: int) -> None:
    """End whatever is left of a session that was started here."""
    for pid in _session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _wait(done: Any, seconds: float) -> bool:
    """Wait until something is so; whether it is."""
    for _ in range(int(seconds / TICK)):
        if done():
            return True
        Event().wait(TICK)
    return bool(done())
