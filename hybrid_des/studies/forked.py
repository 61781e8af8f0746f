"""Tasks in copies of this process: they inherit what they work on, and only their results are sent.

    this process    a pipe with the numbers of all tasks ──►  copies, each of which takes the next one when it is free
                    a pipe per copy                      ◄──  number and result, pickled

What a copy does not return (it was killed, its task raised, its result cannot be pickled) is run here. Copies end with
this process, and before what a signal raises here goes on its way. Where processes cannot be copied safely, which is
everywhere but on Linux, all tasks run here; also in daemonic processes, which are to have no children.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from hybrid_des.analysis.tasks import AtOnce, LocalTask, Task
from hybrid_des.studies.pool import cores

NUMBER = struct.Struct("=I")  # of a task
MOST = 8192  # tasks whose numbers a pipe takes at once
LOOK_S = 0.1  # seconds after which to look for what signals have raised
Told = Callable[[int, int], None]  # is told how many of how many tasks are done
RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM) if sys.platform == "linux" else ()  # signals with handlers


class Copy(NamedTuple):
    """A copy of this process, and where its results arrive, with their tasks' numbers."""

    pid: int
    pipe: Connection[Any, Any]


def nobody(done: int, of: int) -> None:
    """Nobody is told."""


def forked(jobs: int | None = None, told: Told = nobody) -> AtOnce:
    """Run tasks in so many copies of this process, by default one per core; with one, in this process."""
    return partial(_run, jobs, told)


def _run(jobs: int | None, told: Told, tasks: Sequence[Task]) -> list[Any]:
    results: dict[int, Any] = {}
    elsewhere = _elsewhere(tasks)
    if 1 < len(elsewhere) <= MOST and _may_copy() and (count := min(jobs or cores(), len(elsewhere))) > 1:
        with _raised_later() as raised:
            results = _of_copies(count, tasks, raised, told)
    done = len(results.keys() & elsewhere)
    for number, task in enumerate(tasks):
        if number not in results:
            results[number] = task()
            if number in elsewhere:
                done += 1
                told(done, len(elsewhere))
    return [results[number] for number in range(len(tasks))]


def _elsewhere(tasks: Sequence[Task]) -> set[int]:
    """The numbers of the tasks that copies may run."""
    return {number for number, task in enumerate(tasks) if not isinstance(task, LocalTask)}


def _may_copy() -> bool:
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


@contextlib.contextmanager
def _raised_later() -> Iterator[Sequence[BaseException]]:
    """Keep what handlers of signals raise, and raise the first at the end: a copy just made or ended is not lost.

    A task that runs here meanwhile neither makes nor ends copies, and may take long: it is interrupted at once.
    """
    raised: list[BaseException] = []

    def kept(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            if _is_in_task(frame):
                raise
            raised.append(error)

    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # in which alone handlers run
            for number in RAISING:
                if callable(handler := signal.getsignal(number)):
                    signal.signal(number, partial(kept, handler))
                    stack.callback(signal.signal, number, handler)
        yield raised
    if raised:
        raise raised[0]


def _is_in_task(frame: FrameType | None) -> bool:
    """Whether a task that is to be left here is running."""
    while frame is not None and frame.f_code is not LocalTask.__call__.__code__:
        frame = frame.f_back
    return frame is not None


def _of_copies(count: int, tasks: Sequence[Task], raised: Sequence[BaseException], told: Told) -> dict[int, Any]:
    """The results of tasks that copies have finished, by number; those until a signal has raised something.

    What is to be left here is run as soon as there are copies.
    """
    results: dict[int, Any] = {}
    with _copies(count, tasks) as copies:
        here = sorted(set(range(len(tasks))) - _elsewhere(tasks)) if copies else []
        for number in here:
            if not raised:
                tasks[number]()
        pipes = [copy.pipe for copy in copies]
        while pipes and not raised:
            ready = wait(pipes, LOOK_S)
            for pipe in [pipe for pipe in pipes if pipe in ready]:
                try:
                    number, result = pipe.recv()
                except (EOFError, OSError):  # it has ended
                    pipes.remove(pipe)
                else:
                    results[number] = result
                    told(len(results), len(tasks) - len(here))
    return results | dict.fromkeys(here)


@contextlib.contextmanager
def _copies(count: int, tasks: Sequence[Task]) -> Iterator[list[Copy]]:
    """Copies of this process that work on tasks; those that are still there at the end are killed."""
    numbers, todo = os.pipe()
    os.write(todo, b"".join(map(NUMBER.pack, sorted(_elsewhere(tasks)))))
    os.close(todo)
    alive, here = os.pipe()
    copies: list[Copy] = []
    gc.freeze()  # else copies would touch, and so copy, all objects when they look for garbage
    with contextlib.suppress(OSError, AttributeError):  # give back what was freed, which GNU's C library keeps
        ctypes.CDLL(None).malloc_trim(0)
    try:
        with contextlib.suppress(OSError):  # no further process is to be had
            while len(copies) < count:
                copies.append(_copied(alive, here, numbers, tasks))
        yield copies
    finally:
        gc.unfreeze()
        for copy in copies:
            copy.pipe.close()
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(copy.pid, signal.SIGKILL)
                os.waitpid(copy.pid, 0)
        for pipe in (numbers, alive, here):
            os.close(pipe)


def _copied(alive: int, here: int, numbers: int, tasks: Sequence[Task]) -> Copy:
    """A copy of this process that works on tasks.

    Raises:
        OSError: there is none.
    """
    pipe, theirs = Pipe(duplex=False)
    try:
        with warnings.catch_warnings():  # a thread that shows progress has nothing that a copy uses
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:
        pipe.close()
        theirs.close()
        raise
    if not pid:
        os.close(here)
        _work(alive, numbers, theirs, tasks)
    theirs.close()
    return Copy(pid, pipe)


def _work(alive: int, numbers: int, results: Connection[Any, Any], tasks: Sequence[Task]) -> NoReturn:
    """Run tasks in a copy until none is left, then end it."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=partial(_end_with, alive), daemon=True).start()
        while number := os.read(numbers, NUMBER.size):
            (task,) = NUMBER.unpack(number)
            with contextlib.suppress(Exception):
                results.send((task, tasks[task]()))
    finally:
        os._exit(0)


def _end_with(alive: int) -> None:
    """End this copy as soon as the other end of a pipe is closed, as it is when the original exits."""
    os.read(alive, 1)
    os._exit(1)
