"""Execution of sweeps: one row per case, in this process or on a pool of workers."""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypedDict

from hybrid_des.errors import HybridDesError, UsageError
from hybrid_des.options import describe
from hybrid_des.registry import import_file
from hybrid_des.scenario.composition import OMITTED, anchor, put, value_at
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import yaml_text
from hybrid_des.scenario.jobs import has_jobs
from hybrid_des.scenario.kinds import drop_options, section_of
from hybrid_des.scenario.loading import scenario_of
from hybrid_des.scenario.loops import has_loop
from hybrid_des.scenario.strict_yaml import Document, KeyPath, dotted
from hybrid_des.studies.pool import LOST, Pool, Progress, cores, line_of, open_pool
from hybrid_des.studies.sweep.axes import COLLECTIVE, Case, Sweep, is_key, plain
from hybrid_des.studies.sweep.loops import row_of_loop
from hybrid_des.studies.sweep.rows import Row, columns, with_notes
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from hybrid_des.studies.goodput.states import Kind, SimulatedStep


WORTH_A_WORKER = 200  # cases that take about as long as starting a worker


def jobs_for(sweep: Sweep) -> int:
    """Number of local workers for a sweep of this size."""
    return max(1, min(cores(), len(sweep) // WORTH_A_WORKER))


class Execution(TypedDict, total=False):
    """Where the cases of a sweep run, and who is told of them: the keywords of `sweep_rows`."""

    jobs: int
    executor: Executor | None
    pool: Pool | None
    progress: Progress | None
    finished: Callable[[int, Row], None]
    waiting: Callable[[], None]
    known: Mapping[int, Row]


def sweep_rows(
    sweep: Sweep,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    pool: Pool | None = None,
    progress: Progress | None = None,
    finished: Callable[[int, Row], None] = lambda index, row: None,
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

    A row holds the swept paths, the keys of the summary, and `notes` if there are any: what a report says of the case's
    choices, and what the case leaves out; or the paths and `error`. A case whose worker is lost runs
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
            index = left[number]
            row = rows[index] = plain(cases[index]) | figures
            if unchecked is not None and "error" not in row:
                unchecked.check(columns(row))
                unchecked = None
            finished(index, row)
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
        self._times: dict[Kind, SimulatedStep] = {}

    def __call__(self, case: Case) -> Row:
        try:
            varied = with_case(self._document, case)
            if any(column in case for column in COLLECTIVE):
                return _of_collective(scenario_of(varied), *map(case.get, COLLECTIVE))
            row = self._row_of(varied)
            return with_notes(row, varied.notices.values())
        except HybridDesError as error:
            return {"error": str(error).splitlines()[0]}
        except Exception as error:  # a bug in one case must not affect the others
            return {"error": f"{type(error).__name__}: {error}"}

    def _row_of(self, varied: Document) -> Row:
        if has_jobs(varied):
            return _of_jobs(varied)
        return row_of_loop(varied) if has_loop(varied) else self._simulated(scenario_of(varied))

    def _simulated(self, scenario: Scenario) -> Row:
        from hybrid_des.analysis.metrics import summary
        from hybrid_des.report.content import notes_of
        from hybrid_des.shortcuts.run import run
        from hybrid_des.studies.goodput.states import Steps
        from hybrid_des.studies.goodput.summary import goodput_columns

        step = scenario.model_copy(update={"record": "compute", "faults": None})  # a row needs no messages
        if scenario.faults is None:
            facts = summary(run(step))
            return with_notes(facts, notes_of(scenario, facts))
        if step != self._scenario:
            facts = summary(run(step))
            self._scenario, self._row, self._times = step, with_notes(facts, notes_of(scenario, facts)), {}
        steps = Steps(scenario, self._times)
        columns = goodput_columns(steps)
        self._times = steps.times
        return self._row | columns


def _of_collective(scenario: Scenario, name: object, size: object) -> Row:
    """The seconds of a collective over all ranks of a scenario, with a buffer of so many bytes."""
    from hybrid_des.analysis.collective_bench import MOST_BYTES, Bench

    if not isinstance(name, str) or not isinstance(size, int) or not 1 <= size <= MOST_BYTES:
        given = f"{describe(name)} and {describe(size)}"
        raise UsageError(f"{' and '.join(COLLECTIVE)}: expected a name and a number of bytes, found {given}")
    return {"collective_time_s": Bench.of(scenario, name, 1).row(name, size).time / PICOSECONDS_PER_SECOND}


def _of_jobs(document: Document) -> Row:
    """The figures of a case with several jobs; columns such as `jobs.gpt.slowdown`."""
    from hybrid_des.scenario.jobs import jobs_of
    from hybrid_des.studies.jobs.neighbours import neighbours_of

    facts = neighbours_of(jobs_of(document), folded=True)[0].summary
    listed = ("waits", "nodes", "shares_links_with")
    each = {
        name: {key: value for key, value in job.items() if key not in listed} for name, job in facts["jobs"].items()
    }
    kept = {key: value for key, value in facts.items() if key not in ("links", "shared_links", "notes")}
    return with_notes({**kept, "jobs": each}, facts["notes"])


def with_case(document: Document, case: Case, block: str = "sweep") -> Document:
    """The document with the values of a case, whose places name the case and the block that it comes from."""
    varied = Document(copy.deepcopy(document.value), document.source, dict(document.places))
    changed: list[KeyPath] = []
    for path, value in case.items():
        if not is_key(path):
            continue
        given = OMITTED if value is None else copy.deepcopy(value)
        keys = put(varied.value, path.split("."), given, f"{block}: {path}")
        varied.places[keys] = f"{document.place((block,))}: case {path}={describe(value)}"
        changed.append(keys)
    for keys in changed:
        before = value_at(document.value, dotted(keys[:-1]))
        for gone, notice in drop_options(varied.value, keys, before, lambda key: _is_given(document, changed, key)):
            varied.notices[gone] = f"{block}: {notice}"
    return varied


def file_text(document: Document) -> str:
    """The text of a document as a file that can be placed anywhere: paths in it are made absolute."""
    anchor(document, Path.cwd())
    return yaml_text({key: value for key, value in document.value.items() if value not in ({}, None)})


def _is_given(document: Document, changed: Sequence[KeyPath], key: KeyPath) -> bool:
    """Whether a case or an override gives a key, which then stays."""
    return key in changed or document.places.get(key, "").startswith("--set")


def dropped(sweep: Sweep) -> list[str]:
    """What cases leave out since they select other plug-ins, one sentence each."""
    kinds = [path for path in sweep.paths if section_of(tuple(path.split("."))) is not None]
    cases = (case for axis in sweep.axes for case in axis if any(path in case for path in kinds))
    notices = (one for case in cases for one in with_case(sweep.document, case).notices.items())
    return list(dict.fromkeys(notice for gone, notice in notices if dotted(gone) not in sweep.paths))
