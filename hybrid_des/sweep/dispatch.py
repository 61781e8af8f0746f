"""Dispatch of batches to workers that may be killed: the cases of a lost batch run again, one by one."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any, Protocol

from hybrid_des.errors import HybridDesError
from hybrid_des.sweep.axes import Case

Row = dict[str, Any]
RunBatch = Callable[[list[Case]], list[Row]]  # returns the rows of at least the first case

PATIENCE_S = 2  # without a result, before `waiting` is called


class Submits(Protocol):
    """The part of an executor that is used."""

    def submit(self, function: RunBatch, cases: list[Case], /) -> Future[list[Row]]:
        """Run a function elsewhere."""


class WorkersLostError(HybridDesError):
    """The executor of a sweep no longer runs anything."""

    exit_code = 1


@dataclass(frozen=True)
class Batch:
    """Cases that are sent together.

    Attributes:
        places: their numbers in the sweep.
        cases: the cases.
        again: whether its worker was lost once before.
    """

    places: Sequence[int]
    cases: list[Case]
    again: bool = False


def dispatch(
    run_batch: RunBatch,
    batches: Iterable[Batch],
    executors: Iterable[Submits],
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Row]]:
    """Yield the number and row of every case, as they arrive.

    Args:
        run_batch: runs the first cases of a batch, or all.
        batches: what to run.
        executors: each gets one batch at a time; an executor that takes several is listed several times.
        waiting: called when nothing has arrived for a while; may raise.

    Raises:
        WorkersLostError: an executor takes no more batches, or cancels one.
        HybridDesError: raised by `run_batch`. Any other exception is a lost worker.
    """
    queue, idle = deque(batches), list(executors)
    running: dict[Future[list[Row]], tuple[Batch, Submits]] = {}
    stopped: WorkersLostError | None = None  # raised once all earlier results have been yielded
    try:
        while running or (queue and stopped is None):
            try:
                while queue and idle and stopped is None:
                    future = _submit(idle[-1], run_batch, queue[0])
                    running[future] = queue.popleft(), idle.pop()
            except WorkersLostError as error:
                stopped = error
            done, _ = wait(running, timeout=PATIENCE_S, return_when=FIRST_COMPLETED)
            if running and not done:
                waiting()
            for future in done:
                batch, executor = running.pop(future)
                idle.append(executor)
                try:
                    rows, rest = _outcome(future, batch)
                except WorkersLostError as error:
                    stopped = stopped or error
                    continue
                queue.extendleft(rest)
                yield from zip(batch.places, rows, strict=False)
        if stopped is not None:
            raise stopped
    finally:
        for future in running:
            future.cancel()


def _submit(executor: Submits, run_batch: RunBatch, batch: Batch) -> Future[list[Row]]:
    try:
        return executor.submit(run_batch, batch.cases)
    except Exception as error:
        raise WorkersLostError(f"the workers of the sweep are lost: {_line(error)}") from error


def _outcome(future: Future[list[Row]], batch: Batch) -> tuple[list[Row], list[Batch]]:
    """The rows that a batch returned, and what remains to be run."""
    try:
        rows = future.result()
    except CancelledError as error:
        raise WorkersLostError("the workers of the sweep are lost: a batch was cancelled") from error
    except (HybridDesError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if batch.again:
            return [{"error": f"its worker was lost twice: {_line(error)}"} for _ in batch.cases], []
        return [], [Batch([place], [case], again=True) for place, case in zip(batch.places, batch.cases, strict=True)]
    left = len(rows)
    return rows, [Batch(batch.places[left:], batch.cases[left:])] if left < len(batch.cases) else []


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def split(cases: Sequence[Case], count: int) -> list[Batch]:
    """Batches of every `count`-th case: adjacent cases cost about the same, so batches do too."""
    return [Batch(range(i, len(cases), count), list(itertools.islice(cases, i, None, count))) for i in range(count)]
