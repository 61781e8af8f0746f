"""A pool of workers that may be killed: the items of a lost task run again, one by one.

with open_pool(jobs=2) as pool:
    for place, result in pool.map(function, items, lost):      # as they finish
        ...

Sweeps, runs over seeds, replications of weeks and corpora map a function over items known ahead; a search decides after
every result what is next (`Pool.run`).

Local workers are processes, which can be killed one by one and end with their parent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hybrid_des.errors import HybridDesError
from hybrid_des.registry import import_file
from hybrid_des.simulation.watch import BudgetSpentError

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


SHARES = 8  # fewest tasks per worker, so that workers finish at about the same time


MOST_ITEMS = 32  # of a task: enough to amortize the transfer, few enough to balance the load


LONGEST_S = 0.5  # of a task of short items: as much is lost when its worker is killed


PATIENCE_S = 1.0  # without a result, before `waiting` is called


LOST = "its worker was lost twice"


Progress = Callable[[int, int], None]  # items done, items in total


Lost = Callable[[Any, BaseException], Any]  # an item whose worker was lost twice, and the last error → its result


class Submits(Protocol):
    """The part of an executor that is used."""

    def submit(self, function: Callable[[Sequence[Any]], list[Any]], items: Sequence[Any], /) -> Future[list[Any]]:
        """Run a function elsewhere."""


class WorkersLostError(HybridDesError):
    """An executor no longer runs anything."""

    exit_code = 1


class Task(NamedTuple):
    """Items that are sent together.

    Attributes:
        function: item → result.
        items: at least one.
        keys: what tells their results apart; they stay in this process.
        again: whether its worker was lost once before.
    """

    function: Callable[[Any], Any]
    items: Sequence[Any]
    keys: Sequence[Any]
    again: bool = False


@dataclass(frozen=True)
class Pool:
    """Workers, each with one task at a time; without workers, tasks run in this process.

    Attributes:
        workers: executors; one that takes several tasks at a time is listed several times.
        imports: user-defined plug-in files that workers import first.
        progress: called by `map` with (items done, items in total).
        waiting: called every second in which nothing finishes; may raise.
        until: the monotonic time at which to stop.
    """

    workers: Sequence[Submits] = ()
    imports: Sequence[str] = ()
    progress: Progress | None = None
    waiting: Callable[[], None] = lambda: None
    until: float = inf

    def map(
        self, function: Callable[[Any], Any], items: Sequence[Any], lost: Lost
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield the place and the result of every item, as they finish.

        Raises:
            WorkersLostError: an executor takes no more tasks, or cancels one.
            HybridDesError: raised by the function. Any other exception on a worker is a lost worker.
        """
        count = len(items)
        if distinct := len(set(self.workers)):  # adjacent items cost about the same: every count-th one
            count = min(count, max(SHARES * distinct, -(-count // MOST_ITEMS)))
        places = (range(first, len(items), count) for first in range(count))
        tasks = (Task(function, list(itertools.islice(items, at.start, None, count)), at) for at in places)
        done = itertools.count(1)
        with closing(self.run(lambda: next(tasks, None), lost)) as finished:
            for task, results in finished:
                for key, result in zip(task.keys, results, strict=False):
                    if self.progress is not None:
                        self.progress(next(done), len(items))
                    yield key, result

    def run(self, next_task: Callable[[], Task | None], lost: Lost) -> Generator[tuple[Task, list[Any]], None, None]:
        """Yield every task with the results of its items; of a long one, the rest comes later as a task of its own.

        Args:
            next_task: the next one, None if there is none at present; asked whenever a worker is free.
            lost: the result of an item whose worker was lost twice; may raise.

        Raises:
            WorkersLostError: an executor takes no more tasks, or cancels one; earlier results are yielded first.
            BudgetSpentError: it is later than `until`.
        """
        if not self.workers:
            while task := next_task():
                self._check_time()
                yield task, [task.function(item) for item in task.items]
            return
        idle, begun = list(self.workers), deque[Task]()
        running: dict[Future[list[Any]], tuple[Task, Submits]] = {}
        stopped: WorkersLostError | None = None
        try:
            while True:
                while idle and stopped is None and (task := begun.popleft() if begun else next_task()):
                    self._check_time()
                    worker = idle.pop()
                    try:
                        running[self._submit(worker, task)] = task, worker
                    except WorkersLostError as error:
                        stopped = error
                if not running:
                    break
                for future in self._finished(running):
                    task, worker = running.pop(future)
                    idle.append(worker)
                    try:
                        results, rest = _outcome(future, task, lost)
                    except WorkersLostError as error:
                        stopped = stopped or error
                        continue
                    begun.extendleft(rest)
                    yield task, results
            if stopped is not None:
                raise stopped
        finally:
            for future in running:
                future.cancel()

    def _check_time(self) -> None:
        if time.monotonic() >= self.until:
            raise BudgetSpentError

    def _submit(self, worker: Submits, task: Task) -> Future[list[Any]]:
        files = tuple(str(Path(file).resolve()) for file in self.imports)  # workers may have other working folders
        try:
            return worker.submit(partial(_work, files, task.function), task.items)
        except Exception as error:
            raise WorkersLostError(f"the workers are lost: {line_of(error)}") from error

    def _finished(self, running: dict[Future[list[Any]], Any]) -> set[Future[list[Any]]]:
        """The tasks that finish within a second."""
        left = self.until - time.monotonic()
        done, _ = wait(running, timeout=max(0, min(PATIENCE_S, left)), return_when=FIRST_COMPLETED)
        if not done:
            self._check_time()
            self.waiting()
        return done


@contextmanager
def open_pool(jobs: int = 1, executor: Executor | None = None, *, slots: int = 1, **how: Any) -> Iterator[Pool]:
    """Yield a pool.

    Args:
        jobs: local worker processes; 1 runs in this process, unless there is a time limit.
        executor: instead of `jobs`, anything with the `submit` of `concurrent.futures`.
        slots: tasks that the executor takes at a time.
        how: `imports`, `progress`, `waiting` and `until` of `Pool`.
    """
    if executor is not None:
        yield Pool([executor] * slots, **how)
    elif jobs <= 1 and how.get("until", inf) == inf:
        yield Pool(**how)
    else:
        with local_workers(jobs) as workers:
            yield Pool(workers, **how)


def _work(imports: Sequence[str], function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Run items in a worker; after `LONGEST_S` it returns the results that it has, at least one."""
    for path in imports:
        import_file(path)
    results: list[Any] = []
    until = time.monotonic() + LONGEST_S
    for item in items:
        results.append(function(item))
        if time.monotonic() >= until:
            break
    return results


def _outcome(future: Future[list[Any]], task: Task, lost: Lost) -> tuple[list[Any], list[Task]]:
    """The results that a task returned, and what remains to be run."""
    try:
        results = future.result()
    except CancelledError as error:
        raise WorkersLostError("the workers are lost: a task was cancelled") from error
    except (HybridDesError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if task.again:
            return [lost(item, error) for item in task.items], []
        pairs = zip(task.items, task.keys, strict=True)
        return [], [Task(task.function, [item], [key], again=True) for item, key in pairs]
    rest = task._replace(items=task.items[len(results) :], keys=task.keys[len(results) :])
    return results, [rest] if rest.items else []


def line_of(error: BaseException) -> str:
    """An error as one line: its type, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
