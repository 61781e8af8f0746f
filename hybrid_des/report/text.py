"""Text that fits a terminal: wrapped, in as many parts as there is room for, in labelled blocks, in tables."""

import re
import textwrap
from collections.abc import Iterable, Sequence

from hybrid_des.errors import one_line

NO_BREAK = "\N{NO-BREAK SPACE}"


NARROWEST = 30  # columns of wrapped text


def folded(text: str, room: int) -> list[str]:
    """Wrap a text into lines of at most `room` characters; numbers stay with their units."""
    if len(text) <= room:
        return [text]
    kept = re.sub(r"(?<=[\d)]) (?=%|[µmn]?s\b)", NO_BREAK, text)
    lines = textwrap.wrap(kept, room, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def fitting(head: str, parts: Sequence[str], room: int, between: str = ", ") -> str:
    """As many parts as a line has room for, at least one, and the number of parts left out."""
    for shown in range(len(parts), 0, -1):
        more = [f"{len(parts) - shown} more"] if shown < len(parts) else []
        text = head + between.join([*parts[:shown], *more])
        if len(text) <= room or shown == 1:
            return text
    return head.rstrip()


def labelled(blocks: Iterable[tuple[str, Sequence[str]]], width: int, label: int = 10) -> list[str]:
    """The lines of texts, wrapped beside the label of their block, which takes some columns of the width."""
    lines = []
    for name, texts in blocks:
        wrapped = [line for text in texts for line in folded(text, max(width - label, NARROWEST))]
        heads = [name, *[""] * len(wrapped)]
        lines += [f"{head:<{label}}{line}".rstrip() for head, line in zip(heads, wrapped, strict=False)]
    return lines


def text_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "", *, align: str = "<", width: int | None = None
) -> str:
    """Format rows of cells as aligned lines below their heads; cells may hold any text.

    Columns are two spaces apart, or one if the lines would be longer than `width`.
    """
    cells = [[one_line(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    gap = " " if width is not None and sum(widths) + 2 * len(widths) > width + 2 else "  "
    lines = (gap.join(f"{cell:{align}{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(f"{indent}{line}".rstrip() for line in lines)
