"""A worker that runs jobs; when it hangs, dies or grows old, another takes its place."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from typing import Any

from system.fuzzing import worker

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
        self._process = context.Process(target=worker.serve, args=(theirs,), daemon=True)
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
