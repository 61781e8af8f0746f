"""Columns of whole numbers as text for a page: made small, split into byte planes, compressed by zlib, in base64.

Times are few and repeat, so columns of times hold indices into a table of all times: `start` the index itself, `asked`
and `end` their distances before and after it. These distances are stored as they are, any other column as zigzag-coded
differences between neighbours (2d for d ≥ 0, −2d−1 for d < 0). The lowest bytes of a column are stored first, then the
second bytes, and so on: planes that are mostly runs of equal bytes. `unpack` of page.html reverses it; numbers beyond
2⁵³ are rounded there. 100,000 bars whose times are all different take less than a megabyte.
"""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybrid_des.report.page.drawn import TIMES
from hybrid_des.timeline import Column

LEVEL = 9
DISTANCES = ("asked", "end")  # from `start`, in entries of the table of times


def pack(tables: Mapping[str, Mapping[str, Column]]) -> tuple[dict[str, Any], str]:
    """Pack the tables of one run, of int64 columns.

    Returns:
        `rows` and `columns` of each table, the table of times first, each column a name and a number of planes; and the
        text.
    """
    named = [table[name] for table in tables.values() for name in TIMES if name in table]
    times = np.unique(np.concatenate(named))
    whole = {"times": {"time": times}} | {title: _placed(table, times) for title, table in tables.items()}
    heads: dict[str, Any] = {}
    planes: list[bytes] = []
    for title, table in whole.items():
        packed = {name: _planes(values, name not in DISTANCES) for name, values in table.items()}
        columns = [[name, len(found)] for name, found in packed.items()]
        heads[title] = {"rows": len(next(iter(table.values()))), "columns": columns}
        planes += [plane for found in packed.values() for plane in found]
    return heads, base64.b64encode(zlib.compress(b"".join(planes), LEVEL)).decode("ascii")


def _placed(table: Mapping[str, Column], times: Column) -> dict[str, Column]:
    """A table with its times as indices into the table of times, and distances between them."""
    placed = {name: np.searchsorted(times, column) if name in TIMES else column for name, column in table.items()}
    for name, sign in (("asked", -1), ("end", 1)):
        if name in placed:
            placed[name] = sign * (placed[name] - placed["start"])
    return placed


def _planes(values: Column, differences: bool) -> list[bytes]:
    numbers = np.asarray(values, dtype=np.int64)
    if differences:
        numbers = np.diff(numbers, prepend=0)
        numbers = (numbers << 1) ^ (numbers >> 63)
    unsigned = numbers.astype(np.uint64)
    count = (int(unsigned.max(initial=0)).bit_length() + 7) // 8
    return [((unsigned >> np.uint64(8 * place)) & np.uint64(255)).astype(np.uint8).tobytes() for place in range(count)]
