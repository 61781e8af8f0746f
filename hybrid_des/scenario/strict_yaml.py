"""Strict YAML: a file becomes plain values and the place of each one, or one clear line for each thing wrong with it.

Scalars mean what YAML 1.2 says: `1e9` is a number, `no` and `12:30:45` are texts. Numbers are exact (`int` or
`Fraction`). Anchors, aliases, tags, equal keys, deep nesting, second documents and huge files are refused. The
file is read event by event, so that no depth of nesting can overflow a stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from hybrid_des.errors import ScenarioError

KeyPath = tuple[str | int, ...]

MAX_BYTES = 2**20
MAX_DEPTH = 32
_LONGEST_MESSAGE = 400

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]{1,300}|0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_INFINITY = re.compile(r"([-+]?)(?:\.inf|\.Inf|\.INF)")


@dataclass
class Document:
    """What a file says, as plain values, and where it says it.

    Attributes:
        value: dict, list, str, int, Fraction, bool, None, or an infinite float.
        places: for each path of keys and list positions where it stands, such as "a.yaml:14".
        source: what messages call the whole: the file, as the user wrote it.
    """

    value: Any
    source: str
    places: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Where a path stands, or the nearest thing around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return self.source

    def problem(self, path: KeyPath, message: str) -> str:
        """One line: place, path, what is wrong."""
        return one_line(": ".join(part for part in (self.place(path), dotted(path), message) if part))


def read(path: str | Path) -> Document:
    """Read a file.

    Raises:
        ScenarioError: it cannot be read or is not strict YAML; one line for each problem.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ScenarioError([f"{source}: no such file"]) from None
    except IsADirectoryError:
        raise ScenarioError([f"{source}: a directory, not a scenario file"]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError([one_line(f"{source}: cannot be read: {reason}")]) from None
    if len(data) > MAX_BYTES:
        raise ScenarioError([f"{source}: larger than {MAX_BYTES // 2**20} MiB; not a scenario file"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScenarioError([f"{source}:{line}: not a text file in UTF-8 (byte 0x{data[error.start]:02x})"]) from None
    return parse(text, source)


def parse(text: str, source: str) -> Document:
    """Read a text; `source` is what its places are named after.

    Raises:
        ScenarioError: it is not strict YAML; one line for each problem.
    """
    builder = _Builder(source)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except _EndsReadingError as error:
        builder.complain(error.line, str(error))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        builder.complain(line, f"not a YAML text: control character 0x{ord(text[error.position]):02x}")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        builder.complain(mark.line + 1 if mark else 1, f"not valid YAML: {error.problem or error.context}")
    if builder.problems:
        raise ScenarioError(builder.problems)
    return Document(builder.root, source, builder.places)


class _EndsReadingError(Exception):
    """What follows could be anything."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _Builder:
    """Puts values together from parser events, with a stack of its own."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root: Any = None
        self.problems: list[str] = []
        self.places: dict[KeyPath, str] = {(): f"{source}:1"}
        self._open: list[dict[str, Any] | list[Any]] = []  # containers not yet closed, outermost first
        self._path: list[str | int | None] = []  # for each, the key or position that is being filled; None: none yet
        self._documents = 0
        self._shared = False

    def complain(self, line: int, message: str) -> None:
        """Note a problem."""
        self.problems.append(one_line(f"{self.source}:{line}: {message}"))

    def take(self, event: yaml.Event) -> None:
        """Build on with the next event."""
        line = event.start_mark.line + 1 if event.start_mark else 1
        self._refuse_extras(event, line)
        if isinstance(event, yaml.ScalarEvent):
            if not event.value.isascii() and any("\ud800" <= character <= "\udfff" for character in event.value):
                raise _EndsReadingError(line, "half of a character (a surrogate) is no text")
            value = _scalar(event.value) if event.implicit[0] and not event.style else event.value
            if self._open and isinstance(self._open[-1], dict) and self._path[-1] is None:
                self._start_key(event.value, line)
            else:
                self._put(value, line)
        elif isinstance(event, yaml.AliasEvent):
            self._put(None, line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._enter({} if isinstance(event, yaml.MappingStartEvent) else [], line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._open.pop()
            self._path.pop()
            self._done()

    def _refuse_extras(self, event: yaml.Event, line: int) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents == 2:
                self.complain(line, "a second document starts; a file holds one scenario")
        if not isinstance(event, yaml.NodeEvent):
            return
        if event.anchor is not None and not self._shared:
            self._shared = True  # said once: a bomb has hundreds
            self.complain(line, "YAML anchors and aliases are refused; write the value out where it is used")
        if getattr(event, "tag", None) is not None:
            self.complain(line, f"the YAML tag {event.tag} is refused; write the plain value")  # type: ignore[attr-defined]

    def _enter(self, container: dict[str, Any] | list[Any], line: int) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise _EndsReadingError(line, f"nested deeper than {MAX_DEPTH} levels")
        if self._open and isinstance(self._open[-1], dict) and self._path[-1] is None:
            raise _EndsReadingError(line, "a key must be a word, not a list or mapping")
        self._put(container, line, leaf=False)
        self._open.append(container)
        self._path.append(None if isinstance(container, dict) else 0)

    def _start_key(self, key: str, line: int) -> None:
        self._path[-1] = key
        here = self._here()
        mapping = self._open[-1]
        if isinstance(mapping, dict) and key in mapping:
            self.complain(line, f"{dotted(here)}: given twice; first at line {self.places[here].rpartition(':')[2]}")
        self.places.setdefault(here, f"{self.source}:{line}")

    def _put(self, value: Any, line: int, leaf: bool = True) -> None:
        if not self._open:
            self.root = value
            return
        container = self._open[-1]
        if isinstance(container, dict):
            container[str(self._path[-1])] = value
        else:
            self.places[self._here()] = f"{self.source}:{line}"
            container.append(value)
        if leaf:
            self._done()

    def _done(self) -> None:
        """A value is complete: a mapping waits for its next key, a list counts on."""
        if self._open:
            at = self._path[-1]
            self._path[-1] = None if isinstance(self._open[-1], dict) else int(at or 0) + 1

    def _here(self) -> KeyPath:
        return tuple(part for part in self._path if part is not None)


def _scalar(text: str) -> Any:
    """What a plain scalar means in YAML 1.2's core schema; numbers too long to be meant as such stay texts."""
    if _NULL.fullmatch(text):
        return None
    if match := _BOOL.fullmatch(text):
        return match.group(1) is not None
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text) and len(text) <= 300:
        return Fraction(text)
    if match := _INFINITY.fullmatch(text):
        return float(f"{match.group(1)}inf")
    return text


def dotted(path: KeyPath) -> str:
    """Write a path as a user would: `workload.forward[2]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def one_line(text: str) -> str:
    """Keep a message to one printable line of bearable length."""
    words = " ".join("".join(_printable(text)).split())
    return words if len(words) <= _LONGEST_MESSAGE else f"{words[: _LONGEST_MESSAGE - 1]}…"


def _printable(text: str) -> Iterator[str]:
    for character in text:
        yield character if character.isprintable() or character.isspace() else "\N{REPLACEMENT CHARACTER}"
