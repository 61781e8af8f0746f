"""Draws programs as text, action × rank, with places marked, to show schedules and to locate errors."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONG = 40  # actions; longer grids with marks are drawn around these only


AROUND = 5


def draw_grid(
    columns: Sequence[Sequence[str]], marked: frozenset[tuple[int, int]] = frozenset(), width: int | None = None
) -> str:
    """Draw programs as text, one column per rank and one line per action.

    Args:
        columns: for each rank the names of its actions.
        marked: (rank, action) pairs to set in >arrows<; −1 is the head of the column. In a long grid with
            marks, only the actions around them are drawn.
        width: lines are at most this long, where given: ranks that do not fit are drawn below the others.
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
    drawn = []
    for first, end in _beside(widths, None if width is None else width - len(str(depth))):
        lines = [_grid_line("", heads[first:end], widths[first:end], len(str(depth)))]
        last = -1
        for row in sorted(rows):
            if row != last + 1:
                lines.append("…")
            last = row
            texts = [c[row] if row < len(c) else "" for c in cells[first:end]]
            lines.append(_grid_line(str(row), texts, widths[first:end], len(str(depth))))
        drawn.append("\n".join(lines if last == depth - 1 else [*lines, "…"]))
    return "\n\n".join(drawn)


def _beside(widths: Sequence[int], room: int | None) -> list[tuple[int, int]]:
    """The first and last + 1 of the columns that fit beside each other, each two spaces right of what is before it."""
    parts, first, taken = [], 0, 0
    for column, width in enumerate(widths):
        taken += 2 + width
        if room is not None and taken > room and column > first:
            parts.append((first, column))
            first, taken = column, 2 + width
    return [*parts, (first, len(widths))]


def _grid_line(label: str, texts: Sequence[str], widths: Sequence[int], margin: int) -> str:
    padded = (f"{text:<{width}}" for text, width in zip(texts, widths, strict=True))
    return f"{label:>{margin}}  {'  '.join(padded)}".rstrip()


Numbers = NDArray[np.int64]


Spot = tuple[int, int]  # (pipeline rank, index of an action in its program)
