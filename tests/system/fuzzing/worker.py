"""A process that runs cases one after the other through the entry point, each within limits on time and memory.

Output is taken from the file descriptors, as a shell would. A case that exceeds its processor time gets an exception
that no handler expects, so that the traceback says where it was.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from support import registries
from system.fuzzing.case import Case, Outcome, as_bytes

from hybrid_des.cli.main import main

SECONDS = 10  # of processor time for one case
BYTES = 2 * 2**30  # beyond what the process holds
LONGEST_OUTPUT = 2_000_000


class OutOfTimeError(BaseException):
    """Not an `Exception`, so that nothing takes it for an error of its own."""


def serve(connection: Connection) -> None:
    """Run jobs from a pipe until it closes: a case, or a scenario whose timeline is wanted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        while True:
            try:
                job = connection.recv()
            except EOFError:
                return
            connection.send(job.run(Path(folder)) if hasattr(job, "run") else run(job, Path(folder)))


def warm_up() -> None:
    """Import what cases need, so that the first one is not charged for it."""
    import matplotlib.figure  # noqa: F401
    import numpy  # noqa: F401
    import pandas  # noqa: F401

    import hybrid_des.result
    import hybrid_des.sweep  # noqa: F401


@contextlib.contextmanager
def out_of_memory() -> Iterator[None]:
    """Allow this much more memory than the process has now; afterwards the outcome is reported without a limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run(case: Case, folder: Path) -> Outcome:
    """Run one case in a fresh folder inside `folder`."""
    place = Path(tempfile.mkdtemp(dir=folder))
    before = Path.cwd()
    try:
        case.lay_out(place)
        os.chdir(place)
        return _call(case, place)
    finally:
        os.chdir(before)
        shutil.rmtree(place, ignore_errors=True)


def _call(case: Case, place: Path) -> Outcome:
    code, raised, stopped = None, "", ""
    with _streams(case.stdin) as texts:
        try:
            with registries.scratch(), _program(), warnings.catch_warnings(), out_of_memory(), out_of_time(SECONDS):
                for kind in (UserWarning, RuntimeWarning, FutureWarning, SyntaxWarning):
                    warnings.simplefilter("always", kind)
                code = main(list(case.argv))
        except OutOfTimeError:
            raised, stopped = traceback.format_exc(), "slow"
        except BaseException:  # whatever it is, it would have been a traceback
            raised = traceback.format_exc()
    left = sorted({path.name for path in place.rglob("*")} - set(case.files))
    return Outcome(code, *texts, raised=raised[-20_000:], stopped=stopped, made=tuple(left))


@contextlib.contextmanager
def _program() -> Iterator[None]:
    before, sys.argv = sys.argv, ["hybrid-des"]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def out_of_time(seconds: float) -> Iterator[None]:
    """Raise `OutOfTimeError` after this much processor time, and again every second if it is swallowed."""

    def ring(number: int, frame: Any) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def _streams(stdin: str) -> Iterator[list[str]]:
    """Put files in place of the standard streams; the list holds what stdout and stderr got, afterwards."""
    texts: list[str] = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(as_bytes(stdin))
        files[0].seek(0)
        kept = [os.dup(number) for number in range(3)]
        streams = sys.stdin, sys.stdout, sys.stderr
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 (closed with their descriptors)
            for number, mode in enumerate("rww")
        )
        try:
            yield texts
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            sys.stdin, sys.stdout, sys.stderr = streams
            for number, copy in enumerate(kept):
                os.dup2(copy, number)
                os.close(copy)
            texts += [_content(file) for file in files[1:]]


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(LONGEST_OUTPUT).decode("utf-8", "replace")
