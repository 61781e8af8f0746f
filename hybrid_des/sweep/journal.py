"""The table of a running sweep on disk: whatever ends the run, its finished rows are kept."""

import contextlib
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from hybrid_des.analysis.spreadsheets import safe_cell
from hybrid_des.report.files.staging import cannot_be_written, reserved
from hybrid_des.sweep.dispatch import Row

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


@contextlib.contextmanager
def journal(folder: Path) -> Iterator[Callable[[Row], None]]:
    """Yield a function that appends a row to `sweep.partial.csv` in a folder, in the order of the calls.

    The file is removed at the end, and kept after an error.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    with reserved(folder) as workshop, contextlib.closing(_Table(folder / PARTIAL, workshop / PARTIAL)) as table:
        yield table.append
        table.path.unlink(missing_ok=True)


class _Table:
    """A CSV file that is complete after every row."""

    def __init__(self, path: Path, draft: Path) -> None:
        self.path = path
        self._draft = draft
        self._file: IO[str] | None = None
        self._columns: dict[str, None] = {}
        self._rows: list[Row] = []

    def append(self, row: Row) -> None:
        """Write a row to the disk; a new column requires rewriting the file."""
        with cannot_be_written(self.path.parent):
            self._rows.append(cells(row))
            if self._file is not None and self._rows[-1].keys() <= self._columns.keys():
                self._write(self._file, self._rows[-1:])
                return
            self.close()
            self._columns |= dict.fromkeys(self._rows[-1])
            with self._draft.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(errors_last(self._columns))
                self._write(file, self._rows)
            self._draft.replace(self.path)
            self._file = self.path.open("a", encoding="utf-8", newline="")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, file: IO[str], rows: list[Row]) -> None:
        csv.DictWriter(file, errors_last(self._columns), lineterminator="\n").writerows(
            {name: safe_cell(cell) for name, cell in row.items()} for row in rows
        )
        file.flush()
