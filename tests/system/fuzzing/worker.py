"""A process that runs cases one after the other through the entry point, each within limits on time and memory.

Output is taken from the file descriptors, as a shell would. A case that exceeds its processor time gets an exception
that no handler expects, so that the traceback says where it was. A worker that hangs, dies or grows old is replaced.
"""

import contextlib
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from support import registries
from system.fuzzing.recount import differences

from hybrid_des.interface.cli.main import main


@dataclass(frozen=True)
class Case:
    """Texts may hold lone surrogates, which stand for bytes that are not UTF-8 (`surrogateescape`)."""

    argv: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""

    def lay_out(self, folder: Path) -> None:
        """Write the files."""
        for name, text in self.files.items():
            (folder / name).write_bytes(as_bytes(text))


@dataclass(frozen=True)
class Outcome:
    """What a call did.

    Attributes:
        code: what it returned; None if it raised or had to be stopped.
        raised: the traceback of an exception that left the entry point, innermost call last.
        stopped: why it had to be stopped: "slow", "hang" or "died".
        made: files and folders that it left in its folder.
    """

    code: int | None
    out: str = ""
    err: str = ""
    raised: str = ""
    stopped: str = ""
    made: tuple[str, ...] = ()


def as_bytes(text: str) -> bytes:
    """UTF-8, with the bytes that lone surrogates stand for; other surrogates become question marks."""
    encodable = not re.search("[\ud800-\udc7f\udd00-\udfff]", text)
    return text.encode("utf-8", "surrogateescape" if encodable else "replace")


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
    import hybrid_des.studies.sweep  # noqa: F401


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


ALGORITHM = "refused: "
MAY_REFUSE = ("in-switch: ", "hierarchical: ")  # which groups they take depends on the nodes


@dataclass(frozen=True)
class Simulated:
    """A scenario as a mapping; running it gives what is wrong, or that the package refuses it."""

    values: Mapping[str, Any]

    def run(self, folder: Path) -> list[str]:
        """Simulate and recount."""
        from hybrid_des import load, simulate
        from hybrid_des.errors import HybridDesError
        from hybrid_des.pipeline.order_csv import write_order

        try:
            with out_of_time(SECONDS):
                result = simulate(load(self.values))
                timeline = result.timeline.to_csv(index=False)
                order, summary = write_order(result.plan), result.summary
        except HybridDesError as error:
            return [f"{ALGORITHM}{error}"]
        except OutOfTimeError:
            return ["slow"]
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return [f"traceback: {type(error).__name__} in {Path(place.filename).name} {place.name}"]
        return differences(self.values, order, timeline, summary)


def refused(found: Sequence[str]) -> bool:
    """Whether an algorithm does not take the groups of a scenario, which is no failure."""
    return bool(found) and found[0].startswith(tuple(ALGORITHM + name for name in MAY_REFUSE))


def gist(difference: str) -> str:
    """A difference without its numbers, so that those of one kind read alike."""
    return re.sub(r"-?\d[\d./e+-]*", "…", difference)[:90]


PATIENCE = 120  # seconds without an answer, far more than the processor time that a job may take
OLD = 3000  # jobs, after which a worker is replaced, so that what libraries keep does not pile up


class Pool(contextlib.AbstractContextManager["Pool"]):
    """A process and the pipe to it; a job is anything that `worker` accepts."""

    def __init__(self) -> None:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self._jobs = 0

    def __exit__(self, *_: object) -> None:
        if self._jobs:
            self._stop()

    def run(self, job: Any) -> Any:
        """The answer to a job, or what became of the worker: "hang" or "died"."""
        if not self._jobs:
            self._start()
        self._jobs += 1
        self._pipe.send(job)
        answer = self._answer()
        if answer in ("hang", "died") or self._jobs >= OLD:
            self._stop()
        return answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _answer(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            return "hang"
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            return "died"

    def _stop(self) -> None:
        self._pipe.close()
        self._process.join(1)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._jobs = 0
