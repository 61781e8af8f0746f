"""Rows of a sweep as a table: flat columns, exact numbers, and a file on disk that is complete after every row."""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import IO, TYPE_CHECKING, Any

from hybrid_des.analysis.safe_csv import csv_cell
from hybrid_des.report.files.staging import cannot_be_written, reserved

if TYPE_CHECKING:
    import pandas as pd


Row = dict[str, Any]


PARTIAL = "sweep.partial.csv"


NOTES = "notes"


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
    """Flatten a row: lists with one entry per rank also add their maximum."""
    flat: Row = {}
    for name, value in columns(row).items():
        flat[name] = value
        if name in PER_RANK:
            flat[f"{name}.max"] = max(value)
    return flat


def with_notes(row: Mapping[str, Any], notes: Iterable[str]) -> Row:
    """A row with notes after those that it has, in one text; without any, it has no such column."""
    texts = [*([row[NOTES]] if NOTES in row else []), *notes]
    return {**row, **({NOTES: "; ".join(texts)} if texts else {})}


def errors_last(names: Iterable[str]) -> list[str]:
    """The order of the columns of a table: texts are last."""
    return sorted(names, key=lambda name: (name == "error", name == NOTES))


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a table: mappings become columns such as `idle_s.dependency`; lists stay lists."""
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
        safe = ({name: csv_cell(cell) for name, cell in row.items()} for row in rows)
        csv.DictWriter(file, names, lineterminator="\n").writerows(safe)

    with reserved(folder) as staging:
        yield append
        path.unlink(missing_ok=True)
