"""Execution of sweeps: batches of cases, mapped in this process, over local workers, or over a given executor."""

import copy
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from fractions import Fraction
from functools import partial, reduce
from operator import getitem
from typing import Any

from hybrid_des.errors import HybridDesError
from hybrid_des.options import describe
from hybrid_des.registry import import_file
from hybrid_des.scenario import scenario_of
from hybrid_des.scenario.composition import put
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.sweep.axes import Case, Sweep
from hybrid_des.sweep.rows import is_key

Row = dict[str, Any]
ProgressCallback = Callable[[int, int], None]  # cases done, cases in total

BATCH = 32  # most cases per batch: enough to amortize the transfer, few enough to balance the load
SHARES = 8  # fewest batches per worker
TRACKER = "ignore:resource_tracker"  # a warning filter: the action, and how the message begins
WORTH_A_WORKER = 200  # cases that take about as long as starting a worker


def jobs_for(sweep: Sweep) -> int:
    """Number of local workers for a sweep of this size."""
    return max(1, min(os.cpu_count() or 1, len(sweep) // WORTH_A_WORKER))


def run_sweep(
    sweep: Sweep, *, jobs: int = 1, executor: Executor | None = None, progress: ProgressCallback | None = None
) -> list[Row]:
    """Simulate every case; returns one row per case, in the order of `Sweep.cases`.

    Args:
        sweep: what to run.
        jobs: local worker processes; 1 runs in this process.
        executor: instead of `jobs`, anything with the `map` of `concurrent.futures`, such as a Dask client's
            executor. Its workers read the files of `imports` themselves.
        progress: called with (cases done, cases in total) whenever a batch completes.

    A row holds the swept paths and the keys of the summary, or the paths and `error`.

    Raises:
        UsageError: the first row lacks a plotted column, or a file to import fails.
    """
    for path in sweep.imports:
        import_file(path)
    cases = list(sweep.cases())
    count = min(len(cases), max(SHARES * jobs, -(-len(cases) // BATCH)))
    # round-robin: adjacent cases cost about the same, so batches do too
    work = [cases[i::count] for i in range(count)]
    rows: list[Row] = [{}] * len(cases)
    done, unchecked = 0, sweep.picture
    for i, batch in enumerate(_map(partial(_run_batch, sweep.document, sweep.imports), work, jobs, executor)):
        rows[i::count] = batch
        done += len(batch)
        if progress is not None:
            progress(done, len(cases))
        complete = next((row for row in batch if "error" not in row), None)
        if unchecked is not None and complete is not None:
            unchecked.check(columns(complete))
            unchecked = None
    return rows


def columns(row: Row) -> Row:
    """Flatten a row for a table: mappings become columns such as `idle_s.dependency`."""
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= columns({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    return flat


def _map(
    run_batch: Callable[[list[Case]], list[Row]], work: list[list[Case]], jobs: int, executor: Executor | None
) -> Iterable[list[Row]]:
    if executor is not None:
        return executor.map(run_batch, work)
    if jobs == 1:
        return map(run_batch, work)
    from joblib import Parallel, delayed

    silence_the_tracker()
    batches: Iterable[list[Row]] = Parallel(n_jobs=jobs, return_as="generator")(delayed(run_batch)(b) for b in work)
    return batches


def silence_the_tracker() -> None:
    """Keep joblib's resource tracker from listing the locks that it cleans up behind interrupted workers.

    It is a process of its own, which reads its warning filters from the environment.
    """
    filters = [given for given in os.environ.get("PYTHONWARNINGS", "").split(",") if given]
    if TRACKER not in filters:
        os.environ["PYTHONWARNINGS"] = ",".join([*filters, TRACKER])


def _run_batch(document: Document, imports: Sequence[str], cases: Sequence[Case]) -> list[Row]:
    for path in imports:
        import_file(path)
    return [_run_case(document, case) for case in cases]


def _run_case(document: Document, case: Case) -> Row:
    """Simulate one case; any exception becomes the `error` of its row."""
    from hybrid_des.analysis.metrics import summary
    from hybrid_des.simulation.run import run

    row: Row = {path: _plain(value) for path, value in case.items()}
    try:
        scenario = scenario_of(with_case(document, case))
        row |= summary(run(scenario.model_copy(update={"record": "compute"})))  # a row needs no messages
    except HybridDesError as error:
        row["error"] = str(error).splitlines()[0]
    except Exception as error:  # a bug in one case must not affect the others
        row["error"] = f"{type(error).__name__}: {error}"
    return row


def with_case(document: Document, case: Case) -> Document:
    """The document with the values of a case, whose places name the case."""
    varied = Document(copy.deepcopy(document.value), document.source, dict(document.places))
    for path, value in case.items():
        if not is_key(path):
            continue
        keys = path.split(".")
        place = put(varied.value, keys, copy.deepcopy(value), f"sweep: {path}")
        varied.places[place] = f"{document.place(('sweep',))}: case {path}={describe(value)}"
        if value is None:  # the key is left out
            del reduce(getitem, keys[:-1], varied.value)[keys[-1]]
    return varied


def _plain(value: Any) -> Any:
    """A swept value for tables and JSON: fractions become numbers, infinity a string."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
