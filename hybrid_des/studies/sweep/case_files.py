"""Cases of a sweep from a CSV file: a line per case, a column per key of the scenario.

    name,parallel.tensor,schedule.kind,schedule.max_activations,measured.step_time_s,split
    1F1B,8,1f1b,,1.42,fit
    ZB-2p,8,zb-auto,2p,1.24,kept

An empty cell leaves the key as in the file with the sweep. Columns that start with `measured.`, `split`, and `release`
and `stack` (of the software that was measured) are not keys; they are kept with the row. In a row with
`collective.name` and `collective.bytes` (of a member's buffer) only that collective runs, over all of its ranks.
"""

import csv
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from hybrid_des.errors import ScenarioError, one_line
from hybrid_des.files import LARGEST, open_file
from hybrid_des.scenario.loading import misnamed
from hybrid_des.scenario.strict_yaml import parse_value

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
