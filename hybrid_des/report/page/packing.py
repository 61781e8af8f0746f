"""Columns of whole numbers as text for a page: differences, in planes of bytes, by zlib, in base64.

A column becomes the differences of neighbours, without sign (2d for d ≥ 0, −2d−1 for d < 0), and these their lowest
bytes, then their second bytes, and so on, as many as the largest needs. Such planes are mostly runs of equal bytes.
`unpack` of page.html reverses it; numbers beyond 2⁵³ are rounded there.
"""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybrid_des.timeline import Column

LEVEL = 9


def pack(tables: Mapping[str, Mapping[str, Column]]) -> tuple[dict[str, Any], str]:
    """Pack tables of int64 columns.

    Returns:
        For each table its `rows` and `columns`, each a name and a number of planes; and the text.
    """
    heads: dict[str, Any] = {}
    planes: list[bytes] = []
    for name, columns in tables.items():
        rows = len(next(iter(columns.values())))
        packed = {column: _planes(values) for column, values in columns.items()}
        heads[name] = {"rows": rows, "columns": [[column, len(found)] for column, found in packed.items()]}
        planes += [plane for found in packed.values() for plane in found]
    return heads, base64.b64encode(zlib.compress(b"".join(planes), LEVEL)).decode("ascii")


def _planes(values: Column) -> list[bytes]:
    steps = np.diff(np.asarray(values, dtype=np.int64), prepend=0)
    unsigned = ((steps << 1) ^ (steps >> 63)).astype(np.uint64)
    count = (int(unsigned.max(initial=0)).bit_length() + 7) // 8
    return [((unsigned >> np.uint64(8 * place)) & np.uint64(255)).astype(np.uint8).tobytes() for place in range(count)]
