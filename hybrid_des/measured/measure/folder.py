"""The folder that a measurement fills: tables that grow row by row, so that a measurement which is stopped goes on.

Every rank adds every row, and so knows which are there; rank 0 alone writes, each table anew and in one move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.op_table import read_json
from hybrid_des.report.files.staging import write_files

if TYPE_CHECKING:
    import pandas as pd

ABOUT = "measure.json"
Rows = list[dict[str, Any]]


class Folder:
    """A folder of measured tables.

    Attributes:
        path: where it is.
        about: what was measured, on what, and with which options; it is written with the first row, so that a command
            which is refused leaves nothing.
        tables: rows by name of the file.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        tables: dict[str, Rows],
        *,
        writes: bool,
        dropped: Sequence[str] = (),
    ) -> None:
        self.path, self.about, self.tables = path, about, tables
        self._writes = writes
        self._begun = False
        self._dropped = dropped  # earlier tables, which go when there is a first row

    def rows(self, name: str) -> Rows:
        """The rows of a table so far."""
        return self.tables.get(name, [])

    def has(self, table: str, **key: Any) -> bool:
        """Whether a table has a row with these values."""
        return any(all(row.get(name) == value for name, value in key.items()) for row in self.rows(table))

    def add(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Add rows, and write the table."""
        self.tables.setdefault(table, []).extend(map(dict, rows))
        if self._writes and not self._begun:
            self._begun = True
            for name in self._dropped:
                (self.path / name).unlink(missing_ok=True)
            self.write({ABOUT: self.about})
        self.write({table: self.frame(table).convert_dtypes()})

    def frame(self, table: str) -> pd.DataFrame:
        """A table as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows(table))

    def write(self, contents: Mapping[str, Any]) -> None:
        """Write files, on rank 0."""
        if self._writes:
            write_files(self.path, contents)


def contents_of(path: Path, about: Mapping[str, Any], tables: Sequence[str], *, again: bool) -> dict[str, Rows]:
    """The rows that an earlier measurement left in a folder; none with `again`.

    Raises:
        UsageError: the folder holds a measurement of something else, or a broken one.
    """
    import pandas as pd

    if again or not (path / ABOUT).exists():
        return {}
    before = read_json(path / ABOUT)
    differing = [key for key, value in about.items() if before.get(key) != value]
    if differing:
        key = differing[0]
        raise UsageError(
            f"{path}: holds a measurement with other {key} ({before.get(key)}, now {about[key]}); name another folder, "
            "or --again to measure everything anew"
        )
    rows: dict[str, Rows] = {}
    for name in tables:
        if (path / name).exists():
            try:
                table = pd.read_csv(path / name).astype(object)
            except ValueError as error:
                raise UsageError(f"{path / name}: not a table: {str(error).splitlines()[0]}; --again") from None
            rows[name] = [
                {str(key): value for key, value in row.items() if not pd.isna(value)}
                for row in table.to_dict("records")
            ]
    return rows
