"""Lines of a log as they were printed: without colours, without what Ray puts in front, with their number.

    (TaskRunner pid=16292) step:12 - timing_s/gen:74.020    →  "(TaskRunner pid=16292)", "step:12 - timing_s/gen:74.020"

A progress bar is printed over itself, so that one line holds many, each after a carriage return.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hybrid_des.errors import UsageError, beside
from hybrid_des.files import open_file

LARGEST = 2**32  # bytes of a log that are read
LONGEST = 2**20  # bytes of a line
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BEFORE = ("(", "[", " ")  # what a writer may begin with
_WRITER = re.compile(r"\s*(\(\w[\w.:]* (?:pid|ip)=[^)]*\)|\[(?:rank|default)\d+\]:)\s?")


class Line(NamedTuple):
    """A line of a log.

    Attributes:
        number: in the file, from 1.
        writer: the process that Ray or torchrun names in front of it; empty without one.
        text: the rest.
        whole: whether a line break ends it; the last line of a log that was cut has none.
    """

    number: int
    writer: str
    text: str
    whole: bool = True


def lines_of(file: str | Path) -> Iterator[Line]:
    """The lines of a log, one at a time.

    Raises:
        UsageError: it cannot be read, is empty or is not a text.
    """
    try:
        with open_file(file) as stream:
            yield from _lines(stream, str(file))
    except OSError as error:
        hint = beside(file) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{file}: {error.strerror or error}{hint}") from None


def _lines(stream: BinaryIO, name: str) -> Iterator[Line]:
    number = size = 0
    while given := stream.readline(LONGEST):
        number, size = number + 1, size + len(given)
        if b"\0" in given:
            raise UsageError(f"{name}:{number}: not a text file; expected the log of a run, as it was printed")
        if size > LARGEST:
            raise UsageError(f"{name}: larger than {LARGEST // 2**30} GiB; expected the log of a run")
        whole = given.endswith(b"\n")
        plain = given.decode(errors="replace")
        plain = _COLOUR.sub("", plain) if "\x1b" in plain else plain
        for text in plain.rstrip("\r\n").split("\r"):
            match = _WRITER.match(text) if text[:1] in _BEFORE else None
            yield Line(number, match[1] if match else "", text[match.end() :] if match else text, whole)
    if not number:
        raise UsageError(f"{name}: empty; expected the log of a run")
