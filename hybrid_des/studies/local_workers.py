"""Local worker processes of a sweep, which can be killed one by one and end with their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, Pipe
from typing import Any

TRACKER = "ignore:resource_tracker"  # a warning filter: the action, and how the message begins


def cores() -> int:
    """The number of cores that this process may use: affinity, a container's quota, or `LOKY_MAX_CPU_COUNT`."""
    from joblib import cpu_count

    return int(cpu_count())


class LocalWorker:
    """A joblib pool of one process, replaced if it is killed; a larger pool would lose all batches in progress."""

    def __init__(self, parent: Connection[Any, Any]) -> None:
        self._parent = parent
        self._pool: Executor | None = None

    def submit(self, function: Any, /, *arguments: Any) -> Future[Any]:
        """Run a function in the process, which is started if necessary."""
        from joblib.externals.loky import ProcessPoolExecutor

        if self._pool is not None:
            with contextlib.suppress(BrokenExecutor):
                return self._pool.submit(function, *arguments)
        pool: Executor = ProcessPoolExecutor(1, initializer=_prepare, initargs=(self._parent,))
        self._pool = pool
        with _interrupts_blocked():
            return pool.submit(function, *arguments)

    def stop(self, kill: bool) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=kill)  # type: ignore[call-arg]  # joblib's


@contextlib.contextmanager
def local_workers(count: int) -> Iterator[list[LocalWorker]]:
    """Yield workers, which are started when they are used; an error kills them."""
    silence_the_tracker()
    theirs, ours = Pipe(duplex=False)
    workers = [LocalWorker(theirs) for _ in range(count)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to kill subprocesses")  # workers have no subprocesses
        try:
            yield workers
            for worker in workers:
                worker.stop(kill=False)
        except BaseException:  # also a Ctrl-C while they end
            ours.close()
            for worker in workers:
                worker.stop(kill=True)
            raise
        finally:
            ours.close()
            theirs.close()


def silence_the_tracker() -> None:
    """Keep joblib's resource tracker from listing the locks that it cleans up after killed workers.

    It is a separate process, which reads its warning filters from the environment.
    """
    filters = [given for given in os.environ.get("PYTHONWARNINGS", "").split(",") if given]
    if TRACKER not in filters:
        os.environ["PYTHONWARNINGS"] = ",".join([*filters, TRACKER])


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Defer Ctrl-C, also in the processes that start here, which would respond to it with a traceback."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # starting it would unblock
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(parent: Connection[Any, Any]) -> None:
    """Leave Ctrl-C to the parent, and exit when the other end of a pipe is closed, as it is when the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            parent.recv()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
