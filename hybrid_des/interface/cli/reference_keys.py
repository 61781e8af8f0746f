"""What the reference says of a key: its rows of the tables, and the notes below them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hybrid_des.errors import UsageError, unknown

_HEADING = re.compile(r"^(#+) (.+)$")
_NOTE = re.compile(r"^- ((?:`[^`]+`(?:, | and )?)+): ")
_NAME = re.compile(r"`([^`]+)`")
_CELL = re.compile(r"(?<!\\)\|")
_SIMPLE = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Entry:
    """A row or a note.

    Attributes:
        section: headings above it, the highest first.
        names: the keys that it is about.
        default: of the key; empty if the table has no such column, or in a note.
        text: what it says.
    """

    section: tuple[str, ...]
    names: tuple[str, ...]
    default: str
    text: str

    @property
    def head(self) -> str:
        """Where it stands, its keys, and their default."""
        default = f" (default {self.default})" if self.default not in ("", "–") else ""
        return f"{' > '.join(self.section)}: {', '.join(self.names)}{default}"


def about(reference: str, key: str, pages: Iterable[str] = ()) -> list[Entry]:
    """The entries about a key: `bucket`, or with the keys above it, `gradients.bucket`.

    The keys above narrow what is found to the sections that name them. A key that has no entry of its own is looked
    for in that of the key above it, whose text lists it.

    Args:
        reference: the text of the reference.
        key: as above.
        pages: names of pages, which an error suggests too.

    Raises:
        UsageError: the reference does not have the key.
    """
    entries = list(_entries(reference.splitlines()))
    *above, last = key.split(".")
    mine = [entry for entry in entries if key in entry.names or last in entry.names]
    if below := [entry for entry in mine if key in entry.names or _is_below(entry, above)]:
        return below
    listed = re.compile(rf"(?<![\w-]){re.escape(last)}(?![\w-])")
    if above and (within := [entry for entry in entries if above[-1] in entry.names and listed.search(entry.text)]):
        return within
    if mine:
        return mine
    names = {name for entry in entries for name in entry.names if _SIMPLE.fullmatch(name)}
    hint = unknown(key, {*names, *pages}, "page or key").partition("; expected one of")[0]
    raise UsageError(f"{hint}; hybrid-des docs lists the pages")


def _is_below(entry: Entry, above: Sequence[str]) -> bool:
    return all(any(name in _NAME.findall(heading) for heading in entry.section) for name in above)


def _entries(lines: Sequence[str]) -> Iterator[Entry]:
    headings: list[tuple[int, str]] = []
    columns: list[str] = []
    for number, line in enumerate(lines):
        if heading := _HEADING.match(line):
            depth = len(heading[1])
            headings = [*(each for each in headings if 1 < each[0] < depth), (depth, heading[2])]
        section = tuple(title for _, title in headings)
        if note := _NOTE.match(line):
            yield Entry(section, tuple(_NAME.findall(note[1])), "", _paragraph(lines[number:], note.end()))
        elif not line.startswith("|"):
            columns = []
        elif not columns:
            columns = _cells(line)
        elif columns[0] == "key" and (names := _NAME.findall(cells[0] if (cells := _cells(line)) else "")):
            default = cells[columns.index("default")] if "default" in columns else ""
            yield Entry(section, tuple(names), default, cells[-1].replace(r"\|", "|"))


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in _CELL.split(row.strip().strip("|"))]


def _paragraph(lines: Sequence[str], start: int) -> str:
    """The text of a note from this character of its first line, on one line."""
    more = [
        line.strip() for line in lines[1 : next((n for n, line in enumerate(lines) if n and line[:2] != "  "), None)]
    ]
    return " ".join([lines[0][start:], *more])
