"""Sweeps: many variants of one scenario, each a row of a table, on anything that can map a function over a list.

    sweep:
      - {parallel.pipeline: [2, 4], schedule.microbatches: [4, 8]}     # keys of one item vary together
      - {schedule.kind: [gpipe, 1f1b]}                                # items are crossed

A case that is impossible or fails is a row with its reason in `error`; the others go on.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import HybridDesError, ScenarioError
from hybrid_des.registry import import_file, unknown
from hybrid_des.scenario import read_scenario, scenario_of
from hybrid_des.scenario.overrides import put
from hybrid_des.scenario.values import describe
from hybrid_des.strict_yaml import Document, KeyPath

if TYPE_CHECKING:
    import pandas as pd

Case = Mapping[str, Any]  # swept path → value; None leaves the key out
Row = dict[str, Any]
Progress = Callable[[int, int], None]  # cases done, cases in all

MOST_CASES = 10**6
BATCH = 32  # cases a worker gets at a time at most: many enough to pay for the way, few enough to share out evenly


@dataclass(frozen=True)
class Picture:
    """The axes of a sweep's picture: names of columns."""

    x: str
    y: str
    hue: str | None = None


@dataclass(frozen=True)
class Sweep:
    """A scenario and what varies in it.

    Attributes:
        document: the scenario, without its `sweep` and `plot`.
        axes: for each item of `sweep` its cases, each a mapping of the paths that vary together.
        picture: what `plot` asks for.
        imports: files of the user's own that every worker runs first.
    """

    document: Document
    axes: tuple[tuple[Case, ...], ...]
    picture: Picture | None = None
    imports: tuple[str, ...] = ()

    def __len__(self) -> int:
        count = 1
        for axis in self.axes:
            count *= len(axis)
        return count

    def cases(self) -> Iterator[Case]:
        """Every combination, the first axis slowest."""
        for combination in itertools.product(*self.axes):
            yield {path: value for part in combination for path, value in part.items()}


def load_sweep(path: str | Path, overrides: Sequence[str] = (), imports: Sequence[str] = ()) -> Sweep:
    """Read a file with a `sweep:` block.

    Raises:
        ScenarioError: one line for each thing that is wrong with the block.
    """
    return sweep_of(read_scenario(path, overrides), imports)


def sweep_of(document: Document, imports: Sequence[str] = ()) -> Sweep:
    """Take the `sweep` and `plot` of a document apart from the scenario.

    Raises:
        ScenarioError: one line for each thing that is wrong with them.
    """
    values = dict(document.value)
    items, plot = values.pop("sweep", None), values.pop("plot", None)
    problems: list[str] = []
    axes = _axes(document, items, problems)
    picture = _picture(document, plot, problems)
    sweep = Sweep(Document(values, document.source, document.places), axes, picture, tuple(imports))
    if len(sweep) > MOST_CASES:
        problems.append(document.problem(("sweep",), f"{len(sweep)} cases are more than {MOST_CASES}"))
    if problems:
        raise ScenarioError(problems)
    return sweep


def run_sweep(
    sweep: Sweep, *, jobs: int = 1, executor: Executor | None = None, progress: Progress | None = None
) -> list[Row]:
    """Simulate every case and give one row each, in the order of `Sweep.cases`.

    Args:
        sweep: what to run.
        jobs: local worker processes; 1 works in this one.
        executor: instead of `jobs`, anything with `concurrent.futures`' `map`, such as a Dask client's executor.
        progress: called with (cases done, cases in all) as they come in.
    """
    cases = list(sweep.cases())
    size = max(1, min(BATCH, len(cases) // (4 * max(jobs, 2))))
    work = [_Batch(sweep, tuple(cases[i : i + size])) for i in range(0, len(cases), size)]
    rows: list[Row] = []
    for batch in _map(work, jobs, executor):
        rows += batch
        if progress is not None:
            progress(len(rows), len(cases))
    return rows


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a table: mappings become columns such as `idle_s.dependency`, lists become texts."""
    import json

    import pandas as pd

    flat = []
    for row in rows:
        columns: Row = {}
        for key, value in row.items():
            if isinstance(value, Mapping):
                columns.update({f"{key}.{inner}": number for inner, number in value.items()})
            else:
                columns[key] = json.dumps(value) if isinstance(value, list) else value
        flat.append(columns)
    frame = pd.DataFrame(flat)
    last = [name for name in ("error",) if name in frame]
    return frame[[name for name in frame if name not in last] + last]


@dataclass(frozen=True)
class _Batch:
    """Some cases of a sweep, as they travel to a worker."""

    sweep: Sweep
    cases: tuple[Case, ...]


def _map(work: list[_Batch], jobs: int, executor: Executor | None) -> Iterable[list[Row]]:
    if executor is not None:
        return executor.map(_run_batch, work)
    if jobs == 1:
        return map(_run_batch, work)
    from joblib import Parallel, delayed

    batches: Iterable[list[Row]] = Parallel(n_jobs=jobs, return_as="generator")(delayed(_run_batch)(b) for b in work)
    return batches


def _run_batch(batch: _Batch) -> list[Row]:
    for path in batch.sweep.imports:
        import_file(path)
    return [_run_case(batch.sweep.document, case) for case in batch.cases]


def _run_case(document: Document, case: Case) -> Row:
    """Simulate one case; whatever goes wrong becomes its row's `error`."""
    from hybrid_des.metrics import summary
    from hybrid_des.simulate import run

    row = {path: _plain(value) for path, value in case.items()}
    try:
        scenario = scenario_of(_with(document, case))
        row |= summary(run(scenario.model_copy(update={"record": "compute"})))
    except HybridDesError as error:
        row["error"] = str(error).splitlines()[0]
    except Exception as error:  # a bug met by one case must not cost the others
        row["error"] = f"{type(error).__name__}: {error}"
    return row


def _with(document: Document, case: Case) -> Document:
    varied = Document(copy.deepcopy(document.value), document.source, dict(document.places))
    for path, value in case.items():
        if value is not None:
            place = put(varied.value, path.split("."), copy.deepcopy(value), f"sweep: {path}")
            varied.places[place] = f"{document.place(('sweep',))}: case {path}={describe(value)}"
    return varied


def _axes(document: Document, items: Any, problems: list[str]) -> tuple[tuple[Case, ...], ...]:
    if not isinstance(items, list) or not items:
        problems.append(document.problem(("sweep",), "expected a list of axes such as {parallel.pipeline: [2, 4]}"))
        return ()
    return tuple(_axis(document, ("sweep", i), item, problems) for i, item in enumerate(items))


def _axis(document: Document, at: KeyPath, item: Any, problems: list[str]) -> tuple[Case, ...]:
    """One item of `sweep`: its paths vary together, so their lists are of one length."""
    if not isinstance(item, dict) or not item:
        problems.append(document.problem(at, f"expected paths with lists of values, found {describe(item)}"))
        return ()
    lengths: dict[str, int] = {}
    for path, values in item.items():
        if isinstance(values, list) and values:
            lengths[path] = len(values)
        else:
            problems.append(document.problem((*at, path), f"expected a list of values, found {describe(values)}"))
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{path} has {length}" for path, length in lengths.items())
        problems.append(document.problem(at, f"what varies together needs lists of one length: {found}"))
        return ()
    return tuple({path: item[path][i] for path in lengths} for i in range(next(iter(lengths.values()), 0)))


def _picture(document: Document, plot: Any, problems: list[str]) -> Picture | None:
    if plot is None:
        return None
    keys = ("x", "y", "hue")
    if not isinstance(plot, dict):
        problems.append(document.problem(("plot",), f"expected {{x: …, y: …, hue: …}}, found {describe(plot)}"))
        return None
    problems += [document.problem(("plot", key), unknown(str(key), keys)) for key in plot if key not in keys]
    problems += [document.problem(("plot", key), "is required") for key in ("x", "y") if key not in plot]
    if any(key not in keys for key in plot) or not {"x", "y"} <= plot.keys():
        return None
    return Picture(*(None if plot.get(key) is None else str(plot[key]) for key in keys))  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """A swept value as a table shows it: exact fractions become numbers."""
    from fractions import Fraction

    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
