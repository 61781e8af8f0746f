"""Text that fits a terminal: wrapped, in as many parts as there is room for, in labelled blocks."""

import re
import textwrap
from collections.abc import Iterable, Sequence

NO_BREAK = "\N{NO-BREAK SPACE}"


NARROWEST = 30  # columns of wrapped text


LABELLED = re.compile(r" *\S+( \S+)*  +(?=\S)")


def folded(text: str, room: int, hang: int = 2, *, cut: bool = True) -> list[str]:
    """Wrap a text into lines of at most `room` characters; numbers stay with their units.

    All lines but the first are indented by `hang`; unless `cut`, words too long for a line, such as paths, stay whole.
    """
    if len(text) <= room:
        return [text]
    kept = re.sub(r"(?<=[\d)]) (?=%|[µmn]?s\b|[kMGT]?B\b)|(?<=\bMFU) (?=\d)", NO_BREAK, text)
    lines = textwrap.wrap(kept, room, subsequent_indent=" " * hang, break_on_hyphens=False, break_long_words=cut)
    return [line.replace(NO_BREAK, " ") for line in lines]


def within(text: str, width: int | None) -> str:
    """A text whose lines are wrapped at a width, if there is one, below the beginning of what they say.

    That is behind a label, which two spaces or more follow, or else two columns right of the line's indentation.
    """
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        label = LABELLED.match(line)
        hang = label.end() if label and label.end() <= width // 2 else len(line) - len(line.lstrip()) + 2
        lines += folded(line, width, hang, cut=False)
    return "\n".join(lines)


def fitting(head: str, parts: Sequence[str], room: int, between: str = ", ") -> str:
    """As many parts as a line has room for, at least one, and the number of parts left out."""
    for shown in range(len(parts), 0, -1):
        more = [f"{len(parts) - shown} more"] if shown < len(parts) else []
        text = head + between.join([*parts[:shown], *more])
        if len(text) <= room or shown == 1:
            return text
    return head.rstrip()


def labelled(blocks: Iterable[tuple[str, Sequence[str]]], width: int, label: int = 10, *, hang: int = 2) -> list[str]:
    """The lines of texts, wrapped beside the label of their block, which takes some columns of the width.

    Lines of a text but its first are indented by `hang`, so that several texts of a block are told apart.
    """
    lines = []
    for name, texts in blocks:
        wrapped = [line for text in texts for line in folded(text, max(width - label, NARROWEST), hang)]
        heads = [name, *[""] * len(wrapped)]
        lines += [f"{head:<{label}}{line}".rstrip() for head, line in zip(heads, wrapped, strict=False)]
    return lines
