"""CSV files that are safe to open in a spreadsheet: a text in them is never calculated as a formula.

A name such as `=1+1` is written as `'=1+1`, as the OWASP guide on CSV injection recommends; numbers stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how cells begin that spreadsheets calculate


TEXT = "'"  # before such a cell makes it a text


def safe_cell(cell: Any) -> Any:
    """The cell; a text that a spreadsheet would calculate gets an apostrophe in front."""
    return TEXT + cell if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def csv_cell(cell: Any) -> Any:
    """The same; a list becomes JSON."""
    return json.dumps(cell) if isinstance(cell, list) else safe_cell(cell)


def read_cell(cell: Any) -> Any:
    """The cell that `safe_cell` wrote."""
    return cell[1:] if isinstance(cell, str) and cell[:1] == TEXT and cell[1:].startswith(FORMULA) else cell


@overload
def write_csv(table: pd.DataFrame, file: None = None, *, header: bool = True) -> str: ...


@overload
def write_csv(table: pd.DataFrame, file: Path | IO[str], *, header: bool = True) -> None: ...


def write_csv(table: pd.DataFrame, file: Path | IO[str] | None = None, *, header: bool = True) -> str | None:
    """Write a table as CSV, missing values as empty cells, lists as JSON; without a file, return the text."""
    import pandas as pd

    safe = {}
    for name, column in table.items():
        if pd.api.types.is_numeric_dtype(column):
            continue
        texts: Iterable[Any] = column
        with suppress(TypeError):  # lists are not hashable
            texts = column.unique()  # few: a timeline repeats its names
        if any(csv_cell(text) is not text for text in texts):
            safe[str(name)] = pd.Series(map(csv_cell, column), table.index, object)
    return table.assign(**safe).to_csv(file, header=header, index=False, lineterminator="\n")
