"""What the reference says of a key: the section it heads, its rows of the tables, and the notes below them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from hybrid_des.errors import UsageError, unknown
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import misnamed
from hybrid_des.scenario.problem import paths_of

_HEADING = re.compile(r"^(#+) (.+)$")
_OF_KEY = re.compile(r"key(?: of `([^`]+)`)?")
_NOTE = re.compile(r"^(?:- )?((?:`[^`]+`(?:, | and )?)+): ")
_NAME = re.compile(r"`([^`]+)`")
_CELL = re.compile(r"(?<!\\)\|")
OF_SCENARIOS = "The file"  # the heading of keys of scenarios; those of results have another
_SIMPLE = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Entry:
    """A section, a row or a note.

    Attributes:
        section: headings above it, the highest first.
        names: the keys that it is about.
        default: of the key; empty if the table has no such column, in a note, or of a section.
        text: what it says; of a section all lines until the next heading.
        heads: whether it is a section that the keys head.
    """

    section: tuple[str, ...]
    names: tuple[str, ...]
    default: str
    text: str
    heads: bool = False

    @property
    def head(self) -> str:
        """Where it stands, its keys, and their default."""
        default = f" (default {self.default})" if self.default not in ("", "–") else ""
        return f"{' > '.join(self.section)}: {', '.join(self.names)}{default}"


def about(reference: str, key: str, pages: Iterable[str] = ()) -> list[Entry]:
    """The entries about a key: `bucket`, or with the keys above it, `gradients.bucket`.

    First is the section that the key heads, then what has the whole key as its name, or as much of its end as some
    entry has below the keys above. A key of a scenario without an entry of its own is looked for beside the keys above
    it, then in their text, and else they are shown.

    Args:
        reference: the text of the reference.
        key: as above.
        pages: names of pages, which an error suggests too.

    Raises:
        UsageError: the reference does not have the key.
    """
    lines, entries = _read(reference)
    parts = key.split(".")
    ends = (_ending(entries, parts[:start], ".".join(parts[start:])) for start in range(len(parts)))
    if direct := [*_headed(lines, key), *next(filter(None, ends), [])]:
        return direct
    if len(parts) > 1 and _is_of_scenarios(key):
        return _beside(reference, entries, parts)
    titles = (name for _, title in _headings(lines) for name in _heading_names(title))
    names = {name for entry in entries for name in entry.names if _SIMPLE.fullmatch(name)}
    hint = unknown(key, {*names, *titles, *pages}, "page or key").partition("; expected one of")[0]
    raise UsageError(f"{hint}; hybrid-des docs lists the pages")


@lru_cache(maxsize=1)
def _read(reference: str) -> tuple[Sequence[str], Sequence[Entry]]:
    """The lines of the reference, and its entries."""
    lines = reference.splitlines()
    return lines, [*_entries(lines)]


def _is_of_scenarios(key: str) -> bool:
    """Whether scenarios have a key, or the end of one."""
    ends = (f".{path}".endswith(f".{key}") for path in paths_of(key.rpartition(".")[2], Scenario))
    return misnamed(key) is None or any(ends)


def _beside(reference: str, entries: Sequence[Entry], parts: Sequence[str]) -> list[Entry]:
    """What is said of a key where the keys above it are: an entry in the same section, or theirs, which lists it."""
    *above, last = parts
    upper = about(reference, ".".join(above))
    upper = [entry for entry in upper if entry.heads or entry.section[0] == OF_SCENARIOS] or upper
    sections = {entry.section[-1:] for entry in upper}
    if near := [entry for entry in entries if last in entry.names and entry.section[-1:] in sections]:
        return near
    listed = re.compile(rf"(?<![\w-]){re.escape(last)}(?![\w-])")
    return [entry for entry in upper if listed.search(entry.text)] or upper


def _ending(entries: Iterable[Entry], above: Sequence[str], end: str) -> list[Entry]:
    """The entries named so in sections that name all keys above."""
    return [one for one in entries if end in one.names and {*above} <= {*_NAME.findall(" ".join(one.section))}]


def _headings(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Numbers of the lines that are headings, with their titles."""
    for number, line in enumerate(_prose(lines)):
        if heading := _HEADING.match(line):
            yield number, heading[2]


def _prose(lines: Sequence[str]) -> Iterator[str]:
    """The lines, with empty ones for those of code, in which a comment looks like a heading."""
    code = False
    for line in lines:
        fence = line.startswith("```")
        yield "" if fence or code else line
        code ^= fence


def _heading_names(title: str) -> set[str]:
    """The keys of a heading, or else its words."""
    return {*_NAME.findall(title)} or {title.lower()}


def _headed(lines: Sequence[str], key: str) -> Iterator[Entry]:
    """The sections that a key heads."""
    headings = [*_headings(lines), (len(lines), "")]
    for (number, title), (end, _) in pairwise(headings):
        if key.lower() in _heading_names(title):
            text = "\n".join(lines[number:end]).rstrip()
            yield Entry((title,), (key,), "", text, heads=True)


def _entries(lines: Sequence[str]) -> Iterator[Entry]:
    headings: list[tuple[int, str]] = []
    columns: list[str] = []
    for number, line in enumerate(_prose(lines)):
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
        elif (of := _OF_KEY.fullmatch(columns[0])) and (names := _NAME.findall(_cells(line)[0])):
            cells, default = _cells(line), columns.index("default") if "default" in columns else None
            told = "" if default is None else cells[default]
            below = (*section, f"`{of[1]}`") if of[1] else section
            yield Entry(below, tuple(names), told, cells[-1].replace(r"\|", "|"))


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in _CELL.split(row.strip().strip("|"))]


def _paragraph(lines: Sequence[str], start: int) -> str:
    """The text of a note from this character of its first line, on one line: that of its item or its paragraph."""
    item = lines[0].startswith("- ")
    ends = (n for n, line in enumerate(lines) if n and (line[:2] != "  " if item else not line or line[0] in "|-#"))
    return " ".join([lines[0][start:], *map(str.strip, lines[1 : next(ends, None)])])
