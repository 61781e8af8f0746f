"""One call of the command line: its arguments, the files in its folder, its standard input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """Texts may hold lone surrogates, which stand for bytes that are not UTF-8 (`surrogateescape`)."""

    argv: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""

    def lay_out(self, folder: Path) -> None:
        """Write the files."""
        for name, text in self.files.items():
            (folder / name).write_bytes(as_bytes(text))


@dataclass(frozen=True)
class Outcome:
    """What a call did.

    Attributes:
        code: what it returned; None if it raised or had to be stopped.
        raised: the traceback of an exception that left the entry point, innermost call last.
        stopped: why it had to be stopped: "slow", "hang" or "died".
        made: files and folders that it left in its folder.
    """

    code: int | None
    out: str = ""
    err: str = ""
    raised: str = ""
    stopped: str = ""
    made: tuple[str, ...] = ()


def as_bytes(text: str) -> bytes:
    """UTF-8, with the bytes that lone surrogates stand for; other surrogates become question marks."""
    encodable = not re.search("[\ud800-\udc7f\udd00-\udfff]", text)
    return text.encode("utf-8", "surrogateescape" if encodable else "replace")
