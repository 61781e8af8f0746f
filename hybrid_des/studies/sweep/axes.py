"""Axes of a sweep, and the plot of its results.

Cases may be in a CSV file: a line per case, a column per key of the scenario.

    name,parallel.tensor,schedule.kind,schedule.max_activations,measured.step_time_s,split
    1F1B,8,1f1b,,1.42,fit
    ZB-2p,8,zb-auto,2p,1.24,kept

An empty cell leaves the key as in the file with the sweep. Columns that start with `measured.`, `split`, and `release`
and `stack` (of the software that was measured) are not keys; they are kept with the row. In a row with
`collective.name` and `collective.bytes` (of a member's buffer) only that collective runs, over all of its ranks.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import Any

from hybrid_des.errors import ScenarioError, UsageError, one_line, unknown
from hybrid_des.files import LARGEST, open_file
from hybrid_des.options import describe
from hybrid_des.scenario.jobs import has_jobs, misnamed_in
from hybrid_des.scenario.loading import Source, document_of, misnamed
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.scenario.strict_yaml import Document, KeyPath, parse_value

_GROUPS = ("split", "release", "stack")


_TEXTS = ("name", "description", *_GROUPS)


_BESIDE = ("measured.", "collective.")


COLLECTIVE = ("collective.name", "collective.bytes")


def is_key(column: str) -> bool:
    """Whether a column is a key of the scenario."""
    return column not in _GROUPS and not column.startswith(_BESIDE)


def read_rows(path: Path, where: str) -> tuple[dict[str, Any], ...]:
    """The cases in a file.

    Args:
        path: the file.
        where: the place that names it, for messages.

    Raises:
        ScenarioError: it cannot be read, a column is not a key, or a cell is not YAML; one line per problem.
    """
    try:
        with open_file(path) as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ScenarioError([f"{where}: {path}: larger than {LARGEST // 2**20} MiB; not a table of rows"])
        lines = list(csv.reader(data.decode("utf-8-sig").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        reason = str(getattr(error, "strerror", None) or "not a text file").lower()
        raise ScenarioError([one_line(f"{where}: {path}: cannot be read: {reason}")]) from None
    numbered = [(number, cells) for number, cells in enumerate(lines, start=1) if any(cells)]
    if len(numbered) < 2:
        raise ScenarioError([f"{where}: {path}: expected a line of keys and at least one row"])
    (_, columns), *rows = numbered
    problems = _wrong_columns(columns)
    wrong = [(number, cells) for number, cells in rows if len(cells) != len(columns)]
    problems += [(number, f"{len(cells)} cells; the first line has {len(columns)}") for number, cells in wrong]
    if problems:
        raise ScenarioError([one_line(f"{path}:{number}: {message}") for number, message in problems])
    return tuple(_case(columns, cells, f"{path}:{number}") for number, cells in rows)


def _wrong_columns(columns: list[str]) -> list[tuple[int, str]]:
    """Problems of the first line, each with the number of the line."""
    problems = [f"{column}: {wrong}" for column in columns if is_key(column) and (wrong := misnamed(column))]
    problems += [f"{column}: a second column of this name" for column in set(columns) if columns.count(column) > 1]
    return [(1, message) for message in problems]


def _case(columns: list[str], cells: list[str], where: str) -> dict[str, Any]:
    filled = ((column, cell.strip()) for column, cell in zip(columns, cells, strict=True) if cell.strip())
    return {column: cell if column in _TEXTS else parse_value(cell, f"{where}: {column}") for column, cell in filled}


def plain(value: Any) -> Any:
    """A swept value for tables and JSON: fractions become numbers, infinity a string."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


Case = Mapping[str, Any]  # swept path → value; None leaves the key out. From a file, also its other columns


MOST_CASES = 10**6


_ABSENT = ("rows", "source", "columns")  # of rows that are not included


FITTED = "fitted"  # how many numbers were fitted to rows, those of the catalogue too; may be left out


STACK = "stack"  # what software ran the rows; may be left out


NOTED = "noted"  # `pairs`: of rows that other corpora have too, only these are noted; `runs`: no pairs; may be left out


_OF_ROWS = (FITTED, STACK, NOTED)


_PICTURE = ("x", "y", "hue", "where")


@dataclass(frozen=True)
class Plot:
    """The plot of a sweep, by columns of its table.

    Attributes:
        x, y: the columns on the axes.
        hue: one line per combination of values of these columns.
        where: only cases with these values are drawn.
    """

    x: str
    y: str
    hue: tuple[str, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)

    def check(self, columns: Mapping[str, Any]) -> None:
        """Check that a row of the table has the plotted columns.

        Raises:
            UsageError: a column is missing, or `y` is not numeric.
        """
        for name in (self.x, self.y, *self.hue, *self.where):
            if name not in columns:
                raise UsageError(f"plot: {unknown(name, map(str, columns))}")
        if not isinstance(columns[self.y], int | float | list):
            raise UsageError(f"plot: y: {self.y} contains {describe(columns[self.y])}; expected a column of numbers")


@dataclass(frozen=True)
class Sweep:
    """A scenario and the values that vary in it.

    Attributes:
        document: the scenario, without its `sweep` and `plot`.
        axes: the cases of each item of `sweep`, as mappings of the paths that vary together.
        picture: the plot described by `plot`.
        imports: user-defined plug-in files that every worker imports first.
    """

    document: Document
    axes: tuple[tuple[Case, ...], ...]
    picture: Plot | None = None
    imports: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """The number of cases, even if it is too large for `len`."""
        return math.prod(map(len, self.axes))

    @property
    def paths(self) -> list[str]:
        """The swept paths, in the order of the file."""
        return list(dict.fromkeys(path for axis in self.axes for case in axis for path in case if is_key(path)))

    @property
    def labels(self) -> list[str]:
        """The swept paths that identify cases: their names, or else all."""
        return ["name"] if "name" in self.paths else self.paths

    def only(self, where: Mapping[str, Any]) -> Sweep:
        """The cases with these values, such as those in the plot: `sweep.only(sweep.picture.where)`."""
        axes = (
            tuple(case for case in axis if all(case[path] == value for path, value in where.items() if path in case))
            for axis in self.axes
        )
        return replace(self, axes=tuple(axes))

    def of_cases(self, cases: Sequence[Case]) -> Sweep:
        """The same scenario with these cases."""
        return replace(self, axes=(tuple(cases),))

    def cases(self) -> Iterator[Case]:
        """Every combination, the first axis slowest."""
        for combination in itertools.product(*self.axes):
            yield {path: value for part in combination for path, value in part.items()}


def load_sweep(source: Source, overrides: Overrides = (), imports: Sequence[str] = ()) -> Sweep:
    """Read a file, or a mapping, with a `sweep:` block.

    Raises:
        ScenarioError: one line per problem in the block.

    Example:
        >>> from hybrid_des import load_sweep
        >>> sweep = load_sweep("scenarios/a100_8x.yaml", {"sweep": [{"schedule.microbatches": [4, 8, 16]}]})
        >>> len(sweep), sweep.paths
        (3, ['schedule.microbatches'])
    """
    return sweep_of(document_of(source, overrides), imports)


def sweep_of(document: Document, imports: Sequence[str] = ()) -> Sweep:
    """Separate the `sweep` and `plot` of a document from its scenario.

    Raises:
        ScenarioError: one line per problem in them.
    """
    values = dict(document.value)
    items, plot = values.pop("sweep", None), values.pop("plot", None)
    problems: list[str] = []
    axes = axes_of(document, ("sweep",), items, problems)
    picture = None if plot in (None, "none") else _picture(document, plot, problems)
    sweep = Sweep(Document(values, document.source, document.places), axes, picture, tuple(imports))
    size = sweep.size
    if size > MOST_CASES:
        count = f"{size}" if size < 10**15 else "more than 1e15"
        problems.append(document.problem(("sweep",), f"{count} cases; at most {MOST_CASES}"))
    if problems:
        raise ScenarioError(problems)
    return sweep


def axes_of(
    document: Document, at: KeyPath, items: Any, problems: list[str], names: Sequence[str] = ()
) -> tuple[tuple[Case, ...], ...]:
    """The axes in a list at a path of the document, each a list of cases; errors are appended to `problems`.

    An item may also be one of `names`, which is left to the caller.
    """
    if isinstance(items, dict) and "file" in items:
        return _in_file(document, at, items, problems)
    if isinstance(items, dict) and "rows" in items:
        problems += _not_included(document, at, items)
        return ()
    if not isinstance(items, list) or not items:
        problems.append(document.problem(at, "expected a list of axes such as {parallel.pipeline: [2, 4]}"))
        return ()
    named = [(item, i) for i, item in enumerate(items) if names and isinstance(item, str)]
    problems += [document.problem((*at, i), unknown(name, names)) for name, i in named if name not in names]
    given = [(i, item) for i, item in enumerate(items) if (item, i) not in named]
    axes = tuple(_axis(document, (*at, i), item, problems) for i, item in given)
    placed = sorted(
        [*named, *((path, i) for i, item in given if isinstance(item, dict) for path in item)], key=itemgetter(1)
    )
    first = dict(reversed(placed))
    twice = [(path, i) for path, i in placed if first[path] != i]
    problems += [document.problem((*at, i, path), "also varies in an earlier axis") for path, i in twice]
    return axes


def _in_file(
    document: Document, at: KeyPath, item: Mapping[str, Any], problems: list[str]
) -> tuple[tuple[Case, ...], ...]:
    """The cases of `sweep: {file: rows.csv}`, whose path is relative to the folder of the scenario."""
    problems += _wrong_keys(document, at, item, ("file", *_OF_ROWS))
    file = item["file"]
    if not isinstance(file, str) or not file:
        problems.append(document.problem((*at, "file"), f"expected the path of a CSV file, found {describe(file)}"))
        return ()
    try:
        return (read_rows(Path(document.source).parent / file, document.problem((*at, "file"), "").strip(": ")),)
    except ScenarioError as error:
        problems += error.problems
        return ()


def _not_included(document: Document, at: KeyPath, item: Mapping[str, Any]) -> list[str]:
    """What is wrong with `sweep: {rows: not included, source: …, columns: […]}`; at least that rows are needed."""
    wrong = _wrong_keys(document, at, item, (*_ABSENT, *_OF_ROWS))
    wrong += [document.problem((*at, key), "is required") for key in _ABSENT if not item.get(key)]
    if wrong:
        return wrong
    if item["rows"] != "not included":
        return [document.problem((*at, "rows"), f"expected `not included`, found {describe(item['rows'])}")]
    get = f"write a CSV file with these columns from {item['source']}; validate takes it as --rows FILE"
    return [document.problem((*at, "rows"), f"not included; {get}")]


def _wrong_keys(document: Document, at: KeyPath, item: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Keys of rows that are none, and wrong values of those that may be left out."""
    wrong = [document.problem((*at, key), unknown(str(key), names)) for key in item if key not in names]
    count = item.get(FITTED, 0)
    if type(count) is not int or count < 0:
        wrong.append(document.problem((*at, FITTED), f"expected how many numbers, found {describe(count)}"))
    if not isinstance(item.get(STACK, ""), str):
        wrong.append(document.problem((*at, STACK), f"expected the name of software, found {describe(item[STACK])}"))
    if item.get(NOTED, "pairs") not in ("pairs", "runs"):
        wrong.append(document.problem((*at, NOTED), f"expected `pairs` or `runs`, found {describe(item[NOTED])}"))
    return wrong


def _axis(document: Document, at: KeyPath, item: Any, problems: list[str]) -> tuple[Case, ...]:
    """One item of `sweep`: its paths vary together, so their lists have equal lengths."""
    if not isinstance(item, dict) or not item:
        problems.append(document.problem(at, f"expected paths with lists of values, found {describe(item)}"))
        return ()
    lengths: dict[str, int] = {}
    for path, values in item.items():
        wrong = misnamed_in(document, path) if has_jobs(document) else misnamed(path)
        if wrong is not None:
            problems.append(document.problem((*at, path), wrong))
        if isinstance(values, list) and values:
            lengths[path] = len(values)
        else:
            problems.append(document.problem((*at, path), f"expected a list of values, found {describe(values)}"))
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{path} has {length}" for path, length in lengths.items())
        problems.append(document.problem(at, f"paths that vary together need lists of equal length: {counts}"))
        return ()
    return tuple({path: item[path][i] for path in lengths} for i in range(next(iter(lengths.values()), 0)))


def _picture(document: Document, plot: Any, problems: list[str]) -> Plot | None:
    """Read `plot: {x, y, hue, where}`; `hue` is a column or a list of them."""
    if not isinstance(plot, dict):
        problems.append(document.problem(("plot",), f"expected {{x: …, y: …, hue: …}}, found {describe(plot)}"))
        return None
    wrong = [(key, unknown(str(key), _PICTURE)) for key in plot if key not in _PICTURE]
    wrong += [(key, "is required") for key in ("x", "y") if key not in plot]
    wrong += [
        (key, f"expected the name of a column, found {describe(plot[key])}")
        for key in ("x", "y")
        if key in plot and not isinstance(plot[key], str)
    ]
    hue, where = plot.get("hue"), plot.get("where", {})
    hues = [] if hue is None else hue if isinstance(hue, list) else [hue]
    if not all(isinstance(name, str) for name in hues):
        wrong.append(("hue", f"expected names of columns, found {describe(hue)}"))
    if not isinstance(where, dict):
        wrong.append(("where", f"expected columns and their values, found {describe(where)}"))
    if wrong:
        problems += [document.problem(("plot", key), message) for key, message in wrong]
        return None
    return Plot(plot["x"], plot["y"], tuple(hues), where)
