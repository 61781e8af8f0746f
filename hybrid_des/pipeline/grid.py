"""Draws programs as text, action × rank, with places marked, to show schedules and to locate errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONG = 40  # actions; longer grids with marks are drawn around these only


AROUND = 5


def draw_grid(columns: Sequence[Sequence[str]], marked: frozenset[tuple[int, int]] = frozenset()) -> str:
    """Draw programs as text, one column per rank and one line per action.

    Args:
        columns: for each rank the names of its actions.
        marked: (rank, action) pairs to set in >arrows<; −1 is the head of the column. In a long grid with
            marks, only the actions around them are drawn.
    """
    heads = [f">rank {rank}<" if (rank, -1) in marked else f"rank {rank}" for rank in range(len(columns))]
    cells = [
        [f">{text}<" if (rank, i) in marked else text for i, text in enumerate(column)]
        for rank, column in enumerate(columns)
    ]
    depth = max(map(len, cells), default=0)
    rows = set(range(depth))
    if marked and depth > LONG:
        rows = {row for _, at in marked for row in range(max(0, at - AROUND), min(depth, at + AROUND + 1))}
    widths = [
        max(len(head), *(len(c[row]) for row in rows if row < len(c)), 0) for head, c in zip(heads, cells, strict=True)
    ]
    lines = [_grid_line("", heads, widths, len(str(depth)))]
    last = -1
    for row in sorted(rows):
        if row != last + 1:
            lines.append("…")
        last = row
        lines.append(_grid_line(str(row), [c[row] if row < len(c) else "" for c in cells], widths, len(str(depth))))
    return "\n".join(lines if last == depth - 1 else [*lines, "…"])


def _grid_line(label: str, texts: Sequence[str], widths: Sequence[int], margin: int) -> str:
    padded = (f"{text:<{width}}" for text, width in zip(texts, widths, strict=True))
    return f"{label:>{margin}}  {'  '.join(padded)}".rstrip()


Numbers = NDArray[np.int64]


Spot = tuple[int, int]  # (pipeline rank, index of an action in its program)
