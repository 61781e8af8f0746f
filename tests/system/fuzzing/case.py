"""One call of the command line: its arguments, the files in its folder, its standard input; kept as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """Texts may hold lone surrogates, which stand for bytes that are not UTF-8 (`surrogateescape`)."""

    argv: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""

    @property
    def size(self) -> int:
        """Characters in all, by which one case is simpler than another."""
        texts = [*self.argv, *self.files, *self.files.values(), self.stdin]
        return sum(map(len, texts)) + len(texts)

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
    return text.encode("utf-8", "surrogateescape") if _encodable(text) else text.encode("utf-8", "replace")


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encodable(text: str) -> bool:
    return not re.search("[\ud800-\udc7f\udd00-\udfff]", text)


def save(folder: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Write a kept case, under a name made from what went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] + ".json")
    file.write_text(json.dumps(content, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    return file


def to_json(case: Case) -> dict[str, Any]:
    return {"argv": list(case.argv), "files": dict(case.files), "stdin": case.stdin}


def from_json(content: Mapping[str, Any]) -> Case:
    return Case(tuple(content["argv"]), content["files"], content["stdin"])
