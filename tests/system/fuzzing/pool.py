"""Workers that run jobs; one that hangs, dies or grows old is replaced."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from system.fuzzing import worker

PATIENCE = 120  # seconds without an answer, far more than the processor time that a job may take
OLD = 3000  # jobs, after which a worker is replaced, so that what libraries keep does not pile up


class Worker:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self.process = context.Process(target=worker.serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.jobs = 0

    def answer(self) -> Any:
        """The answer to the job sent last, or what became of the worker: "hang" or "died"."""
        if not self.pipe.poll(PATIENCE):
            return "hang"
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return "died"

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(1)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


class Pool:
    """A pool of workers; a job is anything that a worker accepts."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._idle:
            one.stop()

    def one(self, job: Any) -> Any:
        """Run one job."""
        return next(iter(self.map([job])))[1]

    def map(self, jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Run all jobs; yields each with its answer, as they are done."""
        waiting = iter(jobs)
        busy: dict[Connection, tuple[Worker, Any]] = {}
        while True:
            while len(busy) < self._size and (job := next(waiting, None)) is not None:
                one = self._idle.pop() if self._idle else Worker()
                one.jobs += 1
                one.pipe.send(job)
                busy[one.pipe] = one, job
            if not busy:
                return
            ready = wait(list(busy), PATIENCE)
            for pipe in ready or list(busy):
                one, job = busy.pop(pipe)
                answer = one.answer() if ready else "hang"
                if answer in ("hang", "died") or one.jobs >= OLD:
                    one.stop()
                else:
                    self._idle.append(one)
                yield job, answer


Run = Callable[[Any], Any]
