"""Execution of sweeps: one row per case, in this process or on a pool of workers."""

from __future__ import annotations

import contextlib
import copy
import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import IO, TYPE_CHECKING, Any

from hybrid_des.analysis.table import safe_cell
from hybrid_des.errors import HybridDesError, UsageError
from hybrid_des.options import describe
from hybrid_des.pool import LOST, Pool, Progress, cores, line_of, open_pool
from hybrid_des.registry import import_file
from hybrid_des.report.files.staging import cannot_be_written, reserved
from hybrid_des.scenario import Scenario, scenario_of
from hybrid_des.scenario.composition import OMITTED, put, value_at
from hybrid_des.scenario.jobs import has_jobs
from hybrid_des.scenario.kinds import drop_options, section_of
from hybrid_des.scenario.strict_yaml import Document, KeyPath, dotted
from hybrid_des.sweep.axes import Case, Sweep, is_key, plain

if TYPE_CHECKING:
    import pandas as pd

    from hybrid_des.renewal.states import Kind


# Rows of a sweep as a table: flat columns, exact numbers, and a file on disk that is complete after every row.


Row = dict[str, Any]

PARTIAL = "sweep.partial.csv"
PER_RANK = ("peak_activations", "peak_memory_bytes")


def columns(row: Row) -> Row:
    """Flatten a row for a table: mappings become columns such as `idle_s.dependency`."""
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= columns({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    return flat


def cells(row: Row) -> Row:
    """Flatten a row: lists become JSON, and those with one entry per rank also add their maximum."""
    flat: Row = {}
    for name, value in columns(row).items():
        flat[name] = json.dumps(value) if isinstance(value, list) else value
        if name in PER_RANK:
            flat[f"{name}.max"] = max(value)
    return flat


def errors_last(names: Iterable[str]) -> list[str]:
    """The order of the columns of a table."""
    return sorted(names, key=lambda name: name == "error")


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a table: mappings become columns such as `idle_s.dependency`, lists become JSON."""
    import pandas as pd

    flat = [cells(row) for row in rows]
    listed = {name: [row.get(name) for row in flat] for name in errors_last(dict.fromkeys(itertools.chain(*flat)))}
    return pd.DataFrame({name: pd.Series(column, dtype=_dtype(column)) for name, column in listed.items()})


def _dtype(column: Sequence[Any]) -> Any:
    """The type of a column that pandas would turn into inexact floats: with gaps, or integers beyond 53 bits."""
    kinds = {type(cell) for cell in column}
    largest = max((abs(cell) for cell in column if type(cell) is int), default=0)
    if kinds == {bool, NoneType}:
        return "boolean"
    if kinds == {int, NoneType}:
        return "Int64" if largest < 2**63 else object
    return object if largest > 2**53 and kinds != {int} else None


@contextlib.contextmanager
def journal(folder: Path) -> Iterator[Callable[[Row], None]]:
    """Yield a function that appends a row to `sweep.partial.csv` in a folder, in the order of the calls.

    The file is complete after every row. It is removed at the end, and kept after an error.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    path, rows = folder / PARTIAL, list[Row]()
    names: list[str] = []

    def append(row: Row) -> None:
        rows.append(cells(row))
        with cannot_be_written(folder):
            if rows[-1].keys() <= set(names):
                with path.open("a", encoding="utf-8", newline="") as file:
                    write(file, rows[-1:])
                return
            names[:] = errors_last(dict.fromkeys([*names, *rows[-1]]))  # a new column: rewrite the file
            with (staging / PARTIAL).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(names)
                write(file, rows)
            (staging / PARTIAL).replace(path)

    def write(file: IO[str], rows: Sequence[Row]) -> None:
        safe = ({name: safe_cell(cell) for name, cell in row.items()} for row in rows)
        csv.DictWriter(file, names, lineterminator="\n").writerows(safe)

    with reserved(folder) as staging:
        yield append
        path.unlink(missing_ok=True)


WORTH_A_WORKER = 200  # cases that take about as long as starting a worker


def jobs_for(sweep: Sweep) -> int:
    """Number of local workers for a sweep of this size."""
    return max(1, min(cores(), len(sweep) // WORTH_A_WORKER))


def sweep_rows(
    sweep: Sweep,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    pool: Pool | None = None,
    progress: Progress | None = None,
    finished: Callable[[int, Row], None] = lambda place, row: None,
    waiting: Callable[[], None] = lambda: None,
    known: Mapping[int, Row] = MappingProxyType({}),
) -> list[Row]:
    """Simulate every case; returns one row per case, in the order of `Sweep.cases`.

    Args:
        sweep: what to run.
        jobs: local worker processes; 1 runs in this process.
        executor: instead of `jobs`, anything with the `submit` of `concurrent.futures`, such as a Dask client's
            executor. Its workers read the files of `imports` themselves.
        pool: instead of `jobs`, a pool for several consecutive sweeps.
        progress: called with (cases done, cases in total) whenever a case finishes.
        finished: called with the number and the row of every case when it finishes, to save rows before an interrupt.
        waiting: called every second in which workers finish nothing; may raise to end the sweep.
        known: rows of cases, by their number, that are not simulated again.

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
    rows: list[Row] = [known.get(place, {}) for place in range(len(cases))]
    left = [place for place in range(len(cases)) if place not in known]
    if not left:
        return rows
    unchecked = sweep.picture
    how = {"imports": sweep.imports, "progress": progress and _further(progress, len(known)), "waiting": waiting}
    with contextlib.ExitStack() as stack:
        if pool is None:
            pool = stack.enter_context(open_pool(min(jobs, len(left)), executor, slots=len(left), **how))
        tasks = pool.map(_Simulated(sweep.document), [cases[place] for place in left], _lost)
        for number, figures in stack.enter_context(contextlib.closing(tasks)):
            place = left[number]
            row = rows[place] = plain(cases[place]) | figures
            if unchecked is not None and "error" not in row:
                unchecked.check(columns(row))
                unchecked = None
            finished(place, row)
    return rows


def _further(progress: Progress, begun: int) -> Progress:
    """A progress that begins at the cases that are known."""
    return lambda done, total: progress(begun + done, begun + total)


def _lost(case: Case, error: BaseException) -> Row:
    return {"error": f"{LOST}: {line_of(error)}"}


class _Simulated:
    """Case → its summary, and that of its weeks if it has `faults`, or any exception as its `error`.

    The step that was simulated last is kept: neighbouring cases that differ in `faults` alone share it.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._scenario: Scenario | None = None
        self._row: Row = {}
        self._times: dict[Kind, int] = {}

    def __call__(self, case: Case) -> Row:
        try:
            varied = with_case(self._document, case)
            return _of_jobs(varied) if has_jobs(varied) else self._simulated(scenario_of(varied))
        except HybridDesError as error:
            return {"error": str(error).splitlines()[0]}
        except Exception as error:  # a bug in one case must not affect the others
            return {"error": f"{type(error).__name__}: {error}"}

    def _simulated(self, scenario: Scenario) -> Row:
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


def _of_jobs(document: Document) -> Row:
    """The figures of a case with several jobs; columns such as `jobs.gpt.slowdown`."""
    from hybrid_des.jobs.neighbours import neighbours_of
    from hybrid_des.scenario.jobs import jobs_of

    facts = neighbours_of(jobs_of(document))[0].summary
    listed = ("waits", "nodes", "shares_links_with")
    each = {
        name: {key: value for key, value in job.items() if key not in listed} for name, job in facts["jobs"].items()
    }
    return {
        **{key: value for key, value in facts.items() if key not in ("links", "shared_links", "notes")},
        "jobs": each,
    }


def with_case(document: Document, case: Case, block: str = "sweep") -> Document:
    """The document with the values of a case, whose places name the case and the block that it comes from."""
    varied = Document(copy.deepcopy(document.value), document.source, dict(document.places))
    changed: list[KeyPath] = []
    for path, value in case.items():
        if not is_key(path):
            continue
        given = OMITTED if value is None else copy.deepcopy(value)
        place = put(varied.value, path.split("."), given, f"{block}: {path}")
        varied.places[place] = f"{document.place((block,))}: case {path}={describe(value)}"
        changed.append(place)
    for place in changed:
        before = value_at(document.value, dotted(place[:-1])) or {}
        for gone, notice in drop_options(varied.value, place, before, lambda key: _is_given(document, changed, key)):
            varied.notices[gone] = f"{block}: {notice}"
    return varied


def _is_given(document: Document, changed: Sequence[KeyPath], key: KeyPath) -> bool:
    """Whether a case or an override gives a key, which then stays."""
    return key in changed or document.places.get(key, "").startswith("--set")


def dropped(sweep: Sweep) -> list[str]:
    """What cases leave out since they select other plug-ins, one sentence each."""
    kinds = [path for path in sweep.paths if section_of(tuple(path.split("."))) is not None]
    cases = (case for axis in sweep.axes for case in axis if any(path in case for path in kinds))
    notices = (one for case in cases for one in with_case(sweep.document, case).notices.items())
    return list(dict.fromkeys(notice for gone, notice in notices if dotted(gone) not in sweep.paths))
