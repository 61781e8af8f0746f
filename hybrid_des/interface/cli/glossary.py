"""What the glossary says of a word that texts use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hybrid_des.interface.cli.reference_keys import Entry

PAGE = "reference/glossary"


SECTION = ("Glossary",)


_ROW = re.compile(r"^\| (?!word \||-)(.+?) \| (.+) \|$", flags=re.MULTILINE)


_SIZE = re.compile(r"(?<=[A-Z])\d+$")  # of an axis, such as that of TP8


def meanings(glossary: str, word: str) -> list[Entry]:
    """The rows of the glossary that have a word, whatever its case: "MFU", "TP8" as "TP", "micro-batches"."""
    asked = _same(word)
    rows = [(_words(row[1]), row[2]) for row in _ROW.finditer(glossary)]
    return [Entry(SECTION, tuple(words), "", text) for words, text in rows if asked in map(_same, words)]


def words_of(glossary: str) -> Iterator[str]:
    """All words that the glossary explains."""
    for row in _ROW.finditer(glossary):
        yield from _words(row[1])


def _words(cell: str) -> list[str]:
    return cell.split(", ")


def _same(word: str) -> str:
    """A word without what makes no difference: case, plural, and the size of an axis."""
    return re.sub(r"(?<=[^s])s$", "", re.sub(r"(ch|x|sh)es$", r"\1", _SIZE.sub("", word.strip()).lower()))
