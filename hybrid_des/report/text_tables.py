"""Tables of text that fit a width: headings in several lines, common values above the table, rows folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hybrid_des.errors import one_line
from hybrid_des.report.text import NARROWEST, folded

BELOW = 4  # columns by which the further lines of a folded row are indented
PROSE = 24  # columns that a column of sentences gets at least


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table in Markdown."""
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(cell.replace('|', ' ') for cell in row)} |"


def text_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    indent: str = "",
    *,
    align: str = "<",
    close: int | None = None,
    width: int | None = None,
) -> str:
    """Format rows of cells as aligned lines below their heads; cells may hold any text.

    A row may have fewer cells than there are heads: its last one then reaches across the columns that it lacks.

    Args:
        heads: the headings.
        rows: the cells of each row.
        indent: what each line begins with.
        align: "<" or ">".
        close: columns are one space apart, not two, if the lines would be longer than this.
        width: lines are at most this long, where given. Then, as far as needed, headings are broken at spaces, dots
            and underscores; values that are the same in all rows are said above the table; the column of the longest
            text is wrapped; each row takes several lines, those below its first one indented.
    """
    names = [one_line(head) for head in heads]
    lines = [_Row.of([one_line(cell) for cell in row], len(names)) for row in rows]
    gap = 1 if close is not None and _total(_widths(names, lines), 2) > close else 2
    room = None if width is None else max(width - len(indent), NARROWEST)
    return "\n".join(f"{indent}{line}".rstrip() for line in _laid_out(names, lines, _Shape(align, gap, room)))


class _Row(NamedTuple):
    cells: list[str]
    across: str  # text across the columns that the row lacks

    @classmethod
    def of(cls, cells: list[str], columns: int) -> _Row:
        return cls(cells, "") if len(cells) == columns else cls(cells[:-1], cells[-1])


class _Shape(NamedTuple):
    align: str
    gap: int  # columns
    room: int | None  # columns


def _laid_out(names: list[str], rows: list[_Row], shape: _Shape) -> Iterator[str]:
    """The lines of the first layout that fits."""
    widths, every, gap, room = _widths(names, rows), [*range(len(names))], shape.gap, shape.room
    if room is not None and _total(widths, gap) > room:
        widths = _widths([max(_pieces(name), key=len) for name in names], rows)
        if _total(widths, gap) > room and (same := _same(rows)):
            yield from folded("in all rows: " + ", ".join(f"{names[k]} {rows[0].cells[k]}" for k in same), room)
            every = [column for column in every if column not in same]
        longest = max(every, key=lambda column: widths[column])
        left = room - (_total([widths[column] for column in every], gap) - widths[longest])
        if PROSE <= left < widths[longest]:
            widths[longest] = left
    blocks = [every] if room is None else _blocks(every, [min(one, room - BELOW) for one in widths], gap, room)
    widths = widths if room is None else [min(one, room if len(blocks) == 1 else room - BELOW) for one in widths]
    for number, block in enumerate(blocks):
        yield from _lines(
            [_broken(names[column], widths[column]) for column in block], block, widths, shape, number, heads=True
        )
    for row in rows:
        yield from _of_row(row, blocks, widths, shape)


def _of_row(row: _Row, blocks: Sequence[Sequence[int]], widths: Sequence[int], shape: _Shape) -> Iterator[str]:
    """The lines of a row: one or more for each block of columns, and its text across."""
    lines: list[str] = []
    for number, block in enumerate(blocks):
        mine = [column for column in block if column < len(row.cells)]
        if mine:
            lines += _lines([folded(row.cells[k], widths[k]) for k in mine], mine, widths, shape, number)
    if row.across:
        beside = f"{lines[-1]}{' ' * shape.gap}{row.across}" if lines else row.across
        if shape.room is None or len(beside) <= shape.room:
            lines[-1:] = [beside]
        else:
            lines += [f"{'':<{BELOW}}{text}" for text in folded(row.across, shape.room - BELOW)]
    yield from lines


def _lines(
    cells: list[list[str]],
    block: Sequence[int],
    widths: Sequence[int],
    shape: _Shape,
    number: int,
    *,
    heads: bool = False,
) -> Iterator[str]:
    """The lines of cells beside each other: of headings the last ones are on one line, of others the first ones."""
    depth = max(map(len, cells))
    rest = [[""] * (depth - len(cell)) for cell in cells]
    filled = [more + cell if heads else cell + more for cell, more in zip(cells, rest, strict=True)]
    for texts in zip(*filled, strict=True):
        padded = (f"{text:{shape.align}{widths[column]}}" for text, column in zip(texts, block, strict=True))
        yield " " * (BELOW if number else 0) + (" " * shape.gap).join(padded)


def _widths(names: Sequence[str], rows: Sequence[_Row]) -> list[int]:
    cells = [[row.cells[column] for row in rows if column < len(row.cells)] for column in range(len(names))]
    return [max(map(len, [name, *column])) for name, column in zip(names, cells, strict=True)]


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _same(rows: Sequence[_Row]) -> list[int]:
    """The columns, but the first, whose value is the same in all rows, of which there are several."""
    shared = min((len(row.cells) for row in rows), default=0)
    values = {column: {row.cells[column] for row in rows} for column in range(1, shared)}
    return [column for column, found in values.items() if len(rows) > 1 and len(found) == 1 and found != {""}]


def _blocks(columns: Sequence[int], widths: Sequence[int], gap: int, room: int) -> list[list[int]]:
    """Columns as they fit beside each other, one block below the other."""
    blocks: list[list[int]] = []
    for column in columns:
        left = room - (BELOW if len(blocks) > 1 else 0)
        if blocks and _total([widths[one] for one in (*blocks[-1], column)], gap) <= left:
            blocks[-1].append(column)
        else:
            blocks.append([column])
    return blocks


def _pieces(name: str) -> list[str]:
    """The parts of a heading that stay whole: words, and parts of a key with the dot or underscore behind them."""
    return [piece for piece in re.findall(r"[^ ._]*[ ._]?", name) if piece] or [""]


def _broken(name: str, width: int) -> list[str]:
    """A heading in lines of at most `width` characters."""
    lines = [""]
    for piece in _pieces(name):
        if lines[-1] and len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [part for line in lines for part in (folded(line.rstrip(), width, 0))]
