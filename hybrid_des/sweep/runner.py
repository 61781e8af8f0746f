"""Execution of sweeps: in this process, in batches over local workers, or over a given executor."""

import contextlib
import copy
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from hybrid_des.errors import HybridDesError, UsageError
from hybrid_des.options import describe
from hybrid_des.registry import import_file
from hybrid_des.scenario import Scenario, scenario_of
from hybrid_des.scenario.composition import OMITTED, put
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.sweep.axes import Case, Sweep
from hybrid_des.sweep.dispatch import Row, Submits, dispatch, split
from hybrid_des.sweep.journal import columns
from hybrid_des.sweep.local_workers import cores, local_workers
from hybrid_des.sweep.rows import is_key, plain

if TYPE_CHECKING:
    from hybrid_des.renewal.states import Kind

ProgressCallback = Callable[[int, int], None]  # cases done, cases in total

BATCH = 32  # most cases per batch: enough to amortize the transfer, few enough to balance the load
SHARES = 8  # fewest batches per worker
LONGEST_S = 0.5  # of a batch of short cases: as much is lost when its worker is killed
WORTH_A_WORKER = 200  # cases that take about as long as starting a worker


def jobs_for(sweep: Sweep) -> int:
    """Number of local workers for a sweep of this size."""
    return max(1, min(cores(), len(sweep) // WORTH_A_WORKER))


def sweep_rows(
    sweep: Sweep,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    workers: Sequence[Submits] = (),
    progress: ProgressCallback | None = None,
    finished: Callable[[int, Row], None] = lambda place, row: None,
    waiting: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Simulate every case; returns one row per case, in the order of `Sweep.cases`.

    Args:
        sweep: what to run.
        jobs: local worker processes; 1 runs in this process.
        executor: instead of `jobs`, anything with the `submit` of `concurrent.futures`, such as a Dask client's
            executor. Its workers read the files of `imports` themselves.
        workers: instead of `jobs`, those of `local_workers`, for several consecutive sweeps.
        progress: called with (cases done, cases in total) whenever a case finishes.
        finished: called with the number and the row of every case when it finishes, to save rows before an interrupt.
        waiting: called every few seconds in which workers finish nothing; may raise to end the sweep.

    A row holds the swept paths and the keys of the summary, or the paths and `error`. A case whose worker is lost runs
    again; if that worker is lost too, the row says so.

    Raises:
        UsageError: the first row lacks a plotted column, a file to import fails, or the executor has no `submit`.
        WorkersLostError: the executor no longer runs anything.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise UsageError(f"executor: {type(executor).__name__} has no submit(), as those of concurrent.futures have")
    for path in sweep.imports:
        import_file(path)
    cases = list(sweep.cases())
    rows: list[Row] = [{}] * len(cases)
    unchecked = sweep.picture
    with contextlib.ExitStack() as stack:
        if jobs > 1 and not workers and executor is None:
            workers = stack.enter_context(local_workers(min(jobs, len(cases))))
        arriving = stack.enter_context(contextlib.closing(_rows(sweep, cases, executor, workers, waiting)))
        for done, (place, row) in enumerate(arriving, start=1):
            row = plain(cases[place]) | row
            rows[place] = row
            if progress is not None:
                progress(done, len(cases))
            if unchecked is not None and "error" not in row:
                unchecked.check(columns(row))
                unchecked = None
            finished(place, row)
    return rows


def _rows(
    sweep: Sweep, cases: list[Case], executor: Executor | None, workers: Sequence[Submits], waiting: Callable[[], None]
) -> Generator[tuple[int, Row], None, None]:
    """The number and row of every case, as they finish."""
    if executor is None and not workers:
        last = _LastStep()
        yield from enumerate(_run_case(sweep.document, case, last) for case in cases)
        return
    batches = split(cases, min(len(cases), max(SHARES * max(1, len(workers)), -(-len(cases) // BATCH))))
    task = partial(_run_batch, sweep.document, sweep.imports)
    if executor is not None:
        yield from dispatch(task, batches, [executor] * len(batches), waiting)
        return
    yield from dispatch(task, batches, workers, waiting)


def _run_batch(document: Document, imports: Sequence[str], cases: Sequence[Case]) -> list[Row]:
    """Simulate cases in a worker; after `LONGEST_S` it returns the rows that it has, at least one."""
    for path in imports:
        import_file(path)
    rows: list[Row] = []
    last = _LastStep()
    until = time.monotonic() + LONGEST_S
    for case in cases:
        rows.append(_run_case(document, case, last))
        if time.monotonic() >= until:
            break
    return rows


class _LastStep:
    """The step that was simulated last: neighbouring cases that differ in `faults` alone share it."""

    def __init__(self) -> None:
        self._scenario: Scenario | None = None
        self._row: Row = {}
        self._times: dict[Kind, int] = {}

    def row(self, scenario: Scenario) -> Row:
        """The summary of a scenario, and of its weeks if it has `faults`."""
        from hybrid_des.analysis.metrics import summary
        from hybrid_des.renewal.states import Steps
        from hybrid_des.renewal.summary import goodput_columns
        from hybrid_des.simulation.run import run

        step = scenario.model_copy(update={"record": "compute", "faults": None})  # a row needs no messages
        if scenario.faults is None:
            return dict(summary(run(step)))
        if step != self._scenario:
            self._scenario, self._row, self._times = step, dict(summary(run(step))), {}
        steps = Steps(scenario, self._times)
        columns = goodput_columns(steps)
        self._times = steps.times
        return self._row | columns


def _run_case(document: Document, case: Case, last: _LastStep) -> Row:
    """The summary of a case, or any exception as its `error`."""
    try:
        return last.row(scenario_of(with_case(document, case)))
    except HybridDesError as error:
        return {"error": str(error).splitlines()[0]}
    except Exception as error:  # a bug in one case must not affect the others
        return {"error": f"{type(error).__name__}: {error}"}


def with_case(document: Document, case: Case, block: str = "sweep") -> Document:
    """The document with the values of a case, whose places name the case and the block that it comes from."""
    varied = Document(copy.deepcopy(document.value), document.source, dict(document.places))
    for path, value in case.items():
        if not is_key(path):
            continue
        given = OMITTED if value is None else copy.deepcopy(value)
        place = put(varied.value, path.split("."), given, f"{block}: {path}")
        varied.places[place] = f"{document.place((block,))}: case {path}={describe(value)}"
    return varied
