"""Tasks in copies of this process: they inherit what they work on, and only their results are sent.

    this process    a pipe with the numbers of all tasks ──►  copies, each of which takes the next one when it is free
                    a pipe per copy                      ◄──  number and result, pickled

What a copy does not return (it was killed, its task raised, its result cannot be pickled) is run here. Copies end with
this process. Where processes cannot be copied safely, which is everywhere but on Linux, all tasks run here.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import selectors
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from hybrid_des.analysis.tasks import AtOnce, Task, in_turn
from hybrid_des.studies.local_workers import cores

NUMBER = struct.Struct("=I")  # of a task; size of a pickled result
CHUNK = 1 << 16  # bytes
MOST = 8192  # tasks whose numbers a pipe takes at once


class Copy:
    """A copy of this process.

    Attributes:
        pid: its process.
        pipe: where its results arrive.
        received: what has arrived.
    """

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self.pipe, self.received = pid, pipe, bytearray()

    def results(self) -> Iterator[tuple[int, Any]]:
        """The results that have arrived completely, with their tasks' numbers."""
        while len(self.received) >= NUMBER.size:
            (size,) = NUMBER.unpack_from(self.received)
            end = NUMBER.size + size
            if len(self.received) < end:
                return
            yield pickle.loads(self.received[NUMBER.size : end])
            del self.received[:end]


def forked(jobs: int | None = None) -> AtOnce:
    """Run tasks in so many copies of this process, by default one per core; with one, in this process."""
    return partial(_run, jobs)


def _run(jobs: int | None, tasks: Sequence[Task]) -> list[Any]:
    if jobs == 1 or not 1 < len(tasks) <= MOST or sys.platform != "linux":
        return in_turn(tasks)
    if (count := min(jobs or cores(), len(tasks))) == 1:
        return in_turn(tasks)
    results: dict[int, Any] = {}
    with _copies(count, tasks) as copies, selectors.DefaultSelector() as selector:
        for copy in copies:
            selector.register(copy.pipe, selectors.EVENT_READ, copy)
        while selector.get_map():
            for key, _ in selector.select():
                received = os.read(key.data.pipe, CHUNK)
                if not received:
                    selector.unregister(key.data.pipe)
                key.data.received += received
                results |= key.data.results()
    return [results[number] if number in results else task() for number, task in enumerate(tasks)]


@contextlib.contextmanager
def _copies(count: int, tasks: Sequence[Task]) -> Iterator[list[Copy]]:
    """Copies of this process that work on tasks; those that are still there at the end are killed."""
    numbers, todo = os.pipe()
    os.write(todo, b"".join(map(NUMBER.pack, range(len(tasks)))))
    os.close(todo)
    alive, here = os.pipe()
    copies: list[Copy] = []
    gc.collect()
    gc.freeze()  # what is here is not touched in copies, whose memory it would cost
    try:
        for _ in range(count):
            pipe, theirs = os.pipe()
            with warnings.catch_warnings():  # a thread that shows progress has nothing that a copy uses
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                os.close(here)
                _work(alive, numbers, theirs, tasks)
            os.close(theirs)
            copies.append(Copy(pid, pipe))
        yield copies
    finally:
        gc.unfreeze()
        for copy in copies:
            os.close(copy.pipe)
            with contextlib.suppress(ProcessLookupError):
                os.kill(copy.pid, signal.SIGKILL)
            os.waitpid(copy.pid, 0)
        for pipe in (numbers, alive, here):
            os.close(pipe)


def _work(alive: int, numbers: int, results: int, tasks: Sequence[Task]) -> NoReturn:
    """Run tasks in a copy until none is left, then end it."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=partial(_end_with, alive), daemon=True).start()
        while number := os.read(numbers, NUMBER.size):
            (task,) = NUMBER.unpack(number)
            with contextlib.suppress(Exception):
                _send(results, pickle.dumps((task, tasks[task]())))
    finally:
        os._exit(0)


def _send(pipe: int, result: bytes) -> None:
    rest = memoryview(NUMBER.pack(len(result)) + result)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _end_with(alive: int) -> None:
    """End this copy as soon as the other end of a pipe is closed, as it is when the original exits."""
    os.read(alive, 1)
    os._exit(1)
